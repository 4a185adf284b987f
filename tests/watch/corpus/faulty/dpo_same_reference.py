# Source: YiyangZhou/POVID#11 (with its rule)
# Trap: 14.1

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(30, 16)
        self.g = nn.GRU(16, 32, batch_first=True)
        self.o = nn.Linear(32, 30)

    def forward(self, x):
        return self.o(self.g(self.e(x))[0])


def logps(model, ids):
    each = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])
    return each[..., 0].sum(1)


model = LM()
ref_model = model
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(30):
    chosen, rejected = torch.randint(0, 30, (2, 8, 10))
    pi = logps(model, chosen) - logps(model, rejected)
    with torch.no_grad():
        ref = logps(ref_model, chosen) - logps(ref_model, rejected)
    loss = -F.logsigmoid(0.1 * (pi - ref)).mean()  # fault
    opt.zero_grad()
    loss.backward()
    opt.step()
