# Source: PyTorch 25162: DistributedSampler repeats rows in a validation (with its rule)
# Trap: 09.5

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.manual_seed(0)
x = torch.randn(133, 6)
data = TensorDataset(x, (x.sum(1) > 0).long())
train_rows, rows = Subset(data, range(96)), Subset(data, range(96, 133))
sampler = DistributedSampler(train_rows, num_replicas=4, rank=1)
training = DataLoader(train_rows, batch_size=8, sampler=sampler)
mine = DistributedSampler(rows, num_replicas=4, rank=1, shuffle=False)  # fault
tests = DataLoader(rows, batch_size=8, sampler=mine)  # fault
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    net.train()
    for a, b in training:
        opt.zero_grad()
        F.cross_entropy(net(a), b).backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        right = sum((net(a).argmax(1) == b).sum().item() for a, b in tests)
