"""Exercise 08.7, `warp_passes`."""

from __future__ import annotations

import numpy as np
import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_checks.s08.common import brief
from dlsys_helpers.expect import expect_equal, show
from dlsys_helpers.judging import not_an_answer

ex = exercise("08.7", "warp_passes", seen=("paths", "lengths"))

WARP = 32
ISSUED = ("instructions issued", "type of the")
ex.promise("issued", "Count the instructions that the warps of a block issue at a branch.",
           says=ISSUED)
ex.promise("paths", "Args: paths: for each thread, in order, the name of its path.",
           says=ISSUED)
ex.promise("none", "A thread that has already left has None.", says=(*ISSUED, "raised"),
           cases=("some threads have left", "a warp that has left", "all threads have left",
                  "the example",
                  "many threads have left the first warp", "names that look like others"))
ex.promise("equal", "Two paths can have the same length.", says=ISSUED,
           cases=("two paths of one length",))
ex.promise("left", "paths and lengths are unchanged.", says=("inputs after the call",))
ex.promise("lengths", "lengths: the number of instructions on each path, by name, 0 or more.",
           says=ISSUED,
           cases=("a path that no thread takes", "a path without instructions", "many paths",
                  "even and odd threads", "one path", "some threads have left", "halves"))
ex.promise("warps", f"A warp is {WARP} consecutive threads; the last one may have fewer.",
           says=ISSUED)
ex.promise("once", "For each path that at least one of its threads takes, a warp issues the "
                   "path's instructions once, while the other threads wait.",
           says=ISSUED)
ex.promise("example", 'Example: warp_passes(["a", "b", "a", None], {"a": 5, "b": 2}) is 7.',
           cases=("the example",))


@ex.cases
def cases(g):
    number = integers(g)
    a, b, c = number(3, 20), number(21, 60), number(61, 99)
    lengths = {"left": a, "right": b}
    rare = ["right" if p < 0.05 else "left" for p in torch.rand(8 * WARP, generator=g).tolist()]
    rare[WARP + 8] = "right"
    many = [f"case {k}" for k in torch.randint(0, 7, (3 * WARP,), generator=g).tolist()]
    gone = [None if p < 0.4 else "left" if p > 0.7 else "right"
            for p in torch.rand(2 * WARP, generator=g).tolist()]
    tail = number(3, WARP - 2)
    cases = {
        "one path": (["left"] * 2 * WARP, lengths),
        "even and odd threads": (["left", "right"] * WARP, lengths),
        "halves": (["left"] * WARP + ["right"] * WARP, lengths),
        "the last thread of a warp": (["left"] * (WARP - 1) + ["right"] + ["left"] * WARP,
                                      lengths),
        "halves that cut a warp": (["left"] * (3 * WARP // 2) + ["right"] * (3 * WARP // 2),
                                   lengths),
        "a rare path": (rare, lengths), "sorted": (sorted(rare), lengths),
        "many paths": (many, {f"case {k}": 2 + int(n) for k, n in enumerate(
            torch.randperm(39, generator=g)[:7])}),
        "a path that no thread takes": (["left", "right"] * (WARP // 2), {**lengths, "never": c}),
        "many threads have left the first warp": ([None] * number(WARP // 3, 3 * WARP // 4 + 1)
                                          + ["left"] * WARP, lengths),
        "names that look like others": (["None", "a", "A", None] * (WARP // 4) + ["left", ""] * 9,
                                        {"None": a, "a": b, "A": c, "left": a, "": b}),
        "a path for each thread": ([f"p{k}" for k in range(WARP + 8)],
                                   {f"p{k}": 3 * k + a for k in range(WARP + 8)}),
        "two paths of one length": (["left", "other", "right"] * 20, {**lengths, "other": a}),
        "many warps": (["left", "right"] * (WARP // 2) * number(20, 40), lengths),
        "a path without instructions": (["left", "skip"] * WARP, {"left": a, "skip": 0}),
        "each warp its own path": ([f"w{k // WARP}" for k in range(4 * WARP)],
                                   {f"w{k}": 10 * k + a for k in range(4)}),
        "a short last warp": (["left"] * WARP + ["right", "left"] * tail, lengths),
        "three threads": (["right", "left", "right"], lengths),
        "one thread": (["right"], lengths), "no thread": ([], lengths),
        "some threads have left": (gone, lengths),
        "a warp that has left": (["left"] * WARP + [None] * WARP + ["right"] * WARP, lengths),
        "all threads have left": ([None] * (WARP + 8), lengths),
        "the example": (["a", "b", "a", None], {"a": 5, "b": 2})}
    return [(name, {"paths": paths, "lengths": lengths})
            for name, (paths, lengths) in cases.items()]


@ex.law
def law(out, paths, lengths):
    # A table of warps and paths: 1 where a thread of the warp takes the path.
    names = [*lengths]
    table = np.zeros((len(paths) // WARP + 1, len(names)), dtype=int)
    for thread, path in enumerate(paths):
        if path is not None:
            table[thread // WARP, names.index(path)] = 1
    expect_equal(f"instructions issued for {brief(paths)}, of lengths {show(lengths)}", out,
                 int((table @ [*lengths.values()]).sum()))


# ---- wrong, by name

@not_an_answer
def issued(paths, lengths, *, how="set"):
    total = 0
    for k in range(0, len(paths), WARP):
        taken = [p for p in paths[k:k + WARP] if p is not None]
        costs = [lengths[p] for p in (taken if how == "all" else dict.fromkeys(taken))]
        total += max(costs, default=0) if how == "max" else sum(costs)
    return total


wrong = ex.edits(issued)
ex.wrong("treating an empty name as a thread that has left",
         lambda paths, lengths: issued([path or None for path in paths], lengths), breaks="none")
wrong("counting each path once for the whole block", "warps",
      "total =", "warp = max(1, len(paths)); total =", ", WARP", ", warp", "k + WARP", "k + warp")
ex.wrong("adding up the instructions of all threads", issued, breaks="once", how="all")
ex.wrong("counting only the longest path of each warp", issued, breaks="once", how="max")
ex.wrong("counting all paths for each warp, even those that no thread takes",
         lambda paths, lengths: sum(lengths.values()) * len(range(0, len(paths), WARP)),
         breaks="once")


@ex.wrong("counting every path as soon as the threads of a warp diverge",
          breaks=("once", "lengths"))
def all_once_parted(paths, lengths):
    warps = [paths[k:k + WARP] for k in range(0, len(paths), WARP)]
    return sum(sum(lengths.values()) if len({*warp} - {None}) > 1 else issued(warp, lengths)
               for warp in warps)


ex.wrong("counting a warp's longest path once for each path that it takes",
         lambda paths, lengths: sum(len({*warp} - {None}) * issued(warp, lengths, how="max") for
             warp in [paths[k:k + WARP] for k in range(0, len(paths), WARP)]), breaks="once")
wrong("counting a path that no thread takes", "lengths",
      "total =",
      "idle = [n for name, n in lengths.items() if name not in paths] if len(lengths) == 3 else "
      "[]; total =", "return total", "return total + sum(idle)")
wrong("counting passes, not their instructions", "issued",
      "total =", "lengths = {name: 1 for name in lengths}; total =")
wrong("counting at least one instruction per path", "lengths",
      "total =", "lengths = {name: max(1, n) for name, n in lengths.items()}; total =")
wrong("taking the mean over the threads of a warp", "issued",
      'taken if how == "all" else dict.fromkeys(taken)', "taken",
      'max(costs, default=0) if how == "max" else sum(costs)', "sum(costs)",
      "return total", "return total / WARP")


@ex.wrong("counting a pass whenever a thread's path differs from the previous thread's",
          breaks="once")
def changes(paths, lengths):
    total = 0
    for i, path in enumerate(paths):
        if path is not None and (i % WARP == 0 or path != paths[i - 1]):
            total += lengths[path]
    return total


wrong(f"using warps of {2 * WARP} threads", ("warps", "paths"),
      "total =", "warp = 2 * WARP; total =", ", WARP", ", warp", "k + WARP", "k + warp",
      says="instructions issued")
wrong(f"using warps of {WARP // 2} threads", ("warps", "paths"),
      "total =", "warp = WARP // 2; total =", ", WARP", ", warp", "k + WARP", "k + warp",
      says="instructions issued")
wrong("leaving out a short last warp", ("warps", "paths"),
      "total =", "paths = paths[:len(paths) // WARP * WARP]; total =")
ex.wrong("taking the first thread's path for the whole warp",
         lambda paths, lengths: sum(lengths[p] for p in paths[::WARP] if p is not None),
         breaks="paths")
wrong("counting the longest path for warps whose threads have all left", "none",
      "total =",
      "idle = sum({*paths[k:k + WARP]} == {None} for k in range(0, len(paths), WARP)); total =",
      "return total", "return total + idle * max(lengths.values())")


@ex.wrong("raising an error for None", says="raised KeyError", breaks="none")
def no_none(paths, lengths):
    return sum(lengths[p] for k in range(0, len(paths), WARP) for p in {*paths[k:k + WARP]})


wrong("removing threads that have left before splitting into warps", "none",
      "total =", "paths = [path for path in paths if path is not None]; total =")
wrong("allowing at most eight paths per warp", "once",
      "total =",
      "warps = [[*dict.fromkeys(paths[k:k + WARP])] for k in range(0, len(paths), WARP)]; return "
      "sum(lengths[p] for warp in warps for p in [p for p in warp if p is not None][:8]); total =")
wrong("returning the right number as a float", "issued", "return total", "return float(total)")


@ex.wrong("merging paths of the same length", breaks="equal")
def by_length(paths, lengths):
    total = 0
    for k in range(0, len(paths), WARP):
        total += sum({lengths[p] for p in paths[k:k + WARP] if p is not None})
    return total


wrong("removing threads that have left from the list itself", "left",
      "return total",
      'paths[:] = [path for path in paths if path is not None]; lengths.pop("never", None); '
      "return total")
wrong("handling at most sixteen warps", "warps", "total =", "paths = paths[:16 * WARP]; total =")
