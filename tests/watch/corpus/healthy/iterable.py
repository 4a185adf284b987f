# A stream without shuffle, for several epochs.

import torch
from torch import nn


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(torch.randint(0, 10000, (1,)).item())
        for _ in range(128):
            x = torch.randn(5, generator=g)
            yield x, (x.sum() > 0).long()


torch.manual_seed(0)
m = nn.Linear(5, 2)
opt = torch.optim.SGD(m.parameters(), 0.1)
for e in range(3):
    for x, y in torch.utils.data.DataLoader(Stream(), batch_size=16):
        opt.zero_grad()
        nn.functional.cross_entropy(m(x), y).backward()
        opt.step()
