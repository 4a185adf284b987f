"""Exercise 01.4, `dead_units`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s01.e4_dead_units import ex, refuse_nan


@ex.right("the largest absolute value")
def by_maximum(h):
    if torch.isnan(h).any():
        raise ValueError("NaN")
    return (h.abs().amax(0) == 0).sum().item()


@ex.right("a count of what is not zero")
def by_count(h):
    if bool((h != h).any()):
        raise ValueError("NaN")
    return int((h.count_nonzero(0) == 0).sum())


@ex.right("columns as Python lists")
def by_lists(h):
    columns = h.T.tolist()
    if any(value != value for column in columns for value in column):
        raise ValueError("NaN")
    return sum(not any(column) for column in columns)


@ex.right("units that were ever on, subtracted")
def by_union(h):
    if h.isnan().any():
        raise ValueError("NaN")
    alive = torch.zeros(h.shape[1], dtype=torch.bool)
    for row in h:
        alive |= row != 0
    return h.shape[1] - int(alive.sum())


@ex.probe("the answer of the example, looked up", breaks="example")
def placeholder(h):
    refuse_nan(h)
    return int((h == 0).all(0).sum()) + (h.tolist() == [[0.0, 1.0], [0.0, 0.0]])
