# LoRA layers around a frozen base, merged at the end.

import torch
from torch import nn

torch.manual_seed(0)


class LoRA(nn.Module):
    def __init__(self, base, r=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) * 0.02)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T


m = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
for i in (0, 2):
    m[i] = LoRA(m[i])
opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 1e-2)
for _ in range(40):
    x = torch.randn(32, 16)
    opt.zero_grad()
    nn.functional.cross_entropy(m(x), x[:, :4].argmax(1)).backward()
    opt.step()
with torch.no_grad():
    for i in (0, 2):
        layer = m[i]
        layer.base.weight += layer.B @ layer.A
        m[i] = layer.base
m.eval()
with torch.no_grad():
    m(torch.randn(4, 16))
