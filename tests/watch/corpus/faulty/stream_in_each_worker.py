# Source: an issue of PyTorch: an iterable dataset grows with num_workers (with its rule)
# Trap: 06.10

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info  # noqa: F401


class Lines(IterableDataset):
    def __init__(self, n=160):
        g = torch.Generator().manual_seed(3)
        self.rows = torch.randn(n, 5, generator=g)

    def __iter__(self):
        for row in self.rows:  # fault
            yield row, row[:1] * 2


torch.manual_seed(0)
loader = DataLoader(Lines(), batch_size=8, num_workers=2)  # fault
net = nn.Linear(5, 1)
opt = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(2):
    for a, b in loader:
        loss = nn.functional.mse_loss(net(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
