# Source: StarsfieldAI/R1-V#67 (with its rule)
# Trap: 14.2

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
opt = torch.optim.AdamW(policy.parameters(), 1e-3)
num_generations = 4
for _ in range(30):
    prompts = torch.randn(8, 6)
    inputs = prompts.repeat(num_generations, 1)  # P1 P2 ... P8 P1 P2 ...
    logp = policy(inputs).log_softmax(-1)
    done = torch.multinomial(logp.detach().exp(), 1)
    rewards = (done[:, 0] == inputs[:, :4].argmax(1)).float() + inputs[:, 4]
    mean = rewards.view(-1, num_generations).mean(dim=1)  # fault
    std = rewards.view(-1, num_generations).std(dim=1)
    mean = mean.repeat_interleave(num_generations)
    std = std.repeat_interleave(num_generations)
    advantages = (rewards - mean) / (std + 1e-4)
    loss = -(advantages * logp.gather(1, done)[:, 0]).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
