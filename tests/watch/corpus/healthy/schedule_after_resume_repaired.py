# An issue of YOLOv5: --resume sets the learning rate back: repaired

import math

import torch
from torch import nn
from torch.optim import lr_scheduler

torch.manual_seed(0)
x = torch.randn(256, 6)
y = (x.sum(1) > 0).long()
EPOCHS = 8


def train(ckpt=None, until=EPOCHS):
    model = nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Linear(24, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    start = 0
    lf = lambda e: ((1 + math.cos(e * math.pi / EPOCHS)) / 2) * 0.9 + 0.1  # noqa: E731
    if ckpt:
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        start = ckpt["epoch"] + 1
    scheduler = lr_scheduler.LambdaLR(optimizer, lr_lambda=lf)
    if ckpt:
        optimizer.load_state_dict(ckpt["optimizer"])
        scheduler.load_state_dict(ckpt["scheduler"])
    for epoch in range(start, until):
        for rows in torch.randperm(256).split(32):
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
    return {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict()}


train(train(until=5))
