"""Exercise 15.7, `exposed`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from dlsys_checks.s15.e7_exposed import ex, made


@ex.right("unions of spans")
def by_unions(events):
    begun = {}
    for _, lane, name, start, _ in events:
        if lane == "network":
            begun[name] = max(start, begun.get(name, start))

    def union(spans):
        total, reach = 0, None
        for start, end in sorted(spans):
            start = start if reach is None else max(start, reach)
            if end > start:
                total, reach = total + end - start, end
        return total

    whole = max(e[4] for e in events) - min(e[3] for e in events)
    found = []
    for rank in range(1 + max(e[0] for e in events)):
        bars = [e[3:] for e in events if e[:2] == (rank, "compute")]
        moved = [(begun[e[2]], e[4]) for e in events if e[:2] == (rank, "network")]
        calls = [e[3:] for e in events if e[:2] == (rank, "network")]
        a, b, c = union(bars), union(bars + moved), union(bars + moved + calls)
        found.append((a, b - a, c - b, whole - c))
    return found


@ex.right("a queue of starts and ends, with counts of what is open")
def by_counts(events):
    begun = {}
    for e in events:
        if e[1] == "network":
            begun[e[2]] = max(e[3], begun.get(e[2], e[3]))
    found = []
    for rank in sorted({e[0] for e in events}):
        changes = [(min(e[3] for e in events), None, 0), (max(e[4] for e in events), None, 0)]
        for r, lane, name, start, end in events:
            if r != rank:
                continue
            if lane == "compute":
                changes += [(start, 0, 1), (end, 0, -1)]
            else:
                changes += [(start, 2, 1), (begun[name], 2, -1), (begun[name], 1, 1), (end, 1, -1)]
        open_, times, before = Counter(), [0.0] * 4, None
        for at, kind, by in sorted(changes, key=lambda change: change[0]):
            if before is not None:
                times[next((k for k in (0, 1, 2) if open_[k] > 0), 3)] += at - before
            before = at
            if kind is not None:
                open_[kind] += by
        found.append(tuple(times))
    return found


@ex.right("a grid of all edges in numpy")
def by_grid(events):
    edges = np.unique([t for *_, s, e in events for t in (s, e)]).astype(float)
    low, high = edges[:-1], edges[1:]
    begun = {}
    for _, lane, name, start, _ in events:
        if lane == "network":
            begun[name] = max(start, begun.get(name, start))
    found = []
    for rank in sorted({e[0] for e in events}):
        kind = np.full(len(low), 3)
        for r, lane, name, start, end in events:
            if r == rank:
                inside = (low >= start) & (high <= end)
                code = np.where(low >= begun[name], 1, 2) if lane == "network" else 0
                kind = np.where(inside, np.minimum(kind, code), kind)
        found.append(tuple(float((high - low)[kind == k].sum()) for k in range(4)))
    return found


@ex.right("spans cut out of what is left")
def by_cutting(events):
    def cut(left, start, end):
        """What is left without the span, and how much of it the span took."""
        kept, took = [], 0.0
        for a, b in left:
            if min(b, end) > max(a, start):
                took += min(b, end) - max(a, start)
                kept += [(x, y) for x, y in ((a, start), (end, b)) if x < y]
            else:
                kept.append((a, b))
        return kept, took

    first, last = min(e[3] for e in events), max(e[4] for e in events)
    found = {}
    for rank in dict.fromkeys(e[0] for e in events):
        left, times = [(first, last)], []
        own = [e for e in events if e[0] == rank]
        starts = {e[2]: max(x[3] for x in events if x[1:3] == e[1:3])
                  for e in own if e[1] == "network"}
        for spans in ([e[3:] for e in own if e[1] == "compute"],
                      [(starts[e[2]], e[4]) for e in own if e[1] == "network"],
                      [(e[3], starts[e[2]]) for e in own if e[1] == "network"]):
            took = 0.0
            for start, end in spans:
                left, more = cut(left, start, end)
                took += more
            times.append(took)
        found[rank] = (*times, sum(b - a for a, b in left))
    return [found[rank] for rank in sorted(found)]


@ex.right("the middle of each piece asked")
def by_middles(events):
    edges = sorted({t for e in events for t in e[3:]})
    ranks = {e[0] for e in events}
    times = {rank: [0.0, 0.0, 0.0, 0.0] for rank in ranks}
    for a, b in itertools.pairwise(edges):
        mid = a + (b - a) / 2
        now = [e for e in events if e[3] < mid < e[4]]
        for rank in ranks:
            mine = [e for e in now if e[0] == rank]
            kind = 3 if not mine else 2
            for e in mine:
                everyone = [x for x in events if x[1:3] == e[1:3]]
                if e[1] == "network" and all(x[3] < mid for x in everyone):
                    kind = min(kind, 1)
                if e[1] == "compute":
                    kind = 0
            times[rank][kind] += b - a
    return [tuple(times[rank]) for rank in sorted(times)]


ex.probe("the example looked up wrong", lambda events: (
    [(4.0, 2.0, 2.0, 1.0), (0.0, 3.0, 0.0, 6.0)] if (0, "network", "r", 3, 9) in events
    else made(events)), breaks="example")
ex.equivalent("begun[name] = max(start, begun.get(name, start)) -> "
              "begun[name] = max(begun.get(name, start), start)", "the later of two, either way")
ex.equivalent("kind = min(kind, what) -> kind = min(what, kind)", "the smaller of two, either way")
ex.equivalent("if lane == 'network': -> if lane >= 'network':",
              "of the two lanes only \"network\" is not before \"network\"")
ex.equivalent("what = 0 if lane == 'compute' else 1 + (a < begun[name]) -> "
              "what = 0 if lane <= 'compute' else 1 + (a < begun[name])",
              "of the two lanes only \"compute\" is not behind \"compute\"")
