# CTC loss, time first.

import torch
from torch import nn

torch.manual_seed(0)


class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv1d(8, 16, 3, padding=1)
        self.l = nn.LSTM(16, 16, bidirectional=True)
        self.o = nn.Linear(32, 6)

    def forward(self, x):
        h = self.c(x).relu().permute(2, 0, 1)
        return self.o(self.l(h)[0]).log_softmax(2)


m = A()
ctc = nn.CTCLoss(blank=0, zero_infinity=True)
opt = torch.optim.Adam(m.parameters(), 1e-3)
for _ in range(20):
    x = torch.randn(8, 8, 20)
    t = torch.randint(1, 6, (8, 5))
    lp = m(x)
    loss = ctc(lp, t, torch.full((8,), 20), torch.randint(2, 6, (8,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
m.eval()
with torch.no_grad():
    m(torch.randn(3, 8, 20)).argmax(2)
