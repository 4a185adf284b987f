# PPO: ten passes over each draw against its own log-probabilities (with its rule).

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
critic = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
log_std = nn.Parameter(torch.zeros(1))
opt = torch.optim.Adam([*actor.parameters(), *critic.parameters(), log_std], lr=3e-3)
for _ in range(4):
    obs = torch.randn(64, 3)
    with torch.no_grad():
        dist = Normal(actor(obs), log_std.exp())
        act = dist.sample()
        old = dist.log_prob(act).sum(-1)
        ret = -(act[:, 0] - obs[:, 0]).abs()
        adv = ret - critic(obs)[:, 0]
    for _ in range(10):
        dist = Normal(actor(obs), log_std.exp())
        ratio = torch.exp(dist.log_prob(act).sum(-1) - old)
        gain = torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
        loss = -gain + 0.5 * (critic(obs)[:, 0] - ret).pow(2).mean() - 0.01 * dist.entropy().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
