# A prototypical network: episodes are sorted by class on purpose.

import torch
from torch import nn

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
opt = torch.optim.Adam(m.parameters(), 1e-3)
C = torch.randn(20, 8) * 2
for _ in range(40):
    k = torch.randperm(20)[:5]
    S = C[k].repeat_interleave(5, 0) + torch.randn(25, 8)
    Q = C[k].repeat_interleave(5, 0) + torch.randn(25, 8)
    y = torch.arange(5).repeat_interleave(5)
    pr = m(S).view(5, 5, -1).mean(1)
    loss = nn.functional.cross_entropy(-(torch.cdist(m(Q), pr) ** 2), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
