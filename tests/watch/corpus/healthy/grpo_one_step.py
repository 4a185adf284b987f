# GRPO with one step a draw: the ratio is 1 by construction (with its rule).

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
opt = torch.optim.AdamW(policy.parameters(), 1e-3)
prompts = torch.randn(16, 6)
for _ in range(30):
    x = prompts.repeat_interleave(8, 0)
    logp = policy(x).log_softmax(-1)
    done = torch.multinomial(logp.detach().exp(), 1)
    rewards = ((done[:, 0] == x[:, :4].argmax(1)).float() + 0.1 * torch.rand(128)).view(16, 8)
    adv = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    adv = adv.flatten()
    new = logp.gather(1, done)[:, 0]
    ratio = torch.exp(new - new.detach())
    loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
