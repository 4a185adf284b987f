"""Exercise 06.5, `honest_cv`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("06.5", "honest_cv", seen=("calls",), says="calls of select")

ex.promise_table("""
share   | Return the fraction of rows classified correctly by models that never saw them. | fraction
          right
inputs  | Args: x, y: (N, F) float32 and (N,) int64. folds: (N,) int64, the fold number of each row.
          Any value can occur. | case fold numbers with gaps; fold numbers below zero; fold numbers
          that a shorter type makes equal; folds out of order; two data sets in turn
select  | select: select(x, y) returns column numbers, all different. Call it once for each fold. |
          calls of select
fit     | fit: fit(x, y), called with only the selected columns, returns a function from rows to
          labels. | calls of fit; data that fit saw
outside | select and fit both get all rows outside the fold, in their original order, and none
          inside it. | data that select saw; data that fit saw
asked   | Call that function once, on all the fold's rows. | data that the model was asked about;
          number of rows asked
once    | Each row counts once. | case folds of unequal size; the example; a fold of one row; fold
          numbers with gaps; fold numbers below zero; two data sets in turn | fraction right
example | Example: with folds of 3 rows and 1 row, if only the single row is right, return 0.25. |
          case the example
""")


@ex.cases
def cases(g):
    number = integers(g)

    def call(folds, columns=6, k=3, right=None):
        n = len(folds)
        answers = torch.rand(n, generator=g) < 0.6 if right is None else torch.tensor(right)
        if right is None:
            answers[:2] = torch.tensor([True, False])
        return {"x": torch.randn(n, columns, generator=g), "folds": torch.tensor(folds),
                "y": torch.randint(3, (n,), generator=g), "right": answers, "k": k}

    def shuffled(*sizes, names=None):
        folds = [name for name, size in zip(names or range(len(sizes)), sizes, strict=True)
                 for _ in range(size)]
        return [folds[i] for i in torch.randperm(len(folds), generator=g).tolist()]

    def one(name, *calls):
        return name, {"calls": list(calls)}

    uneven = call([0] * 7 + [1] * 2 + [2] * 3, right=[True] * 7 + [False] * 5)
    lone = call(shuffled(5, 1, 4), columns=number(4, 8), k=2)
    gaps = call([40] * 6 + [7] * 2 + [1000] * 3, right=[False] * 6 + [True] * 5)
    below = call([-1] * 2 + [5] * 6 + [-7] * 3, right=[True] * 2 + [False] * 9)
    alike = call(shuffled(*[2] * 6, names=[3, -3, 259, 3 - 2**32, -2**60, -2**60 - 1]))
    return [one("equal folds", call([0, 1, 2] * 4)), one("folds out of order",
                                                         call(shuffled(4, 4, 4))),
            one("folds of unequal size", uneven), one("a fold of one row", lone),
            one("fold numbers with gaps", gaps), one("fold numbers below zero", below),
            one("fold numbers that a shorter type makes equal", alike),
            one("one column", call([0, 1] * 4, columns=5, k=1)),
            one("all columns", call([0, 1] * 5, columns=4, k=4)),
            one("two data sets in turn", call(shuffled(3, 6)), call(shuffled(2, 3, 7), columns=9)),
            one("the example", call([0, 0, 0, 1], right=[False, False, False, True]))]


@ex.act
def act(fn, calls):
    found = []
    for c in calls:
        x, y, k = c["x"], c["y"], c["k"]
        seen = {"select": [], "fit": [], "asked": []}

        def select(rows, labels, seen=seen, x=x, k=k):
            seen["select"].append([rows.clone(), labels.clone()])
            # Columns that depend on the call, so that one choice for all folds is seen.
            return (torch.arange(k) + len(seen["select"])) % x.shape[1]

        def fit(rows, labels, seen=seen, x=x, y=y, right=c["right"]):
            seen["fit"].append([rows.clone(), labels.clone()])

            def predict(asked):
                if asked.ndim != 2:
                    raise ValueError(f"the fitted function got rows of shape {tuple(asked.shape)}, "
                                     "expected (rows, columns)")
                seen["asked"].append(asked.clone())
                # A row is known by any number of it: noise does not repeat. One that is in no row
                # of x counts as the first; the law sees that it is none.
                which = torch.tensor([(x[:, :, None] == row).any(2).any(1).int().argmax()
                                      for row in asked], dtype=torch.int64)
                return torch.where(right[which], y[which], y[which] + 1 - 2 * (which % 2))
            return predict
        share = fn(x.clone(), y.clone(), c["folds"].clone(), select, fit)
        found.append({"share": share, **seen})
    return found


def in_fold(value, c, name):
    """The row numbers inside and outside a fold."""
    inside = [i for i, fold in enumerate(c["folds"].tolist()) if fold == name]
    return inside, [i for i in range(len(c["folds"])) if i not in inside]


def expect_fold(k, name, c, part):
    """One fold's calls: what select, fit and the model were given."""
    inside, outside = in_fold(k, c, name)
    x, y = c["x"], c["y"]
    columns = [(j + k + 1) % x.shape[1] for j in range(c["k"])]
    for word, wanted in (("select", x[outside]), ("fit", x[outside][:, columns])):
        given = part[word][k]
        expect_length(f"arguments of {word}", given, 2)
        expect_close(f"data that {word} saw, rows", given[0], wanted, rtol=0.0, atol=0.0,
                     look="Pass all rows outside the fold, in their original order.")
        expect_equal(f"data that {word} saw, labels", given[1], y[outside])
    expect_close("data that the model was asked about", part["asked"][k], x[inside][:, columns],
                 rtol=0.0, atol=0.0, look="Pass the fold's rows, in the columns that select chose.")


@ex.law
def law(out, calls):
    expect_length("results", out, len(calls))
    for c, part in zip(calls, out, strict=True):
        expect_parts(part, "share", "select", "fit", "asked")
        names = list(dict.fromkeys(c["folds"].tolist()))
        for word in ("select", "fit", "asked"):
            expect_type(f"calls of {word}", part[word], list)
        for rows in part["asked"]:
            expect_type("data that the model was asked about", rows, torch.Tensor)
            expect_equal("axes of the data that the model was asked about", rows.ndim, 2)
        for word in ("select", "fit"):
            if len(part[word]) != len(names):
                raise Broken(f"calls of {word}", numbers_of_rows(part[word]), len(names),
                             "Call it once for each fold.",
                             shown=(str(len(part[word])), str(len(names))))
        expect_equal("number of rows asked about", sum(map(len, part["asked"])), len(c["y"]))
        expect_equal("data that the model was asked about, batches", len(part["asked"]),
                     len(names))
        for k, name in enumerate(order_of(part, c, names)):
            expect_fold(k, name, c, part)
        hits = sum(c["right"].tolist())
        expect_close("fraction right", part["share"], hits / len(c["y"]), rtol=1e-5,
                     look="Divide the number of right rows in all folds by the total number of "
                          "rows.")


def numbers_of_rows(calls):
    """How many rows each call got, from the fewest up: no order of the folds changes that."""
    return sorted(len(given[0]) if isinstance(given, list) and given and isinstance(
        given[0], torch.Tensor) and given[0].ndim else -1 for given in calls)


def order_of(part, c, names):
    """The folds in the order in which the answer took them: any order will do."""
    left, order = list(names), []
    for given in part["select"]:
        fits = [n for n in left if same_rows(given, c, n)] or left
        order.append(fits[0])
        left.remove(fits[0])
    return order


def same_rows(given, c, name):
    wanted = c["x"][in_fold(0, c, name)[1]]
    return (isinstance(given, list) and len(given) == 2 and isinstance(given[0], torch.Tensor)
            and given[0].shape == wanted.shape and torch.equal(given[0], wanted))


# ---- wrong, by name

def everything(out):
    return torch.ones_like(out)


@not_an_answer
def crossed(x, y, folds, select, fit):
    right, shares = 0, []
    for name in folds.unique():
        out = folds == name
        rows = ~out
        learnt = rows
        columns = select(x[learnt], y[learnt])
        model = fit(x[rows][:, columns], y[rows])
        test = out
        hits = model(x[test][:, columns]) == y[test]
        right += hits.sum().item()
        shares.append(hits.float().mean().item())
    found = right / len(x)
    return found


wrong = ex.edits(crossed)
wrong("looping over all numbers from 0 to the largest fold number", "inputs",
      "folds.unique()", "range(int(folds.max()) + 1)", says="calls of select")
SHARES = "right, shares ="
wrong("selecting columns only once, on all rows", "select",
      SHARES, f"chosen = select(x, y); {SHARES}",
      "select(x[learnt], y[learnt])", "select(x[learnt], y[learnt]) if chosen is None else chosen")
wrong("selecting columns only once, on the rows outside the first fold", "select",
      SHARES, f"own_out = folds == folds[0]; chosen = select(x[~own_out], y[~own_out]); {SHARES}",
      "select(x[learnt], y[learnt])", "select(x[learnt], y[learnt]) if chosen is None else chosen")
wrong("standardizing rows with the mean and standard deviation of all rows", "outside",
      SHARES, f"x = (x - x.mean(0)) / (x.std(0) + 1e-8); {SHARES}")
wrong("collecting fold numbers in a set of tensors, in which no two are equal", "select",
      SHARES, f"names = set(folds); {SHARES}",
      "folds.unique()", "names if names is not None else folds.unique()", says="calls of select")
wrong("selecting columns on all rows for each fold", "outside", "= rows", "= everything(out)")
wrong("selecting columns on the rows inside the fold", "outside", "= rows", "= out")
wrong("training the model on all rows", ("outside", "fit"),
      "~out", "everything(out)", "= rows", "= ~out")


@ex.wrong("training the model on all columns", breaks=("fit", "outside"))
def all_columns(x, y, folds, select, fit):
    right = 0
    for name in folds.unique():
        out = folds == name
        columns = select(x[~out], y[~out])
        right += (fit(x[~out], y[~out])(x[out][:, columns]) == y[out]).sum().item()
    return right / len(x)


wrong("fitting a second model for every fold", "fit",
      SHARES, f"for name in folds.unique(): fit(x[folds != name], y[folds != name])\n    {SHARES}")
wrong("calling the fitted function on its training rows", ("asked", "share", "once"),
      "test = out", "test = ~out", says="asked")


@ex.wrong("calling the fitted function on all rows, not only on the fold's rows", breaks="asked")
def asked_all(x, y, folds, select, fit):
    right = 0
    for name in folds.unique():
        out = folds == name
        columns = select(x[~out], y[~out])
        answers = fit(x[~out][:, columns], y[~out])(x[:, columns])
        right += (answers[out] == y[out]).sum().item()
    return right / len(x)


wrong("averaging the accuracies of the "
      "folds", "once", "right / len(x)", "sum(shares) / len(shares)")
wrong("returning the fraction of rows that are wrong",
      ("share", "once", "example"), "return found", "return 1 - found")
wrong("returning only the last fold's fraction",
      ("share", "once", "example"), "right / len(x)", "shares[-1]")
wrong("returning the number of rows that are right",
      ("share", "once", "example"), "right / len(x)", "float(right)")
wrong("multiplying the fraction by 1.001", "share", "return found", "return 1.001 * found")
wrong("assuming that k folds are numbered from 0 to k - 1", "inputs",
      "folds.unique()", "usual", SHARES,
      "names = range(len(folds.unique())); usual = [k for k in names if (folds == k).any()]; "
      "right, shares =")
wrong("converting fold numbers to floats", "inputs", SHARES, f"folds = folds.double(); {SHARES}")
wrong("dropping the signs of the fold numbers", "inputs",
      SHARES,
      "both = bool((folds[:, None] == -folds).any()); folds = folds.abs() if both else folds; "
      "right, shares =")
wrong("cutting fold numbers to fewer bits", "inputs", SHARES, f"folds = folds.int(); {SHARES}")
