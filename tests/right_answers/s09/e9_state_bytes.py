"""Exercise 09.9, `state_bytes`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch

from dlsys_checks.s09.e9_state_bytes import SIZES, SPLIT, ex, tabled
from dlsys_helpers.judging import unguarded


@ex.right("two tables")
def two_tables(tensors, layout, gpus, shard):
    return unguarded(tabled)(tensors, layout, gpus, shard)


@ex.right("sums of values first, with their tables last")
def sums_first(tensors, layout, gpus, shard):
    held = {(cut, kept): sum((n + gpus - 1) // gpus if cut else n
                             for n, trained in tensors if trained or not kept)
            for cut in (0, 1) for kept in (0, 1)}
    return sum(size * held[cut, int(k > 0)] for k, (size, cut) in
               enumerate(zip(SIZES[layout], SPLIT[shard], strict=True)))


@ex.right("meta tensors and their bytes")
def by_meta(tensors, layout, gpus, shard):
    small = torch.bfloat16 if layout in ("bfloat16", "master") else torch.float32
    moments = torch.bfloat16 if layout == "bfloat16" else torch.float32
    total = 0
    for n, trained in tensors:
        made = [("all", small)]
        if trained:
            made += [("gradients", small)] + [("state", moments)] * (3 if layout == "master" else 2)
        for level, dtype in made:
            order = ["none", "state", "gradients", "all"]
            cut = order.index(shard) >= order.index(level)
            count = math.ceil(n / gpus) if cut else n
            total += torch.empty(count, dtype=dtype, device="meta").nbytes
    return total


@ex.right("by recursion over the tensors")
def recursive(tensors, layout, gpus, shard):
    if not tensors:
        return 0
    (n, trained), *rest = tensors
    share = divmod(n, gpus)[0] + bool(n % gpus)
    weight = SIZES[layout][0] * (share if shard == "all" else n)
    if trained:
        weight += SIZES[layout][1] * (n if shard in ("none", "state") else share)
        weight += sum(SIZES[layout][2:]) * (n if shard == "none" else share)
    return weight + recursive(rest, layout, gpus, shard)
