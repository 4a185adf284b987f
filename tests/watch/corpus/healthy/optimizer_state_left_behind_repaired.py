# A trainer that resumes before its optimizer exists (with its rule): repaired

import io

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(80, 5)
y = (x[:, 0] * x[:, 1]).sign()


class Trainer:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 1))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=5e-3)

    def resume(self, file):
        file.seek(0)
        held = torch.load(file)
        self.net.load_state_dict(held["net"])
        if self.opt is not None:
            self.opt.load_state_dict(held["opt"])

    def fit(self, steps):
        if self.opt is None:
            self.opt = torch.optim.Adam(self.net.parameters(), lr=5e-3)
        for _ in range(steps):
            self.opt.zero_grad()
            F.soft_margin_loss(self.net(x).squeeze(1), y).backward()
            self.opt.step()


first, again, file = Trainer(), Trainer(), io.BytesIO()
first.fit(10)
torch.save({"net": first.net.state_dict(), "opt": first.opt.state_dict()}, file)
again.resume(file)
again.fit(10)
