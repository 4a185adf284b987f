"""Exercise 09.4, `comm_plan`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s09.e4_comm_plan import BYTES, DTYPE, ex, planned

ex.equivalent("if world == 1: -> if world <= 1:", "a world has one rank at least")


def pieces_of(sizes, world, each):
    sizes = sizes if each else [sum(sizes)]
    return [n + -n % world for n in sizes if n]


def plan(gathers, scatters, numbers, whole):
    return {"all_gather": gathers, "reduce_scatter": scatters, "bytes": BYTES * numbers,
            "whole": BYTES * whole}


@ex.right("sums over the padded pieces")
def by_sums(sizes, world, each, reshard):
    if world == 1:
        return plan(0, 0, 0, sum(sizes))
    pieces, times = pieces_of(sizes, world, each), 2 if reshard else 1
    return plan(times * len(pieces), len(pieces), (times + 1) * sum(pieces),
                max(pieces, default=0) if reshard else sum(pieces))


@ex.right("piece by piece")
def one_by_one(sizes, world, each, reshard):
    gathers = scatters = numbers = whole = 0
    for n in (sizes if each else [sum(sizes)]) if world > 1 else []:
        n = (n + world - 1) // world * world
        gathers += (1 + reshard) * (n > 0)
        scatters += n > 0
        numbers += (2 + reshard) * n
        whole = max(whole, n) if reshard else whole + n
    return plan(gathers, scatters, numbers, whole if world > 1 else sum(sizes))


@ex.right("bytes by tensors without memory")
def by_tensors(sizes, world, each, reshard):
    if world == 1:
        return plan(0, 0, 0, sum(sizes))
    nbytes = [torch.empty(n, dtype=DTYPE, device="meta").nbytes
              for n in pieces_of(sizes, world, each)]
    gathers = nbytes * (1 + int(reshard))
    return {"all_gather": len(gathers), "reduce_scatter": len(nbytes),
            "bytes": sum(gathers) + sum(nbytes),
            "whole": max([0, *nbytes]) if reshard else sum(nbytes)}


@ex.right("as many shards as ranks")
def by_shards(sizes, world, each, reshard):
    shards = [-(-n // world) for n in (sizes if each else [sum(sizes)]) if n and world > 1]
    rounds = len(shards) + len(shards) * reshard
    whole = (max(shards, default=0) if reshard else sum(shards)) * world
    return plan(rounds, len(shards), world * sum(shards) * (3 if reshard else 2),
                whole if world > 1 else sum(sizes))


@ex.probe("the example, with its bytes looked up wrong", says="bytes of all calls",
          breaks="example")
def looked_up(sizes, world, each, reshard):
    found = planned(sizes, world, each, reshard)
    return found | {"bytes": 64} if sizes == [6, 2] else found
