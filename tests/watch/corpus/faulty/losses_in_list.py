# Source: no single thread, a pattern of many: losses.append(loss)
# Trap: 12.6

import torch
from torch import nn

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
opt = torch.optim.Adam(m.parameters(), 1e-3)
losses = []
for e in range(80):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(m(x), x[:, :3].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss)  # fault
