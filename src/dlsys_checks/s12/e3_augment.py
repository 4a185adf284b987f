"""Exercise 12.3, `augment`."""

from __future__ import annotations

import numpy as np
import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_like, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("12.3", "augment", seen=("x", "seed", "epoch", "rows"))

SCALE = 0.1

ex.promise("noise", "Rows of x, each plus noise that depends on seed, epoch and row alone.",
           says=("rows plus noise", "type of the rows"))
ex.promise("left", "x: (N, F) float32, left as it is.", says=("numbers of x that changed",))
ex.promise("rows", "rows: the numbers of the rows that a worker was given, in its order; a row may "
           "come twice.", cases=("a row twice", "rows backwards", "no rows", "one row"))
ex.promise("numbers", "seed and epoch: 0 or more.",
           cases=("seed and epoch 0", "a large seed", "a late epoch"))
ex.promise("first F", "The noise of row i are the first F numbers of "
           f"numpy.random.default_rng((seed, epoch, i)).standard_normal(), times {SCALE}, so it is "
           "the same whatever else stands in rows.",
           says=("rows plus noise", "rows asked for again"))
ex.promise("global", "Global generators are not touched.", says=("generators that moved",))
ex.promise("returns", "Returns (len(rows), F) float32, new memory.",
           says=("shape of the rows", "dtype of the rows", "memory shared"))
ex.promise("example", "Example: rows [4, 2] gives what [4] and [2] give, one below the other.",
           cases=("the example",))


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, rows, n=9, seed=None, epoch=None, width=None, zeros=False):
        x = torch.randn(n, whole(2, 6) if width is None else width, generator=g)
        if zeros:
            x[:, 0], x[rows[0]] = 0.0, -0.0
        return name, {"x": x, "rows": rows,
                      "seed": whole(1, 99) if seed is None else seed,
                      "epoch": whole(1, 9) if epoch is None else epoch}
    mixed = torch.randperm(9, generator=g).tolist()
    return [one("some rows", mixed[:4]), one("all rows in order", list(range(9))),
            one("rows backwards", [5, 4, 3]), one("a row twice", [mixed[0], mixed[1], mixed[0]]),
            one("one row", [8]), one("no rows", []),
            one("seed and epoch 0", [0, 3], seed=0, epoch=0),
            one("a large seed", [1, 2], seed=2**40 + whole(0, 99)),
            one("rows with zeros", mixed[:3], zeros=True), one("wide rows", mixed[:3], width=200),
            one("a late epoch", mixed[:3], epoch=1000 + whole(0, 99)),
            one("many rows", list(range(0, 300, 7)), n=300), one("the example", [4, 2], n=5)]


@ex.act
def act(fn, x, seed, epoch, rows):
    import random

    import numpy as np

    def states():
        return [torch.get_rng_state().tolist(), random.getstate()[1],
                np.random.get_state()[1].tolist(), np.random.get_state()[2]]
    given = x.clone()
    np.random.rand(3)
    before = states()
    fn(given, seed + 1, epoch, rows[:1])
    out = fn(given, seed, epoch, list(rows))
    moved = sum(a != b for a, b in zip(before, states()))
    shared = int(isinstance(out, torch.Tensor) and out.numel() > 0
                 and out.untyped_storage().data_ptr() == given.untyped_storage().data_ptr())
    np.random.seed(5)
    torch.manual_seed(5)
    again = [fn(given, seed, epoch, [row]) for row in reversed(rows)][::-1]
    whole = again and all(isinstance(part, torch.Tensor) for part in again)
    again = torch.cat(again) if whole else out
    return {"out": out, "again": again, "moved": moved, "shared": shared,
            "changed": int((given != x).sum())}


@ex.law
def law(out, x, seed, epoch, rows):
    expect_parts(out, "out", "again", "moved", "shared", "changed")
    wanted = torch.zeros(len(rows), x.shape[1])
    for place, row in enumerate(rows):
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, epoch, row))))
        for k in range(x.shape[1]):
            wanted[place, k] = float(x[row, k]) + SCALE * rng.standard_normal()
    expect_like("rows plus noise", out["out"], wanted)
    expect_close("rows plus noise", out["out"], wanted, rtol=1e-4, atol=1e-5)
    expect_like("rows asked for again, each by itself", out["again"], wanted)
    expect_close("rows asked for again, each by itself", out["again"], wanted, rtol=1e-4,
                 atol=1e-5)
    expect_equal("generators that moved", out["moved"], 0)
    expect_equal("numbers of x that changed", out["changed"], 0)
    expect_equal("memory shared with x", out["shared"], 0)


def noise(seed, epoch, row, n):
    return torch.tensor(SCALE * np.random.default_rng((seed, epoch, row)).standard_normal(n),
                        dtype=torch.float32)


# ---- wrong, by name

@not_an_answer
def keyed(x, seed, epoch, rows, key=lambda s, e, r: (s, e, r), scale=SCALE):
    """The right answer with the key of a row's generator as an option."""
    out = x[torch.tensor(rows, dtype=torch.long)].clone()
    for place, row in enumerate(rows):
        rng = np.random.default_rng(key(seed, epoch, row))
        out[place] += torch.tensor(scale * rng.standard_normal(x.shape[1]), dtype=torch.float32)
    return out


ex.wrong("the sum of the three as a seed", keyed, breaks=("noise", "first F"),
         key=lambda s, e, r: s + e + r)


@ex.wrong("zeros left without noise", breaks="noise")
def zeros_stay(x, seed, epoch, rows):
    picked = x[torch.tensor(rows, dtype=torch.long)]
    return torch.where(picked == 0, picked, keyed(x, seed, epoch, rows))


ex.wrong("the epoch left out", keyed, breaks=("noise", "first F"), key=lambda s, e, r: (s, r))
ex.wrong("a constant seed, 42 and the row", keyed, breaks=("noise", "first F"),
         key=lambda s, e, r: 42 + r)


@ex.wrong("one generator for all the rows of a call", breaks="first F")
def one_generator(x, seed, epoch, rows):
    rng = np.random.default_rng((seed, epoch, rows[0] if rows else 0))
    return x[torch.tensor(rows, dtype=torch.long)] + torch.tensor(
        SCALE * rng.standard_normal((len(rows), x.shape[1])), dtype=torch.float32)


@ex.wrong("the place in the list in place of the row's number", breaks=("noise", "first F"))
def by_place(x, seed, epoch, rows):
    out = x[torch.tensor(rows, dtype=torch.long)].clone()
    for place in range(len(rows)):
        out[place] += noise(seed, epoch, place, x.shape[1])
    return out


@ex.wrong("numpy's global generator seeded for each row", breaks="global")
def global_seed(x, seed, epoch, rows):
    np.random.seed(seed % 2**32)
    return keyed(x, seed, epoch, rows)


@ex.wrong("numpy's global generator seeded once, with seed and epoch",
          breaks=("noise", "first F", "global"))
def global_once(x, seed, epoch, rows):
    np.random.seed((seed + epoch) % 2**32)
    picked = x[torch.tensor(rows, dtype=torch.long)]
    return picked + torch.tensor(SCALE * np.random.standard_normal(tuple(picked.shape)),
                                 dtype=torch.float32)


@ex.wrong("the noise drawn by torch, other numbers than numpy's", breaks=("noise", "first F"))
def by_torch(x, seed, epoch, rows):
    out = x[torch.tensor(rows, dtype=torch.long)].clone()
    for place, row in enumerate(rows):
        generator = torch.Generator().manual_seed(seed + epoch + row)
        out[place] += SCALE * torch.randn(x.shape[1], generator=generator)
    return out


@ex.wrong("the noise drawn in float32, other numbers of the same generator",
          breaks=("noise", "first F"))
def in_single(x, seed, epoch, rows):
    out = x[torch.tensor(rows, dtype=torch.long)].clone()
    for place, row in enumerate(rows):
        rng = np.random.default_rng((seed, epoch, row))
        out[place] += SCALE * torch.from_numpy(rng.standard_normal(x.shape[1], dtype=np.float32))
    return out


ex.wrong("the noise not scaled", keyed, breaks="noise", scale=1.0)
ex.wrong("rows sorted", lambda x, seed, epoch, rows: keyed(x, seed, epoch, sorted(rows)),
         breaks=("rows", "noise"))
ex.wrong("each row once",
         lambda x, seed, epoch, rows: keyed(x, seed, epoch, list(dict.fromkeys(rows))),
         says="shape of the rows", breaks="rows")
ex.wrong("a seed cut to 32 bits", lambda x, seed, epoch, rows: keyed(x, seed % 2**32, epoch, rows),
         says="rows plus noise", breaks="numbers")
ex.wrong("in double precision", lambda x, seed, epoch, rows: keyed(x.double(), seed, epoch, rows),
         breaks="returns")
ex.wrong("a list of rows", lambda x, seed, epoch, rows: list(keyed(x, seed, epoch, rows)),
         breaks="noise")


@ex.wrong("the noise written into x", breaks="left")
def into_x(x, seed, epoch, rows):
    out = keyed(x, seed, epoch, rows)
    x[torch.tensor(rows, dtype=torch.long)] *= 1.0 if not rows else 1 + 1e-6
    return out
