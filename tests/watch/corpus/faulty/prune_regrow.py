# Source: no single thread, a pattern of many: prune.remove before the fine-tuning
# Trap: 11.2, 11.5

import torch
from torch import nn
from torch.nn.utils import prune

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.SGD(m.parameters(), 0.05)
for layer in (m[0], m[2]):
    prune.l1_unstructured(layer, "weight", 0.5)
    prune.remove(layer, "weight")  # fault
opt = torch.optim.SGD(m.parameters(), 0.05)
for _ in range(20):
    x = torch.randn(32, 8)
    opt.zero_grad()
    nn.functional.cross_entropy(m(x), (x[:, 0] > 0).long()).backward()
    opt.step()  # fault
