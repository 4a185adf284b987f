# Deepsensor 47: train_epoch makes its own Adam (with its rule): repaired

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
places = torch.rand(128, 2)
heights = torch.sin(6 * places[:, :1]) * places[:, 1:]


def train_epoch(model, lr, opt=None):
    losses = []
    for rows in torch.randperm(128).split(16):
        opt.zero_grad()
        loss = F.mse_loss(model(places[rows]), heights[rows])
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
adam = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(5):
    train_epoch(model, 5e-3, adam)
