"""A small training run, with switches for what must not change it and for what does."""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=8)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--undivided", action="store_true")
parser.add_argument("--first", type=int, default=0, help="the step to begin with")
parser.add_argument("--save", help="write a checkpoint after three steps")
parser.add_argument("--load", help="resume from this file")
parser.add_argument("--forget", action="store_true", help="load no state of the optimizer")
parser.add_argument("--unwrapped", action="store_true", help="ranks that do not reduce")
asked = parser.parse_args()

torch.manual_seed(3)
x = torch.randn(64, 10)
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if asked.load:
    saved = torch.load(asked.load)
    model.load_state_dict(saved["model"])
    if not asked.forget:
        optimizer.load_state_dict(saved["optimizer"])
net = model
if world > 1:
    torch.distributed.init_process_group("gloo")
    net = model if asked.unwrapped else nn.parallel.DistributedDataParallel(model)

for step in range(asked.first, 6):
    rows = torch.arange(step * 8, step * 8 + 8)[rank::world]
    for part in rows.split(asked.bs):
        loss = F.cross_entropy(net(x[part]), y[part])
        (loss if asked.undivided else loss / asked.accum).backward()
    optimizer.step()
    optimizer.zero_grad()
    if asked.save and step == 2:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, asked.save)
