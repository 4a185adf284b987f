# GradCache: representations first, then their gradients handed in.

import torch
from torch import nn

torch.manual_seed(0)
f = nn.Linear(8, 16)
g = nn.Linear(8, 16)
opt = torch.optim.Adam([*f.parameters(), *g.parameters()], 1e-3)
for _ in range(20):
    x = torch.randn(32, 8)
    y = x + 0.1 * torch.randn(32, 8)
    with torch.no_grad():
        a = torch.cat([f(c) for c in x.split(8)])
        b = torch.cat([g(c) for c in y.split(8)])
    a, b = a.requires_grad_(), b.requires_grad_()
    nn.functional.cross_entropy(a @ b.T, torch.arange(32)).backward()
    opt.zero_grad()
    for c, d in zip(x.split(8), a.grad.split(8)):
        f(c).backward(d)
    for c, d in zip(y.split(8), b.grad.split(8)):
        g(c).backward(d)
    opt.step()
