# Checkpoints without dropout need no random state; rows are drawn outside (with its rule).

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

torch.manual_seed(0)
random.seed(0)
stem = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
body, drop, head = nn.Linear(32, 32), nn.Dropout(0.2), nn.Linear(32, 4)
opt = torch.optim.AdamW([*stem.parameters(), *body.parameters(), *head.parameters()], 1e-3)
data = torch.randn(256, 16)
for _ in range(20):
    x = data[random.sample(range(256), 32)]
    h = checkpoint_sequential(stem, 2, x, use_reentrant=False, preserve_rng_state=False)
    h = checkpoint(lambda t: F.relu(body(t)), h, use_reentrant=False, preserve_rng_state=False)
    opt.zero_grad()
    F.cross_entropy(head(drop(h)), x[:, :4].argmax(1)).backward()
    opt.step()
