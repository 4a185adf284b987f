# Source: Hsintien-Ng/idinvert_pytorch-reproduced#1
# Trap: 02.1

import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
D = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
optimizer_G = torch.optim.Adam(G.parameters(), 1e-3, betas=(0.5, 0.99))
optimizer_D = torch.optim.Adam(D.parameters(), 1e-3, betas=(0.5, 0.99))
bce = nn.BCEWithLogitsLoss()
for it in range(30):
    real = torch.randn(32, 4) * 0.5 + 1
    fake = G(torch.randn(32, 8))
    loss_D = bce(D(real), torch.ones(32, 1)) + bce(D(fake.detach()), torch.zeros(32, 1))
    loss_D.backward()
    optimizer_D.step()  # fault
    optimizer_G.zero_grad()
    loss_G = bce(D(fake), torch.ones(32, 1))
    loss_G.backward()
    optimizer_G.step()
