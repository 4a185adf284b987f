# Gradient reversal and a straight-through estimator.

import torch
from torch import nn

torch.manual_seed(0)


class Rev(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a):
        ctx.a = a
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.a * g, None


class STE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        return g


F_, C, D = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 3), nn.Linear(16, 2)
opt = torch.optim.Adam([*F_.parameters(), *C.parameters(), *D.parameters()], 1e-3)
for i in range(50):
    s, t = torch.randn(16, 8), torch.randn(16, 8) + 1
    fs = F_(s)
    d = D(Rev.apply(torch.cat([fs, F_(t)]), i / 50))
    loss = nn.functional.cross_entropy(C(STE.apply(fs - 0.1)), s[:, :3].argmax(1))
    loss = loss + nn.functional.cross_entropy(d, torch.arange(32) // 16)
    opt.zero_grad()
    loss.backward()
    opt.step()
