"""Exercise 08.8, `silu_gate`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s08.e8_silu_gate import ex


@ex.right("a divided by 1 + e^-a, where an overflow to infinity is harmless")
def divided(load, store, n, block, program):
    places = torch.arange(n).split(block)[program]
    a, b = load("a", places), load("b", places)
    store("y", places, a / (1 + torch.exp(-a)) * b)


@ex.right("torch's silu")
def by_silu(load, store, n, block, program):
    start = block * program
    places = torch.arange(start, start + block).clamp(max=n).unique()
    places = places[:-1] if places[-1] == n else places
    store("y", places, torch.nn.functional.silu(load("a", places)) * load("b", places))


@ex.right("one place after the other")
def by_place(load, store, n, block, program):
    for place in range(program * block, min(n, (program + 1) * block)):
        at = torch.tensor([place])
        a = load("a", at)
        store("y", at, load("b", at) * a / (1 + torch.exp(-a.clamp(min=-80))))


@ex.right("the exponential of the side that does not overflow")
def stable(load, store, n, block, program):
    places = torch.arange(n)[program * block:(program + 1) * block]
    b, a = load("b", places), load("a", places)
    e = (-a.abs()).exp()
    store("y", places, torch.where(a >= 0, a, a * e) / (1 + e) * b)
