# Source: no single thread, a pattern of many: eval() for a first look, and never train()
# Trap: 01.1, 05.1

import torch
from torch import nn

torch.manual_seed(0)
m = nn.Sequential(
    nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2)
)
m.eval()  # fault
with torch.no_grad():
    m(torch.randn(4, 6))
opt = torch.optim.Adam(m.parameters(), 1e-3)
for _ in range(30):
    x = torch.randn(16, 6)
    opt.zero_grad()
    nn.functional.cross_entropy(m(x), (x[:, 0] > 0).long()).backward()
    opt.step()  # fault
