# Source: tensorforce/tensorforce#312 (with its rule)
# Trap: 14.4

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
pi = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
v = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam([*pi.parameters(), *v.parameters()], lr=3e-3)
for _ in range(4):
    obs = torch.randn(100, 4)
    with torch.no_grad():
        act = Categorical(logits=pi(obs)).sample()
        ret = (act == obs[:, :3].argmax(1)).float() + 0.1 * torch.randn(100)
        adv = ret - v(obs)[:, 0]
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for _ in range(5):
        logp = Categorical(logits=pi(obs)).log_prob(act)
        ratio = torch.exp(logp - logp.detach())
        surr1 = ratio * adv  # fault
        surr2 = torch.clamp(ratio, 0.8, 1.2) * adv
        loss = -torch.min(surr1, surr2).mean() + 0.5 * (v(obs)[:, 0] - ret).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
