# Gradients of each row by vmap, clipped and noised by hand.

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
opt = torch.optim.SGD(m.parameters(), 0.1)


def loss(p, x, y):
    return nn.functional.cross_entropy(functional_call(m, p, (x[None],)), y[None])


for _ in range(25):
    x = torch.randn(16, 6)
    y = (x[:, 0] > 0).long()
    p = {k: v.detach() for k, v in m.named_parameters()}
    g = vmap(grad(loss), (None, 0, 0))(p, x, y)
    n = torch.stack([v.flatten(1).norm(dim=1) for v in g.values()]).norm(dim=0)
    s = (1 / (n + 1e-6)).clamp(max=1)
    opt.zero_grad()
    for k, v in m.named_parameters():
        v.grad = (g[k] * s.view(-1, *[1] * (g[k].ndim - 1))).mean(0) + 0.01 * torch.randn_like(v)
    opt.step()
