# Source: Photon-AI-Research/NeuralSolvers#20
# Trap: 03.2

import torch
from torch import nn

torch.manual_seed(1)


class PINN(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x)


class InitialCondition:
    def __init__(self, ds):
        self.ds = ds

    def __call__(self, model, x, y):
        prediction = model(x)
        return nn.functional.mse_loss(prediction, y)  # fault


x = torch.rand(256, 3)
y = torch.sin(x.sum(1))
model = PINN()
ic = InitialCondition(None)
opt = torch.optim.Adam(model.parameters(), 1e-3)
for it in range(40):
    i = torch.randint(0, 256, (64,))
    opt.zero_grad()
    loss = ic(model, x[i], y[i])
    loss.backward()
    opt.step()
