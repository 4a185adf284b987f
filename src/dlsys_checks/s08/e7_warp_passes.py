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
ex.promise("issued", "How many instructions the warps of a block issue at a branch.", says=ISSUED)
ex.promise("paths", "paths: for each thread, in order, the name of the path that it takes,",
           says=ISSUED)
ex.promise("none", "or None if it has left already.", says=(*ISSUED, "raised"),
           cases=("some have left", "a warp that has left", "all have left", "the example",
                  "many have left the first warp", "names that look like others"))
ex.promise("equal", "two paths may be of one length.", says=ISSUED,
           cases=("two paths of one length",))
ex.promise("left", "paths and lengths are left as they are.", says=("inputs after the call",))
ex.promise("lengths", "lengths: instructions on each path, by name, 0 or more;", says=ISSUED,
           cases=("a path that nobody takes", "a path without instructions", "many paths",
                  "even and odd", "one path", "some have left", "halves"))
ex.promise("warps", f"A warp is {WARP} threads in a row, the last one maybe fewer;", says=ISSUED)
ex.promise("once", "it issues each path that one of its threads takes, once, whoever else waits.",
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
        "even and odd": (["left", "right"] * WARP, lengths),
        "halves": (["left"] * WARP + ["right"] * WARP, lengths),
        "the last thread of a warp": (["left"] * (WARP - 1) + ["right"] + ["left"] * WARP,
                                      lengths),
        "halves that cut a warp": (["left"] * (3 * WARP // 2) + ["right"] * (3 * WARP // 2),
                                   lengths),
        "a rare path": (rare, lengths), "sorted": (sorted(rare), lengths),
        "many paths": (many, {f"case {k}": 2 + int(n) for k, n in enumerate(
            torch.randperm(39, generator=g)[:7])}),
        "a path that nobody takes": (["left", "right"] * (WARP // 2), {**lengths, "never": c}),
        "many have left the first warp": ([None] * number(WARP // 3, 3 * WARP // 4 + 1)
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
        "some have left": (gone, lengths),
        "a warp that has left": (["left"] * WARP + [None] * WARP + ["right"] * WARP, lengths),
        "all have left": ([None] * (WARP + 8), lengths),
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
def issued(paths, lengths, *, warp=WARP, how="set"):
    """The right answer with its pieces as options."""
    total = 0
    for k in range(0, len(paths), warp):
        taken = [p for p in paths[k:k + warp] if p is not None]
        costs = [lengths[p] for p in (taken if how == "all" else dict.fromkeys(taken))]
        total += max(costs, default=0) if how == "max" else sum(costs)
    return total


ex.wrong("an empty name taken for a thread that has left",
         lambda paths, lengths: issued([path or None for path in paths], lengths), breaks="none")
ex.wrong("each path once for the whole block",
         lambda paths, lengths: issued(paths, lengths, warp=max(1, len(paths))), breaks="warps")
ex.wrong("instructions of all threads added up", issued, breaks="once", how="all")
ex.wrong("only the longest path of each warp", issued, breaks="once", how="max")
ex.wrong("all paths for each warp, also those that nobody takes",
         lambda paths, lengths: sum(lengths.values()) * len(range(0, len(paths), WARP)),
         breaks="once")


@ex.wrong("every path there is, once the threads of a warp part", breaks=("once", "lengths"))
def all_once_parted(paths, lengths):
    warps = [paths[k:k + WARP] for k in range(0, len(paths), WARP)]
    return sum(sum(lengths.values()) if len({*warp} - {None}) > 1 else issued(warp, lengths)
               for warp in warps)


@ex.wrong("the longest path of a warp for each path it takes", breaks="once")
def longest_for_each(paths, lengths):
    warps = [paths[k:k + WARP] for k in range(0, len(paths), WARP)]
    return sum(len({*warp} - {None}) * issued(warp, lengths, how="max") for warp in warps)


@ex.wrong("a path that nobody takes counted once", breaks="lengths")
def untaken(paths, lengths):
    idle = [n for name, n in lengths.items() if name not in paths] if len(lengths) == 3 else []
    return issued(paths, lengths) + sum(idle)


ex.wrong("passes counted, not their instructions",
         lambda paths, lengths: issued(paths, {name: 1 for name in lengths}), breaks="issued")
ex.wrong("at least one instruction a path",
         lambda paths, lengths: issued(paths, {name: max(1, n) for name, n in lengths.items()}),
         breaks="lengths")
ex.wrong("the mean over the threads of a warp",
         lambda paths, lengths: issued(paths, lengths, how="all") / WARP, breaks="issued")


@ex.wrong("a pass for each change from thread to thread", breaks="once")
def changes(paths, lengths):
    total = 0
    for i, path in enumerate(paths):
        if path is not None and (i % WARP == 0 or path != paths[i - 1]):
            total += lengths[path]
    return total


@ex.wrong(f"warps of {2 * WARP}", says="instructions issued", breaks=("warps", "paths"))
def twice_as_wide(paths, lengths):
    return issued(paths, lengths, warp=2 * WARP)


@ex.wrong(f"warps of {WARP // 2}", says="instructions issued", breaks=("warps", "paths"))
def half_as_wide(paths, lengths):
    return issued(paths, lengths, warp=WARP // 2)


ex.wrong("a short last warp left out",
         lambda paths, lengths: issued(paths[:len(paths) // WARP * WARP], lengths),
         breaks=("warps", "paths"))
ex.wrong("the first thread's path taken for the warp's",
         lambda paths, lengths: sum(lengths[p] for p in paths[::WARP] if p is not None),
         breaks="paths")


@ex.wrong("threads that have left wait on the longest path", breaks="none")
def left_wait(paths, lengths):
    idle = sum({*paths[k:k + WARP]} == {None} for k in range(0, len(paths), WARP))
    return issued(paths, lengths) + idle * max(lengths.values())


@ex.wrong("None not foreseen", says="raised KeyError", breaks="none")
def no_none(paths, lengths):
    return sum(lengths[p] for k in range(0, len(paths), WARP) for p in {*paths[k:k + WARP]})


ex.wrong("those that have left taken out before the warps are cut",
         lambda paths, lengths: issued([path for path in paths if path is not None], lengths),
         breaks="none")


@ex.wrong("at most eight paths a warp", breaks="once")
def eight_paths(paths, lengths):
    warps = [[*dict.fromkeys(paths[k:k + WARP])] for k in range(0, len(paths), WARP)]
    return sum(lengths[p] for warp in warps for p in [p for p in warp if p is not None][:8])


ex.wrong("the right number, as a float", lambda paths, lengths: float(issued(paths, lengths)),
         breaks="issued")


@ex.wrong("paths of one length taken for one", breaks="equal")
def by_length(paths, lengths):
    total = 0
    for k in range(0, len(paths), WARP):
        total += sum({lengths[p] for p in paths[k:k + WARP] if p is not None})
    return total


@ex.wrong("those that have left taken off the list", breaks="left")
def takes_off(paths, lengths):
    found = issued(paths, lengths)
    paths[:] = [path for path in paths if path is not None]
    lengths.pop("never", None)
    return found


ex.wrong("sixteen warps at most", lambda paths, lengths: issued(paths[:16 * WARP], lengths),
         breaks="warps")
