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

ex.promise("noise", "Add to rows of x noise that depends only on seed, epoch and row.",
           says=("rows plus noise", "type of the rows"))
ex.promise("left", "Args: x: (N, F) float32, left as it is.", says=("values of x that changed",))
ex.promise("rows",
"rows: the indices of a worker's rows, in the order in which the worker reads them. A row can "
"occur twice.",
           cases=("a row twice", "rows backwards", "no rows", "one row"))
ex.promise("numbers", "seed, epoch: 0 or more.",
           cases=("seed and epoch 0", "a large seed", "a late epoch"))
ex.promise("first F", "The noise of row i is the first F numbers that "
                      "numpy.random.default_rng((seed, epoch, i)).standard_normal() draws, times "
                      "0.1. The noise does not depend on which other rows are in rows.",
           says=("rows plus noise", "rows requested one by one"))
ex.promise("global", "No global generator is used.", says=("generators that moved",))
ex.promise("returns", "Returns: (len(rows), F) float32, in new memory.",
           says=("shape of the rows", "dtype of the rows", "memory shared"))
ex.promise("example", "Example: rows [4, 2] return what [4] and [2] return, concatenated.",
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
    expect_equal("global generators that moved", out["moved"], 0,
                 "Make a generator for each row.")
    expect_like("rows plus noise", out["out"], wanted)
    expect_close("rows plus noise", out["out"], wanted, rtol=1e-4, atol=1e-5)
    expect_like("rows requested one by one", out["again"], wanted)
    expect_close("rows requested one by one", out["again"], wanted, rtol=1e-4,
                 atol=1e-5)
    expect_equal("values of x that changed", out["changed"], 0)
    expect_equal("memory shared with x", out["shared"], 0)


def noise(seed, epoch, row, n):
    return torch.tensor(SCALE * np.random.default_rng((seed, epoch, row)).standard_normal(n),
                        dtype=torch.float32)


# ---- wrong, by name

@not_an_answer
def keyed(x, seed, epoch, rows):
    out = x[torch.tensor(rows, dtype=torch.long)].clone()
    for place, row in enumerate(rows):
        rng = np.random.default_rng((seed, epoch, row))
        out[place] += torch.tensor(SCALE * rng.standard_normal(x.shape[1]), dtype=torch.float32)
    return out


wrong = ex.edits(keyed)
wrong("using the sum of seed, epoch and row as a seed", ("noise", "first F"),
      "(seed, epoch, row)", "seed + epoch + row")
wrong("adding no noise where x is 0", "noise",
      "out =", "picked = x[torch.tensor(rows, dtype=torch.long)]; out =",
      "return out", "return torch.where(picked == 0, picked, out)")
wrong("leaving the epoch out of the seed",
      ("noise", "first F"), "(seed, epoch, row)", "(seed, row)")
wrong("seeding with 42 plus the row, whatever seed and epoch are",
      ("noise", "first F"), "(seed, epoch, row)", "42 + row")


@ex.wrong("using one generator for all rows, seeded with the first row's index", breaks="first F")
def one_generator(x, seed, epoch, rows):
    rng = np.random.default_rng((seed, epoch, rows[0] if rows else 0))
    return x[torch.tensor(rows, dtype=torch.long)] + torch.tensor(
        SCALE * rng.standard_normal((len(rows), x.shape[1])), dtype=torch.float32)


@ex.wrong("using one generator for all rows, seeded with only seed and epoch",
          breaks=("noise", "first F"))
def one_generator_a_call(x, seed, epoch, rows):
    noise = np.random.default_rng((seed, epoch)).standard_normal((len(rows), x.shape[1]))
    return x[torch.tensor(rows, dtype=torch.long)] + torch.tensor(SCALE * noise,
                                                                  dtype=torch.float32)


@ex.wrong("adding the noise to x itself", breaks=("left", "noise", "first F"))
def noise_into_x(x, seed, epoch, rows):
    for row in rows:
        noise = np.random.default_rng((seed, epoch, row)).standard_normal(x.shape[1])
        x[row] += torch.tensor(SCALE * noise, dtype=torch.float32)
    return x[torch.tensor(rows, dtype=torch.long)]


@ex.wrong("seeding with the position in the list instead of the row's index",
          breaks=("noise", "first F"))
def by_place(x, seed, epoch, rows):
    out = x[torch.tensor(rows, dtype=torch.long)].clone()
    for place in range(len(rows)):
        out[place] += noise(seed, epoch, place, x.shape[1])
    return out


wrong("seeding numpy's global generator for each row", "global",
      "out =", "np.random.seed(seed % 2**32); out =")
wrong("seeding numpy's global generator once, with seed and epoch", ("noise", "first F", "global"),
      "out =",
      "np.random.seed((seed + epoch) % 2**32); picked = x[torch.tensor(rows, dtype=torch.long)]; "
      "return picked + torch.tensor(SCALE * np.random.standard_normal(tuple(picked.shape)), "
      "dtype=torch.float32); out =")
wrong("drawing the noise with torch, whose numbers differ from numpy's", ("noise", "first F"),
      "rng =", "generator =", "np.random.default_rng((seed, epoch, row))",
      "torch.Generator().manual_seed(seed + epoch + row)",
      "torch.tensor(SCALE * rng.standard_normal(x.shape[1]), dtype=torch.float32)",
      "SCALE * torch.randn(x.shape[1], generator=generator)")
wrong("drawing the noise in float32, which gives different numbers", ("noise", "first F"),
      "torch.tensor(SCALE * rng.standard_normal(x.shape[1]), dtype=torch.float32)",
      "SCALE * torch.from_numpy(rng.standard_normal(x.shape[1], dtype=np.float32))")
wrong("adding the noise without the factor 0.1", "noise",
      "SCALE * rng.standard_normal(x.shape[1])", "rng.standard_normal(x.shape[1])")
wrong("sorting the rows", ("rows", "noise"), "out =", "rows = sorted(rows); out =")
wrong("returning a row only once if it occurs twice in rows", "rows",
      "out =", "rows = list(dict.fromkeys(rows)); out =", says="shape of the rows")
wrong("using only the last 32 bits of the seed", "numbers",
      "out =", "seed = seed % 2**32; out =", says="rows plus noise")
wrong("returning float64 instead of float32", "returns", "out =", "x = x.double(); out =")
wrong("returning a list of rows instead of a tensor", "noise", "return out", "return list(out)")
wrong("writing the noise into x", "left",
      "return out",
      "x[torch.tensor(rows, dtype=torch.long)] *= 1.0 if not rows else 1 + 1e-6; return out")
