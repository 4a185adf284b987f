# Source: a pull request of accelerate: loading unties the tied weights (with its rule)
# Trap: 08.12

import torch
from torch import nn

torch.manual_seed(0)


class LM(nn.Module):
    def __init__(self, v=25, d=24):
        super().__init__()
        self.wte = nn.Embedding(v, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.lm_head = nn.Linear(d, v, bias=False)
        self.tie()

    def tie(self):
        self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        return self.lm_head(self.rnn(self.wte(ids))[0])


def load(state):
    with torch.device("meta"):
        model = LM()
    model.load_state_dict({k: v.clone() for k, v in state.items()}, assign=True)  # fault
    return model


model = load(LM().state_dict())
opt = torch.optim.Adam(model.parameters(), 5e-3)
for _ in range(30):
    ids = (torch.randint(25, (16, 1)) + torch.arange(9) * 2) % 25
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
