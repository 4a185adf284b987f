# Source: a question of Stack Overflow: data sorted by class, not shuffled
# Trap: 06.1, 12.7, 06.5

import torch
from torch import nn

torch.manual_seed(0)
Y = torch.arange(5).repeat_interleave(64)
X = torch.randn(320, 8) + Y[:, None]
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=32)  # fault
m = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))
opt = torch.optim.Adam(m.parameters(), 1e-3)
for e in range(4):
    for x, y in loader:  # fault
        opt.zero_grad()
        nn.functional.cross_entropy(m(x), y).backward()
        opt.step()
