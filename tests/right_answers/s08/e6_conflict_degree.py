"""Exercise 08.6, `conflict_degree`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

from collections import Counter

import torch

from dlsys_checks.s08.e6_conflict_degree import ex, turns


@ex.right("words counted by bank")
def by_counter(addresses):
    words = {a // 4 for a in addresses if a is not None}
    return max(Counter(w % 32 for w in words).values(), default=0)


@ex.right("turn after turn")
def by_turns(addresses):
    left, turns = {a >> 2 for a in addresses if a is not None}, 0
    while left:
        left -= set({w & 31: w for w in left}.values())
        turns += 1
    return turns


@ex.right("a list of sets")
def by_sets(addresses):
    banks = [set() for _ in range(32)]
    for a in addresses:
        if a is not None:
            banks[a // 4 % 32].add(a - a % 4)
    return max(len(bank) for bank in banks)


@ex.right("torch's bincount")
def by_bincount(addresses):
    read = torch.tensor([a for a in addresses if a is not None], dtype=torch.long)
    return int(torch.bincount((read // 4).unique() % 32, minlength=32).max())


ex.probe("the example looked up wrong",
         lambda addresses: 3 if addresses == [0, 128, 2, None] else turns(addresses), says="turns",
         breaks="example")
