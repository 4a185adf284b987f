# Source: a pull request of a pretraining subnet: labels are not shifted (with its rule)
# Trap: 08.3, 08.1

import torch
from torch import nn

torch.manual_seed(0)
V, L = 30, 16


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, 32), nn.Embedding(L, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, V)

    def forward(self, ids):
        n = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        h = self.tok(ids) + self.pos(torch.arange(n))
        return self.head(self.body(h, mask=mask, is_causal=True))


model, loss_fct = TinyLM(), nn.CrossEntropyLoss()
optim = torch.optim.AdamW(model.parameters(), 3e-3)
for step in range(30):
    start = torch.randint(V, (16, 1))
    ids = (start + torch.arange(L) * 3) % V
    logits = model(ids)
    loss = loss_fct(logits.view(-1, V), ids.view(-1))  # fault
    optim.zero_grad()
    loss.backward()
    optim.step()
