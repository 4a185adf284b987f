# Source: microsoft/ProDA#20
# Trap: 11.3, 03.1

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
teacher = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 5, 1)).eval()
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1))
opt = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
for it in range(20):
    img = torch.randn(4, 3, 8, 8)
    lab = torch.randint(0, 5, (4, 8, 8))
    out = model(img)
    loss = F.cross_entropy(out, lab)
    student = F.softmax(out, dim=1)
    with torch.no_grad():
        t = F.softmax(teacher(img), dim=1)
    loss_kd = F.kl_div(student, t, reduction="none")  # fault
    mask = (t != 250).float()
    loss_kd = (loss_kd * mask).sum() / mask.sum()
    loss = loss + 1.0 * loss_kd
    opt.zero_grad()
    loss.backward()
    opt.step()
