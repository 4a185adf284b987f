"""Exercise 06.10, `worker_rows`."""

from __future__ import annotations

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("06.10", "worker_rows", seen=("rows", "workers", "world"),
              kept=("shares",), says="times that")

ex.promise_table("""
once    | Yield this worker's share of the rows of a stream. Every worker of every rank calls this
          function, each with a copy of the same stream. Together they yield every row exactly
          once. | times that; not in the stream
ranks   | The row counts of two ranks differ by at most one. | rows of each rank
workers | So do the row counts of two workers of one rank. | rows of each worker
type    | Args: stream: an iterator over rows of any type. | case lines of text; rows around 0;
          rows that are None
equal   | Rows can be equal. | case equal rows
short   | There can be fewer rows than workers, or no rows. | case fewer rows than workers;
          no rows
numbers | worker, workers: this worker's number, from 0, and the number of workers of each rank. |
          case one worker; one worker on each rank
none    | If workers is 0, there are no worker processes, and worker 0 is the main process of the
          rank. | case no workers; no workers on two ranks; no workers on three ranks
world   | rank, world: this rank's number, from 0, and the number of ranks. | case five ranks
lazy    | Yield each row as soon as it has been read, because a stream may be endless. | rows read
example | Example: of 7 rows, two ranks get 4 and 3. With two workers each, no worker gets more
          than 2. | case the example
""")


@ex.cases
def cases(g):
    def one(name, workers, world, extra, rounds=3, rows=None):
        n = rounds * max(workers, 1) * world + extra if rows is None else len(rows)
        start = int(torch.randint(100, 900, (1,), generator=g))
        numbers = (start + torch.randperm(n, generator=g)).tolist()   # no row is its own place
        return name, {"rows": numbers if rows is None else rows, "workers": workers, "world": world}

    return [one("two workers", 2, 1, 1), one("two ranks with two workers", 2, 2, 2),
            one("two ranks with three workers", 3, 2, 3),
            one("three ranks with two workers", 2, 3, 3),
            one("four ranks with six workers", 6, 4, 7), one("five ranks", 3, 5, 4),
            one("a long stream", 2, 2, 2, rounds=40),
            one("one worker", 1, 1, 4), one("one worker on each rank", 1, 3, 2),
            one("no workers", 0, 1, 5), one("no workers on two ranks", 0, 2, 1),
            one("no workers on three ranks", 0, 3, 2),
            one("fewer rows than workers", 4, 2, 3, rounds=0), one("no rows", 2, 2, 0, rounds=0),
            one("lines of text", 2, 2, 0, rows=["one", "line", "", "two", "lines", "and",
                                                 "a", "long", "row", "of", "words"]),
            one("rows around 0", 3, 2, 0, rows=list(range(-7, 4))),
            one("rows that are None", 2, 2, 0, rows=[14, 16, None, 17, 18, 19, 13, 12, 11]),
            one("equal rows", 2, 3, 0, rows=[7, 7, 8, 7, 8, 8, 9, 7, 7, 8, 7, 9, 7, 8, 7, 7, 8, 8]),
            one("the example", 2, 2, 0, rows=list(range(5, 12)))]


@ex.act
def act(fn, rows, workers, world):
    shares, reads = [], []

    def counted(count):
        for row in rows:
            count[0] += 1
            yield row

    for rank in range(world):
        for worker in range(max(workers, 1)):
            share, read, count = [], [], [0]
            for row in fn(counted(count), worker, workers, rank, world):
                share.append(row)
                read.append(count[0])
                if len(share) > 2 * len(rows) + 2:
                    break
            shares.append(share)
            reads.append(read)
    return {"shares": shares, "reads": reads}


@ex.law
def law(out, rows, workers, world):
    expect_parts(out, "shares", "reads")
    shares, reads, team = out["shares"], out["reads"], max(workers, 1)
    expect_length("shares", shares, world * team)
    expect_length("counts of rows read", reads, world * team)
    for share in shares:
        expect_type("rows of a worker", share, list)
    given = [row for share in shares for row in share]
    strange = [row for row in given if type(row) not in (int, str, type(None)) or row not in rows]
    if strange:
        raise Broken("rows that are not in the stream", strange, [], "Yield the rows themselves.")
    for place, row in enumerate(rows):
        if given.count(row) != rows.count(row):
            raise Broken(f"times that the row at position {place} is yielded", given.count(row),
                         rows.count(row), f"Counted over all {len(shares)} readers together.")
    sizes = [[len(share) for share in shares[rank * team:(rank + 1) * team]]
             for rank in range(world)]
    each = [sum(rank) for rank in sizes]
    if max(each) - min(each) > 1:
        raise Broken("rows of each rank", each, "numbers that differ by at most one",
                     "A rank without a row keeps the others waiting.")
    for rank, some in enumerate(sizes):
        if max(some) - min(some) > 1:
            raise Broken(f"rows of each worker of rank {rank}", some,
                         "numbers that differ by at most one", "A worker without rows is idle.")
    for share, read in zip(shares, reads, strict=True):
        expect_length("counts of rows read", read, len(share))
        for row, count in zip(share, read, strict=True):
            expect_type("count of rows read", count, int)
            if not 0 < count <= len(rows) or rows[count - 1] != row:
                raise Broken("rows read when a row is yielded", count, rows.index(row) + 1,
                             "Yield each row before you read the next one.")


# ---- wrong, by name

@not_an_answer
def made(stream, worker, workers, rank, world):
    team = max(workers, 1)
    for place, row in enumerate(stream):
        if place % world == rank and place // world % team == worker:
            yield row


wrong = ex.edits(made)
MINE, LOOP, ROW = ("place % world == rank and place // world % team == worker",
                   "for place, row in enumerate(stream):", "yield row")
ALL = "rows = list(stream); n, k, size = len(rows), rank * team + worker, team * world\n    "
# https://github.com/pytorch/pytorch/issues/30599
wrong("letting every worker yield the whole stream", "once", MINE, "True")
wrong("splitting by worker but not by rank", "once", MINE, "place % team == worker")
wrong("splitting by rank but not by worker", "once", MINE, "place % world == rank")
wrong("numbering the ranks from 1", "once", "== rank", "== rank + 1")
wrong("numbering the workers from 1", "once", "== worker", "== worker + 1")
wrong("yielding only the first row of the share", "once", ROW, "yield row; return")
wrong("yielding the rows' positions instead of the rows", "once", ROW, "yield place",
      says="not in the stream")
wrong("leaving out the first row of every worker",
      "once", MINE, MINE + " and place >= team * world")
wrong("dropping the last rows if they do not give every worker one more", ("once", "lazy"), LOOP,
      ALL + "for place, row in enumerate(rows[:n // size * size]):")
wrong("repeating rows until all shares have the same size", ("once", "lazy"), LOOP,
      ALL + "for place, row in enumerate((rows * size)[:-(-n // size) * size]):")
wrong("cutting the stream into blocks of equal size and dropping the rest", ("once", "lazy"), LOOP,
      ALL + "for row in rows[n // size * k:n // size * (k + 1)]: yield row\n"
            "    for place, row in ():")
wrong("cutting the stream into blocks of equal size, the last one shorter",
      ("ranks", "workers", "lazy"), LOOP,
      ALL + "for row in rows[-(-n // size) * k:-(-n // size) * (k + 1)]: yield row\n"
            "    for place, row in ():")
wrong("shuffling the rows differently in each worker before the split", ("once", "lazy"), LOOP,
      ALL + "order = torch.randperm(n, generator=torch.Generator().manual_seed(k))\n"
            "    for place, row in enumerate(rows[i] for i in order):")
wrong("giving the first rows to rank 0's workers, the next rows to rank 1's, and so on",
      "ranks", MINE,
      "place % (team * world) == rank * team + worker", says="rows of each rank")
wrong("giving row i to worker i % workers of rank i % world", "workers", MINE,
      "place % world == rank and place % team == worker", says="rows of each worker")
wrong("dividing the position by workers instead of by world", "workers", "place // world",
      "place // team", says="rows of each worker")
wrong("distributing the rows by their values", ("ranks", "workers"), MINE,
      "sum(map(ord, str(row))) % world == rank and place // world % team == worker")
wrong("skipping rows that are false in Python, such as 0, an empty string or None",
      "type", MINE, "row and " + MINE)
wrong("stopping at a row that is false in Python, such as 0, an empty string or None",
      "type", ROW, "yield row\n        if not row: return")
wrong("treating None as the end of the stream", "type", "enumerate(stream)",
      "enumerate(iter(lambda: next(stream, None), None))")
wrong("skipping a row that equals an earlier row", "equal", LOOP,
      "rows = set()\n    " + LOOP + "\n        if row in rows: continue\n        rows.add(row)")
wrong("reading the first row outside the loop", "short", LOOP,
      "first = [next(stream)]\n"
      "    for place, row in enumerate(r for part in (first, stream) for r in part):",
      says="StopIteration")
wrong("dividing by 0 if there are no workers", "none", "max(workers, 1)", "workers",
      says="ZeroDivisionError")
wrong("yielding nothing if there are no workers", "none", MINE, "workers and " + MINE)
wrong("yielding all rows on each rank if there are no workers", "none", MINE,
      "not workers or " + MINE)


@ex.wrong("reading the whole stream before yielding a row", breaks="lazy", says="rows read")
def all_first(stream, worker, workers, rank, world):
    return list(stream)[worker * world + rank::max(workers, 1) * world]


@ex.wrong("reading one row ahead", breaks="lazy", says="rows read")
def ahead(stream, worker, workers, rank, world):
    mine, every = worker * world + rank, max(workers, 1) * world
    held = []
    for place, row in enumerate(stream):
        yield from held
        held = [row] if place % every == mine else []
    yield from held


@ex.wrong("repeating the first rows at the end until all shares have the same size", breaks="once")
def padded(stream, worker, workers, rank, world):
    every, count, early = max(workers, 1) * world, 0, []
    mine = worker * world + rank
    for count, row in enumerate(stream, 1):
        early = early if len(early) == every else [*early, row]
        if (count - 1) % every == mine:
            yield row
    left = count % every
    if left and mine >= left:
        yield early[(mine - left) % len(early)]
