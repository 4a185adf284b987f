# Source: an issue of Coach: NoisyNet draws its noise in evaluations, too (with its rule)
# Trap: 05.3

import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class NoisyDense(nn.Module):
    def __init__(self, i, o, sigma=0.5):
        super().__init__()
        self.w = nn.Parameter(torch.empty(o, i).uniform_(-1 / math.sqrt(i), 1 / math.sqrt(i)))
        self.b = nn.Parameter(torch.zeros(o))
        self.ws = nn.Parameter(torch.full((o, i), sigma / math.sqrt(i)))

    def forward(self, x):
        noise = torch.randn_like(self.w)  # fault
        return F.linear(x, self.w + self.ws * noise, self.b)


net = nn.Sequential(NoisyDense(4, 32), nn.ReLU(), NoisyDense(32, 2))
opt = torch.optim.Adam(net.parameters(), 1e-3)
states = torch.randn(64, 4)
for episode in range(12):
    net.train()
    for _ in range(10):
        s = torch.randn(32, 4)
        loss = F.smooth_l1_loss(net(s), s[:, :2])
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        actions = net(states).argmax(1)  # fault
