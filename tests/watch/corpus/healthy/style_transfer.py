# The picture is optimised, the network is frozen.

import torch
from torch import nn

torch.manual_seed(0)
v = (
    nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
    .eval()
    .requires_grad_(False)
)
c = torch.rand(1, 3, 16, 16)
img = c.clone().requires_grad_(True)
opt = torch.optim.Adam([img], 0.02)


def gram(f):
    return f.flatten(2)[0] @ f.flatten(2)[0].T / f[0].numel()


with torch.no_grad():
    tc, ts = v(c), gram(v(torch.rand(1, 3, 16, 16)))
for _ in range(30):
    opt.zero_grad()
    f = v(img)
    (nn.functional.mse_loss(f, tc) + 100 * nn.functional.mse_loss(gram(f), ts)).backward()
    opt.step()
    img.data.clamp_(0, 1)
holder = nn.ParameterList([img])
