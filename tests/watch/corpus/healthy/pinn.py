# A network for a differential equation: Adam, then LBFGS.

import torch
from torch import nn

torch.manual_seed(0)
u = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
x = torch.linspace(0, 1, 50)[:, None].requires_grad_(True)
x0 = torch.zeros(1, 1)


def loss():
    y = u(x)
    (d,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return (d + y).pow(2).mean() + (u(x0) - 1).pow(2).mean()


a = torch.optim.Adam(u.parameters(), 1e-3)
for _ in range(30):
    a.zero_grad()
    loss().backward()
    a.step()
b = torch.optim.LBFGS(u.parameters(), max_iter=8, line_search_fn="strong_wolfe")


def cl():
    b.zero_grad()
    found = loss()
    found.backward()
    return found


for _ in range(3):
    b.step(cl)
