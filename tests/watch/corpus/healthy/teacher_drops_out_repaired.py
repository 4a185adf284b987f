# Yxuansu/TaCL 11: a teacher that was never put into eval mode (with its rule): repaired

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 10)
y = x[:, :4].argmax(1)
teacher = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.4), nn.Linear(64, 4))
opt = torch.optim.AdamW(teacher.parameters(), lr=1e-2)
for rows in torch.arange(256).split(32):
    opt.zero_grad()
    F.cross_entropy(teacher(x[rows]), y[rows]).backward()
    opt.step()
held = {name: value.clone() for name, value in teacher.state_dict().items()}
teacher = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.4), nn.Linear(64, 4))
teacher.load_state_dict(held)
teacher.requires_grad_(False).eval()
student = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4))
opt = torch.optim.AdamW(student.parameters(), lr=1e-2)
for _ in range(3):
    for rows in torch.randperm(256).split(32):
        with torch.no_grad():
            soft = F.softmax(teacher(x[rows]) / 2, dim=1)
        loss = F.kl_div(F.log_softmax(student(x[rows]) / 2, dim=1), soft, reduction="batchmean")
        opt.zero_grad()
        loss.backward()
        opt.step()
