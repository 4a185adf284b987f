# One expert a token, weighted by its chance; a balance loss of chances and counts (with its rule).

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Switch(nn.Module):
    def __init__(self, d=16, n=4):
        super().__init__()
        self.n, self.router = n, nn.Linear(d, n, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, d)) for _ in range(n))

    def forward(self, x):
        chances = F.softmax(self.router(x), dim=-1)
        weight, chosen = torch.topk(chances, 1, dim=-1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows = (chosen[:, 0] == k).nonzero()[:, 0]
            out = out.index_add(0, rows, weight[rows] * expert(x[rows]))
        share = F.one_hot(chosen[:, 0], self.n).float().mean(0)
        return out, self.n * (share * chances.mean(0)).sum()


moe, head = Switch(), nn.Linear(16, 5)
opt = torch.optim.Adam([*moe.parameters(), *head.parameters()], 1e-3)
for _ in range(30):
    x = torch.randn(64, 16)
    out, balance = moe(x)
    loss = F.cross_entropy(head(x + out), x[:, :5].argmax(1)) + 0.01 * balance
    opt.zero_grad()
    loss.backward()
    opt.step()
