# Source: a question of the Hugging Face forum: a loop of accelerate without zero_grad
# Trap: 02.1

import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
acc = Accelerator(cpu=True)
m = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
opt = torch.optim.AdamW(m.parameters(), 1e-3)
X = torch.randn(256, 8)
dl = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(X, X[:, :3].argmax(1)), 16, shuffle=True
)
m, opt, dl = acc.prepare(m, opt, dl)
for e in range(2):
    for x, y in dl:
        loss = nn.functional.cross_entropy(m(x), y)
        acc.backward(loss)  # fault
        opt.step()  # fault
