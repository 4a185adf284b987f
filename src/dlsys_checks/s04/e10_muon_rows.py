"""Exercise 04.10, `muon_rows`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("04.10", "muon_rows", seen=("parts", "sizes", "how", "loose"), says="rows of rank")

EMPTY = ("a rank without rows", "two ranks without rows, one of them the first")
UNEVEN = ("unequal parts", "a short last part", "one row a rank, and many",
          "a rank in the middle of a matrix", "two ranks with the same rows",
          "a step longer for tall matrices")
STACKS = ("three matrices", "three matrices of unequal size", "a loud matrix", "a cut in each",
          "one rank, three matrices", "many matrices")
ex.promise("stack", "One or more matrices are stacked on top of each other: sizes[0] rows of the "
                    "first, then sizes[1] rows of the second, and so on.",
           cases=(*STACKS, *EMPTY, *UNEVEN, "the example", "a wide stack",
                  "a shard that is a part of a table"), says=("rows of rank",))
ex.promise("cut", "The rows of the stack are split over the ranks in order, and a split can fall "
                  "inside a matrix.",
           says=("rows of rank",))
ex.promise("uneven", "Args: shard: (n, m) float32, the rows on this rank. n can differ from rank "
                     "to rank.",
           cases=(*UNEVEN, *EMPTY, "the example", "a cut in each"))
ex.promise("empty", "n can be 0.", cases=EMPTY)
ex.promise_table("""
gather     | gather: gather(shard) returns the list of all ranks' shards. | rows of rank
once       | Every rank has to call gather once, or the other ranks wait for ever. | calls of gather
whole      | orthogonalize: orthogonalize(matrix) returns a new tensor of the same shape. Pass it
             one whole matrix at a time. | rows of rank
shape      | Return this rank's (n, m) rows of Muon's step. | shape of the rows; type of the rows;
             rows of rank
left alone | shard does not change. | values changed in the shards
example    | Example: for shards [[2., 4.], [1., 0.]] and [[0., 5.]], sizes [1, 2], and an
             orthogonalize that divides by the largest entry, rank 0 returns [[0.5, 1.], [0.2, 0.]].
             | case the example
""")


@ex.cases
def cases(g):
    number, between = integers(g), floats(g)

    def one(name, sizes, cuts, m, how="polar", loud=1.0, scale=1.0, loose=False):
        stack = torch.randn(sum(sizes), m, generator=g) * scale
        stack[:sizes[0]] *= loud
        return name, {"parts": list(stack.split(cuts)), "sizes": list(sizes), "how": how,
                      "loose": loose}

    twins = one("two ranks with the same rows", (4, 5), (2, 2, 2, 3), 7)
    twins[1]["parts"][2] = twins[1]["parts"][0].clone()
    n, m = number(2, 4), number(5, 8)
    return [one("one matrix", (8,), (2, 2, 2, 2), 6), one("one rank", (7,), (7,), 5),
            one("one rank, three matrices", (3, 3, 4), (10,), 5),
            one("a wide matrix", (6,), (3, 3), 11), one("a tall matrix", (24,), (8, 8, 8), 3),
            one("three matrices", (4, 4, 4), (3, 3, 3, 3), m),
            one("three matrices of unequal size", (6, 2, 2), (5, 5), m),
            one("a cut in each", (5, 4, 5), (3, 4, 4, 3), m),
            one("a loud matrix", (4, 4, 4), (6, 6), m, loud=between(30, 100)),
            one("a rank in the middle of a matrix", (2, 9), (4, 3, 4), m),
            one("many matrices", (1, 2, 1, 3, 1), (4, 4), m),
            one("a wide stack", (3, 3), (2, 2, 2), 9),
            one("unequal parts", (9,), (4, 3, 2), m),
            one("a short last part", (4, 6), (3, 3, 3, 1), m),
            one("one row a rank, and many", (6, 3), (1, 1, 7), m),
            one("a rank without rows", (3,), (1, 1, 1, 0), m),
            one("two ranks without rows, one of them the first", (4, 3), (0, 3, 0, 4), m),
            one("tiny numbers", (4 * n,), (n,) * 4, m, scale=1e-6),
            one("one column", (6,), (3, 3), 1),
            one("a shard that is a part of a table", (4, 4), (4, 4), m, loose=True),
            twins, one("a step longer for tall matrices", (10, 4), (6, 4, 4), 3, how="tall"),
            ("the example", {"parts": [torch.tensor([[2.0, 4.0], [1.0, 0.0]]),
                                       torch.tensor([[0.0, 5.0]])],
                             "sizes": [1, 2], "how": "largest", "loose": False})]


@ex.act
def act(fn, parts, sizes, how, loose):
    def orthogonalize(matrix):
        if how == "largest":
            return matrix / matrix.max()
        u, _, v = torch.linalg.svd(matrix.double(), full_matrices=False)
        longer = max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5 if how == "tall" else 1
        return (longer * u @ v).to(matrix.dtype)

    rows, calls, moved = [], [], 0
    for rank in range(len(parts)):
        mine = [torch.cat([p, p + 1], 1)[:, :p.shape[1]] if loose else p.clone() for p in parts]
        heard = []

        def gather(shard, mine=mine, rank=rank, heard=heard):
            heard.append(rank)
            return [shard if r == rank else p for r, p in enumerate(mine)]

        given = mine[rank]
        rows.append(fn(given, rank, gather, list(sizes), orthogonalize))
        calls.append(len(heard))
        moved += int((given != parts[rank]).sum())
    return {"rows": rows, "calls": calls, "moved": moved}


def polar(matrix):
    """The nearest matrix whose singular values are one, by the root of its Gram matrix."""
    tall = matrix.T if len(matrix) < matrix.shape[1] else matrix
    values, vectors = torch.linalg.eigh(tall.T @ tall)
    made = tall @ (vectors / values.sqrt()) @ vectors.T
    return made.T if len(matrix) < matrix.shape[1] else made


@ex.law
def law(out, parts, sizes, how, loose):
    expect_parts(out, "rows", "calls", "moved")
    stack, made, at = torch.cat(parts).double(), [], 0
    for size in sizes:
        matrix = stack[at:at + size]
        made.append(matrix / matrix.amax() if how == "largest" else polar(matrix))
        if how == "tall":
            made[-1] *= max(1.0, (size / stack.shape[1]) ** 0.5)
        at += size
    wanted = torch.cat(made).float()
    expect_length("rows of all ranks", out["rows"], len(parts))
    at = 0
    for rank, part in enumerate(parts):
        expect_close(f"rows of rank {rank}", out["rows"][rank], wanted[at:at + len(part)],
                     rtol=0.0, atol=1e-3,
                     look=f"The matrices have {sizes} rows, and the ranks hold "
                          f"{[len(p) for p in parts]}.")
        at += len(part)
    expect_equal("calls of gather, rank by rank", out["calls"], [1] * len(parts),
                 "If one rank calls gather more or less often than the others, all ranks hang.")
    expect_equal("values changed in the shards", out["moved"], 0, "Work on a copy.")


# ---- wrong, by name

ex.wrong("orthogonalizing only the rank's own rows", breaks=("whole", "once"),
         fn=lambda shard, rank, gather, sizes, orthogonalize: orthogonalize(shard))


@ex.wrong("orthogonalizing only the rank's own rows and dividing by the root of the rank count",
         breaks="whole")
def local_scaled(shard, rank, gather, sizes, orthogonalize):
    return orthogonalize(shard) / len(gather(shard)) ** 0.5


@ex.wrong("orthogonalizing the rank's own rows, each matrix's part separately", breaks="whole")
def local_pieces(shard, rank, gather, sizes, orthogonalize):
    shards = gather(shard)
    end = torch.tensor(sizes).cumsum(0)
    first = sum(map(len, shards[:rank]))
    which = torch.bucketize(torch.arange(first, first + len(shard)), end, right=True)
    made = shard.clone()
    for matrix in which.unique():
        made[which == matrix] = orthogonalize(shard[which == matrix])
    return made


@ex.wrong("orthogonalizing the shard first and gathering afterwards", breaks="whole")
def gathered_late(shard, rank, gather, sizes, orthogonalize):
    return gather(orthogonalize(shard))[rank]


@not_an_answer
def rows_of(shard, rank, gather, sizes, orthogonalize):
    shards = gather(shard)
    step = torch.cat([orthogonalize(matrix) for matrix in torch.cat(shards).split(sizes)])
    out = step.split([len(p) for p in shards])[rank]
    return out


wrong = ex.edits(rows_of)
SHARDS = "step.split([len(p) for p in shards])[rank]"
ORTHOGONALIZE = "orthogonalize(matrix)"
wrong("treating the whole stack as one matrix", "stack",
      "torch.cat(shards).split(sizes)", "[torch.cat(shards)]")
wrong("cutting the stack into matrices of equal size",
      "stack", ".split(sizes)", ".tensor_split(len(sizes))")
wrong("treating all matrices after the first as one matrix", "stack",
      "torch.cat(shards).split(sizes)",
      "(lambda stack, sizes, shards: [stack[:sizes[0]], stack[sizes[0]:]])(torch.cat(shards), "
      "sizes, shards)")
wrong("using the sizes in reverse order", "stack", "(sizes)", "(sizes[::-1])")
wrong("starting at row rank * n, as if all shards had the same size", "uneven",
      SHARDS, "step[rank * len(shards[rank]):][:len(shards[rank])]")
wrong("cutting the rows into equal parts", "uneven",
      "step.split([len(p) for p in shards])", "step.tensor_split(len(shards))")
wrong("returning all rows instead of this rank's rows", "shape", "return out", "return step")
wrong("returning the first rows of the step on every rank",
      ("shape", "cut"), SHARDS, "step[:len(shards[rank])]")
wrong("joining the shards in reverse order", "cut", "(shards)", "(shards[::-1])")
wrong("gathering and splitting the stack without orthogonalizing it", "whole", ORTHOGONALIZE,
      "matrix")
wrong("dividing each column by its norm instead of orthogonalizing", "whole",
      ORTHOGONALIZE, "matrix / matrix.norm(dim=0)")
wrong("transposing each tall matrix before orthogonalizing it", "whole",
      ORTHOGONALIZE,
      f"orthogonalize(matrix.T).T if len(matrix) > matrix.shape[1] else {ORTHOGONALIZE}")
ex.wrong("padding all matrices with zeros to the same height", breaks="whole",
         fn=lambda shard, rank, gather, sizes, orthogonalize: rows_of(
             shard, rank, gather, sizes, lambda matrix: orthogonalize(F.pad(
                 matrix, (0, 0, 0, max(sizes) - len(matrix))))[:len(matrix)]))
wrong("returning the rows of the first shard whose values equal this rank's", "shape",
      "[rank]", "[next(i for i, p in enumerate(shards) if torch.equal(p, shards[rank]))]")
wrong("starting after the rank's own rows instead of before them", "shape",
      SHARDS, "step[sum(map(len, shards[:rank + 1])):][:len(shards[rank])]")
wrong("gathering the shards in bfloat16", "gather",
      "gather(shard)", "[p.float() for p in gather(shard.bfloat16())]")
ex.wrong("putting the rank's own shard before all other shards", breaks="cut",
         fn=lambda shard, rank, gather, sizes, orthogonalize: own_first(
             shard, rank, gather(shard), sizes, orthogonalize))


@not_an_answer
def own_first(shard, rank, shards, sizes, orthogonalize):
    stack = torch.cat([shard, *shards[:rank], *shards[rank + 1:]])
    return torch.cat([orthogonalize(m) for m in stack.split(sizes)])[:len(shard)]


wrong("calling gather once for each matrix", "once",
      "shards =",
      "made = [orthogonalize(torch.cat(gather(shard)).split(sizes)[i]) for i in "
      "range(len(sizes))]; made, first = torch.cat(made), sum(map(len, gather(shard)[:rank])); "
      "return made[first:first + len(shard)]; shards =")


@ex.wrong("returning early on a rank without rows", breaks=("once", "empty"))
def leaves_early(shard, rank, gather, sizes, orthogonalize):
    return rows_of(shard, rank, gather, sizes, orthogonalize) if len(shard) else shard.clone()


wrong("dropping empty shards before looking up this rank's rows", "empty",
      "gather(shard)", "[p for p in gather(shard) if len(p)]", "(matrix)", "(m)",
      "matrix in", "m in", "[rank]", "[min(rank, len(shards) - 1)]")
wrong("overwriting shard with the step", "left alone",
      "return out", "return shard.copy_(out).clone()")
