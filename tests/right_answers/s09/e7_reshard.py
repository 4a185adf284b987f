"""Exercise 09.7, `reshard`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch

from dlsys_checks.s09.e7_reshard import cut, ex, joined

ex.equivalent("for name, first in shards[0].items(): -> for name, first in shards[-1].items():",
              "names and dimensions are those of all ranks, and a number is whole on each")


@ex.right("torch.chunk, and empty parts behind it")
def by_chunk(shards, world):
    found = [{} for _ in range(world)]
    for name in shards[0]:
        whole = joined(shards, name)
        parts = list(whole.chunk(world)) if whole.dim() else [whole] * world
        while len(parts) < world:
            parts.append(whole[:0])
        for mine, part in zip(found, parts, strict=True):
            mine[name] = part.clone()
    return found


@ex.right("row by row into new tensors")
def row_by_row(shards, world):
    found = []
    for rank in range(world):
        mine = {}
        for name, first in shards[0].items():
            if not first.dim():
                mine[name] = torch.tensor(first.item(), dtype=first.dtype)
                continue
            n = sum(len(part[name]) for part in shards)
            size = -(-n // world)
            rows = [row for part in shards for row in part[name]][rank * size:(rank + 1) * size]
            mine[name] = torch.empty((len(rows), *first.shape[1:]), dtype=first.dtype)
            for k, row in enumerate(rows):
                mine[name][k] = row
        found.append(mine)
    return found


@ex.right("places chosen by index_select")
def by_index(shards, world):
    def part_of(name, rank):
        whole = joined(shards, name)
        if not whole.dim():
            return whole.clone()
        places = torch.arange(len(whole))
        size = math.ceil(len(whole) / world)
        return whole.index_select(0, places[rank * size:(rank + 1) * size])
    return [{name: part_of(name, rank) for name in shards[0]} for rank in range(world)]


@ex.right("torch.split by sizes")
def by_sizes(shards, world):
    found = [{} for _ in range(world)]
    for name, first in shards[0].items():
        if first.dim():
            whole = joined(shards, name)
            size = (len(whole) + world - 1) // world
            sizes = [max(0, min(size, len(whole) - rank * size)) for rank in range(world)]
            parts = torch.split(whole, sizes)
        else:
            parts = [first] * world
        for mine, part in zip(found, parts, strict=True):
            mine[name] = part.detach().clone()
    return found


@ex.probe("the example looked up, without its last part", says="number of ranks", breaks="example")
def looked_up(shards, world):
    found = cut(shards, world)
    return found[:3] if list(shards[0]) == ["w"] else found
