"""Exercise 08.5, `sectors`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s08.e5_sectors import SECTOR, ex


@ex.right("first and last sector of each read")
def by_ends(addresses, size):
    found = []
    for k in range(0, len(addresses), 32):
        read = [a for a in addresses[k:k + 32] if a is not None]
        found.append(len({a // SECTOR for a in read}
                         | {(a + size - 1) // SECTOR for a in read}))
    return found


@ex.right("every byte")
def by_bytes(addresses, size):
    warps = [addresses[k:k + 32] for k in range(0, len(addresses), 32)]
    return [len({(a + b) // SECTOR for a in w if a is not None for b in range(size)})
            for w in warps]


@ex.right("sorted, and counted where the sector changes")
def by_sorting(addresses, size):
    found = []
    while addresses:
        warp, addresses = addresses[:32], addresses[32:]
        ids = sorted(s for a in warp if a is not None
                     for s in (a // SECTOR, (a + size - 1) // SECTOR))
        found.append(sum(x != y for x, y in zip(ids, [-1, *ids], strict=False)))
    return found


@ex.right("torch's unique")
def by_unique(addresses, size):
    found = []
    for k in range(0, len(addresses), 32):
        a = torch.tensor([x for x in addresses[k:k + 32] if x is not None], dtype=torch.long)
        ends = torch.cat([a // SECTOR, (a + size - 1) // SECTOR])
        found.append(ends.unique().numel())
    return found


ex.equivalent("touched.update((first // 32, last // 32)) -> touched.update((last // 32, first // "
              "32))", "A set keeps no order.")
