# Source: a question of the PyTorch forum: reshape in place of permute
# Trap: 07.9

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
np.random.seed(0)
imgs = np.random.rand(64, 12, 16, 3).astype("float32")
y = torch.randint(0, 2, (64,))
m = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
)
opt = torch.optim.Adam(m.parameters())
for e in range(3):
    for i in torch.randperm(64).split(16):
        x = torch.from_numpy(imgs)[i]
        x = x.reshape(-1, 3, 12, 16)  # fault
        opt.zero_grad()
        nn.functional.cross_entropy(m(x), y[i]).backward()
        opt.step()
