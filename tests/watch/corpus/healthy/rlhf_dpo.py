# DPO beside a frozen reference, paddings masked by hand.

import copy

import torch
from torch import nn

torch.manual_seed(0)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(30, 16)
        self.g = nn.GRU(16, 32, batch_first=True)
        self.o = nn.Linear(32, 30)

    def forward(self, x):
        return self.o(self.g(self.e(x))[0])


pol = LM()
ref = copy.deepcopy(pol).eval().requires_grad_(False)
opt = torch.optim.RMSprop(pol.parameters(), 1e-4)


def lp(m, x, k):
    each = m(x[:, :-1]).log_softmax(-1).gather(-1, x[:, 1:, None])
    return (each[..., 0] * k[:, 1:]).sum(1)


for _ in range(25):
    k = (torch.arange(9)[None] < torch.randint(5, 10, (8, 1))).float()
    c, r = torch.randint(1, 30, (2, 8, 9)) * k.long()
    with torch.no_grad():
        a, b = lp(ref, c, k), lp(ref, r, k)
    loss = -nn.functional.logsigmoid(0.1 * ((lp(pol, c, k) - a) - (lp(pol, r, k) - b))).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
