# Ultralytics 11217: zero_grad at the start of each epoch (with its rule): repaired

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(112, 8)
batches = DataLoader(TensorDataset(x, x.argmax(1)), batch_size=8, shuffle=True)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
window, number = 4, 0
opt.zero_grad()
for _ in range(4):
    for i, (a, b) in enumerate(batches):
        number += 1
        (F.cross_entropy(net(a), b) / window).backward()
        if number % window == 0:
            opt.step()
            opt.zero_grad()
