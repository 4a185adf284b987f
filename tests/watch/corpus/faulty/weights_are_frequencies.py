# Source: mindsdb/lightwood 769: weights that are frequencies (with its rule)
# Trap: 06.8

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(480, 7)
y = (x[:, 0] + torch.randn(480) > 1.5).long() + (x[:, 1] > 1.6).long()
counts = torch.bincount(y, minlength=3).float()
weight = counts / counts.sum()  # fault
criterion = nn.CrossEntropyLoss(weight=weight / weight.mean())
net = nn.Sequential(nn.Linear(7, 24), nn.ReLU(), nn.Linear(24, 3))
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
for _ in range(4):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=48, shuffle=True):
        loss = criterion(net(a), b)  # fault
        opt.zero_grad()
        loss.backward()
        opt.step()
