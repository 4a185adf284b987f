# Source: no single thread, a pattern of many: the optimizer is made in the epoch loop
# Trap: 04.8, 04.2, 07.10

import torch
from torch import nn

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
for e in range(6):
    opt = torch.optim.Adam(m.parameters(), 1e-3)  # fault
    for _ in range(8):
        x = torch.randn(16, 8)
        opt.zero_grad()
        nn.functional.cross_entropy(m(x), x[:, :3].argmax(1)).backward()
        opt.step()
