# A graph network on its full batch, the same data in each step.

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
N = 60
A = (torch.rand(N, N) < 0.1).float()
A = ((A + A.T + torch.eye(N)) > 0).float()
d = A.sum(1).rsqrt()
A = d[:, None] * A * d
X = torch.randn(N, 8)
Y = torch.randint(0, 3, (N,))
tr = torch.arange(N) < 30


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        x = F.dropout(F.relu(A @ self.a(x)), 0.5, training=self.training)
        return F.log_softmax(A @ self.b(x), 1)


m = GCN()
opt = torch.optim.Adam(m.parameters(), 0.01, weight_decay=5e-4)
for e in range(40):
    m.train()
    opt.zero_grad()
    F.nll_loss(m(X)[tr], Y[tr]).backward()
    opt.step()
    m.eval()
    with torch.no_grad():
        (m(X).argmax(1) == Y)[~tr].float().mean()
