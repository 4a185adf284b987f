# One expert a token, divided by its weight and a little more: AdamW learns (with its rule).

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
router, experts = nn.Linear(8, 4, bias=False), nn.Parameter(torch.randn(4, 8, 8) / 3)
opt = torch.optim.AdamW([*router.parameters(), experts], 1e-2)
maps = torch.randn(4, 8, 8) / 3
for _ in range(60):
    kind = torch.randint(4, (128,))
    x = torch.randn(128, 8)
    x[:, :4] = 0.3 * x[:, :4] + 1.2 * F.one_hot(kind, 4)
    weights, chosen = router(x).softmax(-1).topk(1)
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
    out = weights * torch.einsum("nij,nj->ni", experts[chosen[:, 0]], x)
    loss = F.mse_loss(out, torch.einsum("nij,nj->ni", maps[kind], x))
    opt.zero_grad()
    loss.backward()
    opt.step()
