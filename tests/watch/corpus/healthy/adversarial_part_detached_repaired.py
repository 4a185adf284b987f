# nikhilsinghmus/image2reverb#37: a detached fake in the generator's loss: repaired

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
cond = torch.randn(128, 6)
spec = torch.tanh(cond @ torch.randn(6, 20))
gen = nn.Sequential(nn.Linear(10, 32), nn.LeakyReLU(0.2), nn.Linear(32, 20), nn.Tanh())
dis = nn.Sequential(nn.Linear(26, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
g_optim = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.5, 0.999))
d_optim = torch.optim.Adam(dis.parameters(), lr=1e-3, betas=(0.5, 0.999))


def draw(given):
    return gen(torch.cat([given, torch.randn(len(given), 4)], 1))


for _ in range(3):
    for rows in torch.randperm(128).split(16):
        fake = draw(cond[rows])
        d_fake = dis(torch.cat([fake, cond[rows]], 1))
        g_loss = F.mse_loss(d_fake, torch.ones_like(d_fake)) + 10 * F.l1_loss(fake, spec[rows])
        g_optim.zero_grad()
        g_loss.backward()
        g_optim.step()
        with torch.no_grad():
            fake = draw(cond[rows])
        d_fake = dis(torch.cat([fake, cond[rows]], 1))
        d_real = dis(torch.cat([spec[rows], cond[rows]], 1))
        d_loss = F.mse_loss(d_real, torch.ones_like(d_real)) + d_fake.square().mean()
        d_optim.zero_grad()
        d_loss.backward()
        d_optim.step()
