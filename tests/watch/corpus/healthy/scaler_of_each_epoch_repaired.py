# Animl-py 304: a GradScaler in the function of an epoch (with its rule): repaired

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
inputs, labels = torch.randn(96, 10), torch.randint(3, (96,))
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)


def epoch(net, opt):
    global scaler
    for rows in torch.randperm(96).split(16):
        opt.zero_grad()
        with torch.autocast("cpu"):
            loss = F.cross_entropy(net(inputs[rows]).float(), labels[rows])
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()


net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
for _ in range(5):
    epoch(net, opt)
