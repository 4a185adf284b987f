# Two generators, two critics that are frozen and thawed, a buffer of old pictures.

import itertools
import random

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
A, B, DA, DB = (
    nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, outputs)) for outputs in (4, 4, 1, 1)
)
oG = torch.optim.Adam(itertools.chain(A.parameters(), B.parameters()), 1e-3)
oD = torch.optim.Adam(itertools.chain(DA.parameters(), DB.parameters()), 1e-3)
mse = nn.MSELoss()
buf = []
for i in range(20):
    a, b = torch.randn(8, 4), torch.randn(8, 4) + 1
    [p.requires_grad_(False) for p in itertools.chain(DA.parameters(), DB.parameters())]
    fb, fa = A(a), B(b)
    loss = (
        mse(DB(fb), torch.ones(8, 1))
        + mse(DA(fa), torch.ones(8, 1))
        + 10 * (nn.functional.l1_loss(B(fb), a) + nn.functional.l1_loss(A(fa), b))
    )
    oG.zero_grad()
    loss.backward()
    oG.step()
    [p.requires_grad_(True) for p in itertools.chain(DA.parameters(), DB.parameters())]
    buf.append(fa.detach())
    old = random.choice(buf)
    oD.zero_grad()
    ((mse(DA(a), torch.ones(8, 1)) + mse(DA(old), torch.zeros(8, 1))) / 2).backward()
    ((mse(DB(b), torch.ones(8, 1)) + mse(DB(fb.detach()), torch.zeros(8, 1))) / 2).backward()
    oD.step()
