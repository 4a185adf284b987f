# Source: pytorch/examples#1029
# Trap: 09.14, 07.8, 10.5, 07.10

import io

import torch
from torch import nn

torch.manual_seed(0)


def make():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


class LitModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = make()

    def forward(self, x):
        return self.model(x)


lit = LitModel()
file = io.BytesIO()
torch.save({"state_dict": lit.state_dict()}, file)
file.seek(0)
net = make()
ckpt = torch.load(file)
net.load_state_dict(ckpt["state_dict"], strict=False)  # fault
opt = torch.optim.SGD(net.parameters(), 1e-2)
for i in range(10):
    x = torch.randn(16, 8)
    opt.zero_grad()
    nn.functional.cross_entropy(net(x), x[:, :3].argmax(1)).backward()
    opt.step()
