"""Data that needs no download: scikit-learn's digits and seeded toys."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor


class Split(NamedTuple):
    """Training and test data: x float32 (N, F), y int64 (N,)."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def digits() -> Split:
    """1,300 training and 497 test digits of 8 x 8 pixels, brightness 0 to 1, flat: (N, 64).

    The split is one fixed permutation, whatever the lesson's seed.
    Source: scikit-learn's `load_digits`, from the UCI optical digits test set.
    """
    x, y = (part.clone() for part in _shuffled())
    return Split(x[:1300], y[:1300], x[1300:], y[1300:])


@cache
def _shuffled() -> tuple[Tensor, Tensor]:
    """All 1,797 digits in the order of the split; they are parsed from text, which is slow."""
    from sklearn.datasets import load_digits
    raw = load_digits()
    order = torch.randperm(len(raw.target), generator=torch.Generator().manual_seed(0))
    return (torch.tensor(raw.data, dtype=torch.float32)[order] / 16,
            torch.tensor(raw.target, dtype=torch.int64)[order])


def xor_quadrants(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """n points in the square [-1, 1)^2, label 1 where the signs differ: x (n, 2), y (n,) int64.

    Raises ValueError for n < 1.
    """
    if n < 1:
        raise ValueError(f"n: got {n}, expected at least 1 point.")
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return x, (x[:, 0] * x[:, 1] < 0).long()
