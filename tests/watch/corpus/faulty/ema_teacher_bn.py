# Source: a question of the PyTorch forum: an average of weights beside a BatchNorm
# Trap: 05.5

import copy

import torch
from torch import nn

torch.manual_seed(0)
m = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3)
)


class EMA:
    def __init__(self, model, decay=0.9):
        self.ema = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.ema.parameters():
            p.requires_grad_(False)

    def update(self, model):
        with torch.no_grad():
            for e, p in zip(self.ema.parameters(), model.parameters()):
                e.mul_(self.decay).add_(p, alpha=1 - self.decay)  # fault


ema = EMA(m)
opt = torch.optim.Adam(m.parameters(), 1e-3)
for e in range(3):
    m.train()
    for _ in range(10):
        x = torch.randn(16, 1, 8, 8) * 3 + 5
        opt.zero_grad()
        nn.functional.cross_entropy(m(x), torch.randint(0, 3, (16,))).backward()
        opt.step()
        ema.update(m)
    with torch.no_grad():
        ema.ema(torch.randn(16, 1, 8, 8) * 3 + 5)  # fault
