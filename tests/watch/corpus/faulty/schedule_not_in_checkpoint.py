# Source: a checkpoint that keeps no state of the schedule (with its rule)
# Trap: 12.8

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 6)
y = x[:, :3].sum(1, keepdim=True)


def start():
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    return net, opt, torch.optim.lr_scheduler.OneCycleLR(opt, 0.02, total_steps=12)


def train(net, opt, schedule, steps):
    for _ in range(steps):
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()
        schedule.step()  # fault


parts = start()
train(*parts, 6)
file = copy.deepcopy([part.state_dict() for part in parts])
parts = start()
for part, state in zip(parts[:2], file):  # fault
    part.load_state_dict(state)
train(*parts, 6)
