# Source: avBuffer/UNet3plus_pth#23
# Trap: 03.1, 01.2

import torch
from torch import nn

torch.manual_seed(0)


class UNet3(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 8, 3, padding=1)
        self.c2 = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x):
        return torch.sigmoid(self.c2(self.c1(x).relu()))  # fault


net = UNet3()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-4)
for i in range(20):
    x = torch.randn(4, 1, 16, 16)
    m = (x > 0).float()
    pred = net(x)
    loss = criterion(pred, m)  # fault
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
