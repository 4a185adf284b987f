# Spectral, weight and orthogonal parametrizations.

import torch
from torch import nn
from torch.nn.utils import parametrizations as P

torch.manual_seed(0)
m = nn.Sequential(
    P.spectral_norm(nn.Linear(8, 16)),
    nn.ReLU(),
    P.weight_norm(nn.Linear(16, 16)),
    nn.ReLU(),
    P.orthogonal(nn.Linear(16, 16)),
    nn.Linear(16, 2),
)
opt = torch.optim.Adam(m.parameters(), 1e-3)
for e in range(3):
    m.train()
    for _ in range(10):
        x = torch.randn(16, 8)
        opt.zero_grad()
        nn.functional.cross_entropy(m(x), (x[:, 0] > 0).long()).backward()
        opt.step()
    m.eval()
    with torch.no_grad():
        m(torch.randn(8, 8))
