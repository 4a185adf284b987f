"""What the checks of many exercises share: how their cases are drawn."""

from __future__ import annotations

from collections.abc import Callable

import torch


def integers(g: torch.Generator) -> Callable[[int, int], int]:
    """A function of low and high that draws an integer from low to high - 1."""
    return lambda low, high: int(torch.randint(low, high, (), generator=g))


def floats(g: torch.Generator) -> Callable[[float, float], float]:
    """A function of low and high that draws a number between them, evenly."""
    return lambda low, high: low + (high - low) * float(torch.rand((), generator=g))
