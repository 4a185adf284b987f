# Source: an issue of ViP: the accuracy is counted over all epochs (with its rule)
# Trap: 12.10

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Meter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.right = self.seen = 0

    def update(self, logits, y):
        self.right += (logits.argmax(1) == y).sum().item()
        self.seen += len(y)


x = torch.randn(400, 8)
y = x[:, :3].argmax(1)
train = DataLoader(TensorDataset(x[:300], y[:300]), 20, shuffle=True)
valid = DataLoader(TensorDataset(x[300:], y[300:]), 50)
net, acc = nn.Linear(8, 3), Meter()  # fault
opt = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(5):
    for a, b in train:
        opt.zero_grad()
        nn.functional.cross_entropy(net(a), b).backward()
        opt.step()
    with torch.no_grad():
        for a, b in valid:
            acc.update(net(a), b)  # fault
    print(epoch, acc.right / acc.seen)
