# Source: no single thread, a pattern of many: bfloat16 weights and a small learning rate
# Trap: 09.8

import torch
from torch import nn

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(torch.bfloat16)
opt = torch.optim.AdamW(m.parameters(), lr=1e-5, weight_decay=0.01)
for _ in range(40):
    x = torch.randn(32, 16)
    y = x[:, :4].argmax(1)
    loss = nn.functional.cross_entropy(m(x.bfloat16()).float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()  # fault
