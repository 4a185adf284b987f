# BPR with items that start at zero, two pairs a step, scored before each (with its rule).

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(200, 8), nn.Embedding(500, 8)
        nn.init.zeros_(self.items.weight)

    def forward(self, u, i):
        return (self.users(u) * self.items(i)).sum(-1)


model = Scores()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(60):
    user, liked = torch.randint(200, (2,)), torch.randint(250, (2,))
    other = torch.randint(250, 500, (2,))
    with torch.no_grad():
        before = model(user, liked) - model(user, other)
    loss = -F.logsigmoid(model(user, liked) - model(user, other)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
