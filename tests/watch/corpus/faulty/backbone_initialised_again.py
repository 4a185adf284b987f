# Source: a pull request of AdaInt: init_weights overrides the backbone (with its rule)
# Trap: 10.5

import torch
from torch import nn


def resnetish():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(4), nn.Flatten())


WEIGHTS = {k: v + 0.01 for k, v in resnetish().state_dict().items() if v.is_floating_point()}


class Enhancer(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = resnetish()
        self.backbone.load_state_dict(WEIGHTS, strict=False)  # fault
        self.head = nn.Linear(128, 3)
        self.init_weights()

    def init_weights(self):
        for m in self.modules():  # fault
            if hasattr(m, "reset_parameters"):
                m.reset_parameters()  # fault

    def forward(self, x):
        return self.head(self.backbone(x))


torch.manual_seed(1)
net = Enhancer()
optim = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
for _ in range(15):
    x = torch.rand(16, 1, 12, 12)
    optim.zero_grad(set_to_none=True)
    (net(x) - x.mean((1, 2, 3))[:, None]).square().mean().backward()
    optim.step()
