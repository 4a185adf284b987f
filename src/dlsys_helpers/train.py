"""The plain training loop that lessons use where the loop itself is not the subject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def fit(model: nn.Module, x: Tensor, y: Tensor, *, steps: int, lr: float,
        loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
        batch: int = 64) -> list[float]:
    """Train in place on random batches (with replacement); returns the loss of every step.

    x: (N, ...), y: (N, ...). Batches come from torch's global RNG, which `begin` has seeded.
    Leaves the model in train mode. Raises ValueError for steps or batch below 1.
    """
    if steps < 1 or batch < 1:
        raise ValueError(f"fit: got steps={steps}, batch={batch}, expected both at least 1.")
    model.train()
    opt, losses = optimizer(model.parameters(), lr=lr), []
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,))
        value = loss(model(x[rows]), y[rows])
        opt.zero_grad()
        value.backward()
        opt.step()
        losses.append(value.item())
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of rows whose largest logit is the label, 0 to 1; x (N, ...), y (N,) int64.

    Measured in eval mode; every module gets its former mode back.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    share = (model(x).argmax(1) == y).float().mean().item()
    for module, mode in modes:
        module.training = mode
    return share
