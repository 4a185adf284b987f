# Source: no single thread, a pattern of many: torch.where beside a square root
# Trap: 12.5, 12.1

import torch
from torch import nn

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.Adam(m.parameters(), 1e-3)
for i in range(20):
    x = torch.randn(16, 4)
    z = m(x) - m(x[:1])
    d = torch.where(z.sum(1) > 0, z.pow(2).sum(1).sqrt(), torch.zeros(16))
    loss = (d - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    opt.step()  # fault
