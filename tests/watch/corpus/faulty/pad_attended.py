# Source: a kin of jingyaogong/minimind-v#76
# Trap: 08.2

import torch
from torch import nn

torch.manual_seed(0)


class C(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(50, 16, padding_idx=0)
        self.t = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)
        self.o = nn.Linear(16, 2)

    def forward(self, x):
        return self.o(self.t(self.e(x))[:, 0])  # fault


m = C()
opt = torch.optim.Adam(m.parameters(), 1e-3)
for _ in range(25):
    x = torch.randint(1, 50, (16, 12))
    n = torch.randint(3, 12, (16,))
    x = x * (torch.arange(12)[None] < n[:, None])
    opt.zero_grad()
    nn.functional.cross_entropy(m(x), (x[:, 0] > 25).long()).backward()
    opt.step()
