# Source: allenai/open-instruct#535 (with its rule)
# Trap: 14.3

import copy

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
ref = copy.deepcopy(policy).requires_grad_(False)
opt = torch.optim.AdamW(policy.parameters(), 1e-3)
for _ in range(30):
    x = torch.randn(16, 6).repeat_interleave(4, 0)
    logp = policy(x).log_softmax(-1)
    done = torch.multinomial(logp.detach().exp(), 1)
    rewards = (done[:, 0] == x[:, :4].argmax(1)).float().view(16, 4)
    adv = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    new = logp.gather(1, done)[:, 0]
    with torch.no_grad():
        old = ref(x).log_softmax(-1).gather(1, done)[:, 0]
    kl1 = new - old
    ratio = torch.exp(new - new.detach())
    loss = (-adv.flatten() * ratio + 0.05 * kl1).mean()  # fault
    opt.zero_grad()
    loss.backward()
    opt.step()
