# Source: an early stop that calls state_dict(best) for load_state_dict(best) (with its rule)
# Trap: 06.4

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x, noise = torch.randn(60, 4), torch.randn(60, 1)
y = x.sum(1, keepdim=True) + noise
net = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
best, lowest = None, float("inf")
for _ in range(30):
    net.train()
    opt.zero_grad()
    F.mse_loss(net(x[:40]), y[:40]).backward()
    opt.step()
    net.eval()
    with torch.no_grad():
        loss = F.mse_loss(net(x[40:]), y[40:]).item()
    if loss < lowest:
        best, lowest = copy.deepcopy(net.state_dict()), loss
net.state_dict(destination=best)  # fault
