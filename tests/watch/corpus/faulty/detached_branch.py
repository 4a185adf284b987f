# Source: queenie88/A-GCN#4
# Trap: 12.2, 04.7, 02.3, 07.10

import torch
from torch import nn

torch.manual_seed(0)


class AGCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.W_phi = nn.Linear(8, 8)
        self.W_theta = nn.Linear(8, 8)
        self.gc = nn.Linear(8, 16)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        adj = torch.softmax(self.W_phi(x) @ self.W_theta(x).transpose(1, 2), -1)
        adj = adj.detach()  # fault
        return self.out((adj @ self.gc(x)).relu().mean(1))


m = AGCN()
opt = torch.optim.Adam(m.parameters(), 1e-3)
for i in range(30):
    x = torch.randn(16, 5, 8)
    y = x[:, 0, :3].argmax(1)
    opt.zero_grad()
    nn.functional.cross_entropy(m(x), y).backward()
    opt.step()  # fault
