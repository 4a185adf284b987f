"""Exercise 06.10, `worker_rows`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

from itertools import count, cycle, islice

from dlsys_checks.s06.e10_worker_rows import ex, made


@ex.right("one slice with a step")
def by_step(stream, worker, workers, rank, world):
    return islice(stream, worker * world + rank, None, max(workers, 1) * world)


@ex.right("a slice of a slice")
def by_two_slices(stream, worker, workers, rank, world):
    mine = islice(stream, rank, None, world)
    return islice(mine, worker, None, workers) if workers else mine


@ex.right("a cycle of all readers")
def by_cycle(stream, worker, workers, rank, world):
    turns = cycle([(r, w) for w in range(workers or 1) for r in range(world)])
    for row, turn in zip(stream, turns):
        if turn == (rank, worker):
            yield row


@ex.right("the last reader first")
def from_the_end(stream, worker, workers, rank, world):
    for place, row in enumerate(stream, start=1):
        if (place % world, place // world % max(workers, 1)) == (rank, worker):
            yield row


@ex.right("skipping with next")
def by_next(stream, worker, workers, rank, world):
    wait = worker * world + rank
    for row in stream:
        if wait == 0:
            yield row
            wait = max(1, workers) * world
        wait -= 1


@ex.right("an iterator without yield")
def by_filter(stream, worker, workers, rank, world):
    every = max(workers, 1) * world
    return (row for row, place in zip(stream, count()) if place % every == worker * world + rank)


def _lost(stream, worker, workers, rank, world, when):
    """The share, without its first row where `when` is so."""
    mine = made(stream, worker, workers, rank, world)
    return islice(mine, int(when), None)


ex.probe("one worker on each rank: the first row is lost", lambda stream, worker, workers, rank,
         world: _lost(stream, worker, workers, rank, world, workers == 1), breaks="numbers")
ex.probe("five ranks: the first row is lost", lambda stream, worker, workers, rank, world:
         _lost(stream, worker, workers, rank, world, world == 5), breaks="world")
ex.probe("the example: a row is lost", lambda stream, worker, workers, rank, world: (
    row for row in made(stream, worker, workers, rank, world)
    if (row, workers, world) != (5, 2, 2)), breaks="example")
ex.equivalent("if first == rank and turn % max(workers, 1) == worker: -> "
              "if first == rank and turn % max(1, workers) == worker:",
              "the larger of two numbers does not depend on their order")
