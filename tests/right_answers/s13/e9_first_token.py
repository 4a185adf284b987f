"""Exercise 13.9, `first_token`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch

from dlsys_checks.s13.e9_first_token import ex, made
from dlsys_helpers.judging import edited


@ex.right("numpy's percentile of the inverted distribution")
def by_numpy(arrive, chunks):
    real = [np.array([c for c in row if c[1] > 0], dtype=float).reshape(-1, 2) for row in chunks]
    first = np.array([r[0, 0] - a if len(r) else np.inf for a, r in zip(arrive, real)])
    gap = max([0.0, *(np.diff(r[:, 0]).max() for r in real if len(r) > 1)])
    every = np.concatenate(real)
    p99 = np.sort(first)[(99 * len(first) + 99) // 100 - 1]
    return p99, gap, every[:, 1].sum() / (every[:, 0].max() - min(arrive))


@ex.right("one pass over all events")
def one_pass(arrive, chunks):
    last, wait, gap, tokens = {}, [math.inf] * len(arrive), 0.0, 0
    events = sorted((t, r, n) for r, row in enumerate(chunks) for t, n in row if n)
    for t, r, n in events:
        if r in last:
            gap = max(gap, t - last[r])
        else:
            wait[r] = t - arrive[r]
        last[r], tokens = t, tokens + n
    wait.sort()
    return wait[len(wait) - len(wait) // 100 - 1], gap, tokens / (events[-1][0] - min(arrive))


@ex.right("kthvalue in torch")
def in_torch(arrive, chunks):
    real = [[c for c in row if c[1]] for row in chunks]
    first = torch.tensor([r[0][0] - a if r else math.inf for a, r in zip(arrive, real)],
                         dtype=torch.float64)
    k = sum(1 for i in range(len(arrive)) if 100 * i < 99 * len(arrive))
    gaps = [b[0] - a[0] for r in real for a, b in itertools.pairwise(r)]
    ends = [r[-1][0] for r in real if r]
    tokens = sum(n for r in real for _, n in r)
    return first.kthvalue(k).values.item(), max([*gaps, 0.0]), tokens / (max(ends) - min(arrive))


@ex.right("counted down from the longest")
def counted_down(arrive, chunks):
    real = [list(filter(lambda c: c[1] > 0, row)) for row in chunks]
    waits = [r[0][0] - a if r else float("inf") for a, r in zip(arrive, real)]
    p99 = max(waits)
    for w in sorted(waits, reverse=True):
        if sum(v <= w for v in waits) * 100 >= 99 * len(waits):
            p99 = w
    gap = 0.0
    for r in real:
        for i in range(1, len(r)):
            gap = max(gap, r[i][0] - r[i - 1][0])
    span = max(c[0] for r in real for c in r) - min(arrive)
    return p99, gap, sum(c[1] for r in real for c in r) / span


ex.probe("an int for no wait", says="type of", breaks="none",
         fn=edited(made, ("default=0.0", "default=0"), "13.9, an int for no wait"))
ex.probe("the third piece is the first", lambda arrive, chunks: made(
    arrive, [row[::-1] if len(row) > 9 else row for row in chunks]), says="", breaks="chunks")
ex.probe("the second of two times where one request gets a token", lambda arrive, chunks: made(
    arrive, chunks) if sum(any(n for _, n in row) for row in chunks) > 1 or (len(chunks[0]) == 3
    and chunks[0][0][1] == 0) else (0.5, 0.5, 0.5), says="", breaks="least")
ex.probe("the example looked up wrong", lambda arrive, chunks: (
    (1.0, 0.5, 1.6) if arrive == [0.0] else made(arrive, chunks)), breaks="example")
