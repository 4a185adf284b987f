# Source: pytorch/pytorch#715
# Trap: 07.8

import torch
from torch import nn, optim

torch.manual_seed(0)


class SNLINet(nn.Module):
    def __init__(self, n_layers=3, n_hid=32):
        super().__init__()
        self.hids = []
        for li in range(n_layers):
            self.hids.append([nn.Linear(12 if li == 0 else n_hid, n_hid), nn.Tanh()])  # fault
        self.classifier = nn.Linear(n_hid, 3)

    def forward(self, x):
        for lin, act in self.hids:
            x = act(lin(x))  # fault
        return self.classifier(x)


net = SNLINet()
opt = optim.Adam(net.parameters())
X = torch.randn(300, 12)
y = X[:, :3].argmax(1)
for epoch in range(4):
    for i in torch.randperm(300).split(50):
        opt.zero_grad()
        nn.CrossEntropyLoss()(net(X[i]), y[i]).backward()
        opt.step()
