"""Exercise 13.1, `Blocks`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import collections

import torch

from dlsys_checks.s13.e1_block_owners import ex, pool
from dlsys_helpers.judging import edited


@ex.right("a free list and a counter")
class FreeList:
    def __init__(self, n):
        self.free, self.count = collections.deque(range(n)), collections.Counter()

    def take(self, k):
        if k > len(self.free):
            raise MemoryError(k)
        table = [self.free.popleft() for _ in range(k)]
        self.count.update(table)
        return table

    def share(self, table, k):
        self.count.update(table[:k])
        return list(table[:k])

    def give(self, table):
        if [b for b in table if self.count[b] < 1]:
            raise ValueError(table)
        self.count.subtract(table)
        self.free.extend(b for b in table if self.count[b] == 0)

    def left(self):
        return len(self.free)


@ex.right("a tensor of counts, the last free ones first")
class InTorch:
    def __init__(self, n):
        self.readers = torch.zeros(n, dtype=torch.long)

    def take(self, k):
        free = (self.readers == 0).nonzero()[:, 0].flip(0)
        if len(free) < k:
            raise MemoryError
        self.readers[free[:k]] = 1
        return free[:k].tolist()

    def share(self, table, k):
        self.readers[torch.tensor(table[:k], dtype=torch.long)] += 1
        return [*table][:k]

    def give(self, table):
        at = torch.tensor(table, dtype=torch.long)
        if (self.readers[at] == 0).any():
            raise ValueError
        self.readers[at] -= 1

    def left(self):
        return int((self.readers == 0).sum())


@ex.right("a set of free blocks, and who reads the others")
class InSets:
    def __init__(self, n):
        self.free, self.readers = set(range(n)), {}

    def take(self, k):
        if len(self.free) < k:
            raise MemoryError("full")
        table = sorted(self.free)[len(self.free) - k:]
        self.free -= set(table)
        self.readers |= {b: 1 for b in table}
        return table

    def share(self, table, k):
        for b in table[:k]:
            self.readers[b] += 1
        return [b for b in table[:k]]

    def give(self, table):
        if not set(table) <= self.readers.keys():
            raise ValueError("twice")
        for b in table:
            self.readers[b] -= 1
            if not self.readers[b]:
                del self.readers[b]
                self.free.add(b)

    def left(self):
        return len(self.free)


@ex.right("all tables kept, in a list")
class Tables:
    def __init__(self, n):
        self.n, self.held = n, []

    def left(self):
        return self.n - len(set(self.held))

    def take(self, k):
        if k > self.left():
            raise MemoryError
        table = [b for b in range(self.n) if b not in self.held][:k]
        self.held += table
        return table

    def share(self, table, k):
        self.held += table[:k]
        return table[:k]

    def give(self, table):
        if any(b not in self.held for b in table):
            raise ValueError
        for b in table:
            self.held.remove(b)


LEFT = "return len(self.free)"
ex.probe("the first free block kept back", says="free blocks of a new object", breaks="free",
         fn=edited(pool, (LEFT, LEFT + " - (len(self.readers) == 0)"), "13.1, kept back"))
ex.probe("a take of too many takes one", breaks="memory", fn=edited(
    pool, ("raise MemoryError", "del self.free[:1]; raise MemoryError"), "13.1, takes one"))
ex.probe("the example, one too many left", breaks="example", says="free blocks after give",
         fn=edited(pool, (LEFT, LEFT + " + (n == 3 and len(self.free) == 2)"), "13.1, the example"))
ex.equivalent("free = [b for b, count in enumerate(self.readers) if count == 0] -> "
              "free = [b for b, count in enumerate(self.readers) if count <= 0]",
              "no count is below 0")
ex.equivalent("raise MemoryError(f'{k} blocks wanted, {len(free)} are free') -> "
              "raise MemoryError(f'{k} blocks wanted, {free} are free')",
              "the words of an error are free")


@ex.probe("every second object is the one before", says="blocks of a second object", breaks="own")
class Twin:
    last = []  # noqa: RUF012

    def __new__(cls, n):
        if cls.last:
            return cls.last.pop()
        cls.last.append(pool(n))
        return cls.last[0]
