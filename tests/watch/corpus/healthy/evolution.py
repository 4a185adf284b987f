# Evolution strategies: no gradient at all.

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.manual_seed(0)
m = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).requires_grad_(False)
X = torch.randn(64, 4)
Y = (X[:, 0] > 0).long()
th = parameters_to_vector(m.parameters())
for _ in range(20):
    e = torch.randn(10, len(th))
    r = []
    for k in e:
        vector_to_parameters(th + 0.1 * k, m.parameters())
        r.append(-nn.functional.cross_entropy(m(X), Y))
    r = torch.stack(r)
    th = th + 0.05 / 0.1 * ((r - r.mean())[:, None] * e).mean(0)
vector_to_parameters(th, m.parameters())
