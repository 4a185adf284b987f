# Checkpoints around noise from a generator that each run seeds from the step (with its rule).

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Noisy(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.step, self.dice = number, 0, torch.Generator()
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, h):
        self.dice.manual_seed(1000 * self.step + self.number)
        keep = torch.rand(h.shape, generator=self.dice) < 0.9
        return h + self.mlp(h * keep / 0.9)


blocks, head = nn.ModuleList(Noisy(k) for k in range(3)), nn.Linear(16, 4)
opt = torch.optim.Adam([*blocks.parameters(), *head.parameters()], 1e-3)
for step in range(20):
    x = torch.randn(32, 16)
    h = x.clone().requires_grad_()
    for block in blocks:
        block.step = step
        h = checkpoint(block, h, use_reentrant=step % 2 == 0)
    opt.zero_grad()
    F.cross_entropy(head(h), x[:, :4].argmax(1)).backward()
    opt.step()
