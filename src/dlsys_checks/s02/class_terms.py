"""What is added up for the gradient of a mean cross-entropy, for `common.Twin`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F


def class_terms(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None = None) -> Callable:
    """The terms of the gradient, row by row and class by class: probability and label apart.

    A label below 0 does not count. weight: of each class, as in F.cross_entropy.
    """
    x, y = x[y >= 0], y[y >= 0]
    share = torch.ones(len(y), dtype=x.dtype) if weight is None else weight.to(x.dtype)[y]

    def rows(net: Callable) -> torch.Tensor:
        logits = net(x)
        size = logits.detach().softmax(1) + F.one_hot(y, logits.shape[1])
        return size * (share / share.sum())[:, None] * logits
    return rows
