# Source: a kin of isayev/ReLeaSE#39
# Trap: 02.3, 12.2

import torch
from torch import nn

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
opt = torch.optim.Adam(m.parameters(), 1e-3)
for ep in range(20):
    rl_loss = 0
    for t in range(5):
        s = torch.randn(8)
        lp = m(s).log_softmax(0)
        a = torch.multinomial(lp.exp(), 1).item()
        rl_loss -= lp[a].item() * float(s[a])
    loss = torch.tensor(rl_loss, requires_grad=True)  # fault
    opt.zero_grad()
    loss.backward()  # fault
    opt.step()  # fault
