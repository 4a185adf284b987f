# Embeddings of columns, a sparse and a dense optimizer.

import torch
from torch import nn

torch.manual_seed(0)
e1 = nn.Embedding(500, 8, sparse=True)
mlp = nn.Sequential(nn.Linear(11, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
o1 = torch.optim.SparseAdam(e1.parameters(), 1e-2)
o2 = torch.optim.AdamW(mlp.parameters(), 1e-3)
for _ in range(30):
    i = torch.randint(0, 500, (16,))
    x = torch.randn(16, 3)
    p = mlp(torch.cat([e1(i), x], 1)).squeeze(-1)
    loss = nn.functional.huber_loss(p, x.sum(1))
    o1.zero_grad()
    o2.zero_grad()
    loss.backward()
    o1.step()
    o2.step()
