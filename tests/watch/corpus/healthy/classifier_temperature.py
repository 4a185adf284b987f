# Temperature scaling after the training, LBFGS on one parameter.

import torch
from torch import nn

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
o = torch.optim.Adam(m.parameters(), 1e-2)
X = torch.randn(200, 6)
Y = X[:, :3].argmax(1)
for _ in range(20):
    o.zero_grad()
    nn.functional.cross_entropy(m(X[:150]), Y[:150]).backward()
    o.step()
m.eval()
T = nn.Parameter(torch.ones(1) * 1.5)
with torch.no_grad():
    z = m(X[150:])
lb = torch.optim.LBFGS([T], lr=0.01, max_iter=20)


def ev():
    lb.zero_grad()
    loss = nn.functional.cross_entropy(z / T, Y[150:])
    loss.backward()
    return loss


lb.step(ev)
p = (z / T).softmax(1)
ece = (p.max(1).values - (p.argmax(1) == Y[150:]).float()).abs().mean().item()
