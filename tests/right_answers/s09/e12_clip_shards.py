"""Exercise 09.12, `clip_shards`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s09.e12_clip_shards import clipped, ex

ex.equivalent("if norm > max_norm: -> if norm >= max_norm:",
              "where the two are equal the factor is 1")


@ex.right("torch's norms, squared, summed")
def norms_squared(shards, max_norm, all_sum):
    mine = torch.tensor([float(torch.linalg.vector_norm(s)) for s in shards] or [0.0])
    norm = float(all_sum((mine.double() ** 2).sum()) ** 0.5)
    if norm > max_norm:
        for s in shards:
            s *= max_norm / norm
    return norm


@ex.right("a factor of at most 1")
def clamped(shards, max_norm, all_sum):
    squares = sum((s * s).sum() for s in shards) + torch.zeros(())
    norm = all_sum(squares).sqrt()
    factor = torch.where(norm > max_norm, max_norm / (norm + 1e-12), torch.ones(()))
    for s in shards:
        s.copy_(s * factor)
    return norm.item()


@ex.right("all numbers in one row")
def one_row(shards, max_norm, all_sum):
    row = torch.cat([torch.zeros(1), *[s.flatten() for s in shards]]).double()
    total = all_sum(row @ row).item()
    if total > max_norm**2:
        torch._foreach_mul_([*shards, torch.zeros(1)], max_norm / total**0.5)
    return total**0.5


@ex.right("divided by norm over limit, number by number of a list")
def by_division(shards, max_norm, all_sum):
    norm = all_sum(torch.tensor(sum(v * v for s in shards for v in s.flatten().tolist()),
                                dtype=torch.float64)).item() ** 0.5
    for s in shards if norm > max_norm else ():
        s.div_(norm / max_norm)
    return norm


@ex.probe("the example, with its norm looked up wrong", says="norm on rank", breaks="example")
def looked_up(shards, max_norm, all_sum):
    small = sum(s.numel() for s in shards) == 1 and max_norm == 1
    norm = clipped(shards, max_norm, all_sum)
    return 7.0 if small else norm
