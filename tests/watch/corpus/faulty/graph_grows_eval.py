# Source: DeepRank and a question of the PyTorch forum: total_loss += loss
# Trap: 02.5, 12.6

import torch
from torch import nn

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
opt = torch.optim.SGD(m.parameters(), 1e-2)
X = torch.randn(640, 8)
Y = (X[:, 0] > 0).long()


def epoch(train=True):
    total_loss = 0
    for i in range(0, 640, 32):
        loss = nn.functional.cross_entropy(m(X[i : i + 32]), Y[i : i + 32])
        if train:
            opt.zero_grad()
            loss.backward()
            opt.step()
        total_loss += loss  # fault
    return total_loss / 20


for e in range(3):
    m.train()
    tr = epoch()
    m.eval()
    va = epoch(False)
