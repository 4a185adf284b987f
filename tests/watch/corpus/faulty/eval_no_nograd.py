# Source: no single thread, a pattern of many: validation in train mode, with its graph
# Trap: 01.1, 05.1

import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(160, 6)
Y = (X[:, 0] > 0).long()
T = torch.utils.data
m = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2))
o = torch.optim.Adam(m.parameters(), 1e-3)
tr, va = (
    T.DataLoader(T.TensorDataset(X[:128], Y[:128]), 16, shuffle=True),
    T.DataLoader(T.TensorDataset(X[128:], Y[128:]), 16),
)
for e in range(4):
    for x, y in tr:
        o.zero_grad()
        nn.functional.cross_entropy(m(x), y).backward()
        o.step()
    acc = 0
    for x, y in va:
        acc += (m(x).argmax(1) == y).sum().item()  # fault
