"""Exercise 09.5, `epoch_indices`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import itertools
import math

import torch

from dlsys_checks.s09.e5_epoch_indices import dealt, ex, order_of, shares
from dlsys_helpers.judging import unguarded


@ex.right("place by place, round and round")
def by_place(n, world, rank, epoch, seed, exact):
    order = order_of(n, seed + epoch)
    end = n if exact else math.ceil(n / world) * world
    return [order[place % n] for place in range(rank, end, world)]


@ex.right("torch's sampler, and a slice of it")
def by_sampler(n, world, rank, epoch, seed, exact):
    return unguarded(dealt)(n, world, rank, epoch, seed, exact)


@ex.right("the global generator seeded, and put back")
def put_back(n, world, rank, epoch, seed, exact):
    with torch.random.fork_rng(devices=[]):
        order = torch.randperm(n, generator=torch.default_generator.manual_seed(seed + epoch))
    end = n if exact else math.ceil(n / world) * world
    return [int(order[place % n]) for place in range(rank, end, world)]


@ex.right("a tensor, padded and cut")
def by_tensor(n, world, rank, epoch, seed, exact):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch))
    while not exact and len(order) % world:
        order = torch.cat([order, order[:1] if len(order) < n else order[len(order) - n][None]])
    return order[rank::world].tolist()


@ex.right("a cycle, cut at the length")
def by_cycle(n, world, rank, epoch, seed, exact):
    length = n if exact else n + -n % world
    endless = itertools.cycle(order_of(n, seed + epoch))
    return list(itertools.islice(endless, length))[rank::world]


@ex.probe("the example looked up, without its repetition", breaks="example")
def looked_up(n, world, rank, epoch, seed, exact):
    if (n, world, rank, epoch, seed) == (10, 4, 3, 0, 0):
        return [5, 8] if not exact else [5, 8, 1]
    return shares(n, world, rank, epoch, seed, exact)
