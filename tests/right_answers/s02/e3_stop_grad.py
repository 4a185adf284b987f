"""Exercise 02.3, `stop_grad`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s02.e3_stop_grad import ex


@ex.right("clone first, then detach")
def clone_first(t):
    return t.clone().detach()


@ex.right("a clone made without recording")
def by_no_grad(t):
    with torch.no_grad():
        return t.clone()


@ex.right("a new tensor, filled")
def by_filling(t):
    return torch.empty_like(t, requires_grad=False).copy_(t.detach())


@ex.right("by way of numpy")
def by_numpy(t):
    return torch.from_numpy(t.detach().numpy().copy())


@ex.right("by way of Python numbers, in the same form")
def by_numbers(t):
    return torch.tensor(t.tolist(), dtype=t.dtype).reshape(t.shape)


@ex.right("times one")
def by_product(t):
    return t.detach() * 1
