# A range test of learning rates that diverges, then the old state.

import copy

import torch
from torch import nn

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
st = copy.deepcopy(m.state_dict())
opt = torch.optim.SGD(m.parameters(), 1e-5)
s = torch.optim.lr_scheduler.ExponentialLR(opt, 1.5)
X = torch.randn(256, 6)
Y = X.sum(1, keepdim=True)
best = 1e9
for i in range(60):
    j = torch.randint(0, 256, (32,))
    opt.zero_grad()
    loss = nn.functional.mse_loss(m(X[j]), Y[j])
    loss.backward()
    opt.step()
    s.step()
    if loss.item() > 4 * best:
        break
    best = min(best, loss.item())
m.load_state_dict(st)
opt = torch.optim.SGD(m.parameters(), 1e-2)
for i in range(30):
    j = torch.randint(0, 256, (32,))
    opt.zero_grad()
    nn.functional.mse_loss(m(X[j]), Y[j]).backward()
    opt.step()
