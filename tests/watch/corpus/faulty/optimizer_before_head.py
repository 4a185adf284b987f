# Source: hustzxd/EfficientPyTorch#1
# Trap: 07.10

import torch
from torch import nn

torch.manual_seed(0)


class Backbone(nn.Module):
    def __init__(self, n=10):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.fc = nn.Linear(8, n)

    def forward(self, x):
        return self.fc(self.conv(x).relu().mean((2, 3)))


model = Backbone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)  # fault
model.fc = nn.Linear(8, 4)
criterion = nn.CrossEntropyLoss()
for it in range(25):
    x = torch.randn(16, 3, 8, 8)
    y = torch.randint(0, 4, (16,))
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()  # fault
