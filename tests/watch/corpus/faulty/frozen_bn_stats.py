# Source: a question of the PyTorch forum: a frozen backbone in train mode
# Trap: 07.7

import torch
from torch import nn

torch.manual_seed(0)


class Body(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 16, 3),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


pre = Body()
o = torch.optim.Adam(pre.parameters())
for _ in range(10):
    o.zero_grad()
    pre(torch.randn(16, 3, 10, 10)).pow(2).mean().backward()
    o.step()
sd = {k: v.clone() for k, v in pre.state_dict().items()}
backbone = Body()
backbone.load_state_dict(sd)
backbone.requires_grad_(False)
model = nn.Sequential(backbone, nn.Linear(16, 3))
opt = torch.optim.Adam(model[1].parameters(), 1e-3)
for epoch in range(3):
    model.train()  # fault
    for _ in range(10):
        x, y = torch.randn(8, 3, 10, 10) * 2 + 3, torch.randint(0, 3, (8,))
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # fault
        opt.step()  # fault
