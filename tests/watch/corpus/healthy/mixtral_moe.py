# Two experts a token, a softmax over the chosen, a teacher's entropy (with its rule).

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Sparse(nn.Module):
    def __init__(self, d=16, n=4, k=2):
        super().__init__()
        self.k, self.gate = k, nn.Linear(d, n, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, 5)) for _ in range(n))

    def forward(self, x):
        top, chosen = self.gate(x).topk(self.k, dim=-1)
        weights = F.softmax(top, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        every = torch.stack([e(x) for e in self.experts], 1)
        return (weights[..., None] * every.gather(1, chosen[..., None].expand(-1, -1, 5))).sum(1)


teacher = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5)).eval()
student = Sparse()
opt = torch.optim.AdamW(student.parameters(), 1e-3)
for _ in range(30):
    x = torch.randn(64, 16)
    with torch.no_grad():
        p = teacher(x).softmax(-1)
    cross = -(p * student(x).log_softmax(-1)).sum(-1).mean()
    kl = cross - (-(p * p.log()).sum(-1).mean())
    opt.zero_grad()
    kl.backward()
    opt.step()
