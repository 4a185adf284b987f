"""Exercise 15.2, `pass_losses`."""

from __future__ import annotations

import copy
from fractions import Fraction

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("15.2", "pass_losses", seen=("labels", "divides"), says="divisor of micro-batch")

ex.promise("summed", "By what to divide the summed loss of each micro-batch of a step.",
           says=("divisor of micro-batch",))
ex.promise("counts", "labels[p][m], at least 1: how many labels count in micro-batch m of pass p.",
           cases=("unequal labels", "unequal labels, divided", "one label", "very many labels",
                  "the example", "the example, undivided"))
ex.promise("ragged", "Each pass has one or more micro-batches, and passes may differ in their "
           "number.",
           cases=("unequal passes", "unequal passes, divided", "passes of one micro-batch, divided",
                  "the example", "the example, undivided"))
ex.promise("mean", "Gradients of all passes add up in .grad, and at the end .grad has to hold the "
           "gradient of the mean loss over all labels of the step.",
           says=("divisor of micro-batch",))
ex.promise("divides", "divides: at the end of each pass the schedule divides all that .grad holds "
           "by the number of micro-batches of this pass.",
           cases=("divided", "two passes, divided", "unequal labels, divided",
                  "unequal passes, divided", "passes of one micro-batch, divided", "many passes",
                  "one pass, divided", "the example"))
ex.promise("otherwise", "Otherwise nobody divides a gradient.",
           cases=("undivided", "unequal labels", "unequal passes", "one label", "very many labels",
                  "the example, undivided"))
ex.promise("laid out", "Returns floats, laid out as labels are.",
           says=("type of", "number of", "shape"))
ex.promise("stay", "labels stays as it is.", says=("labels after the call",))
ex.promise("example", "Example: [[3, 1], [4]] gives [[4.0, 4.0], [8.0]] if the schedule divides, "
           "else [[8.0, 8.0], [8.0]].", cases=("the example", "the example, undivided"))


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, sizes, divides, low=2, high=40, same=None):
        return name, {"labels": [[same or whole(low, high) for _ in range(size)]
                                 for size in sizes], "divides": divides}

    k = whole(3, 9)
    return [one("undivided", [4, 4, 4], False, same=k), one("divided", [4, 4, 4], True, same=k),
            one("two passes, divided", [3, 3], True, same=k),
            one("one pass, divided", [k], True, same=5),
            one("unequal labels", [3, 3, 3], False),
            one("unequal labels, divided", [3, 3, 3], True),
            one("unequal passes", [4, 1, 3, 2], False, same=k),
            one("unequal passes, divided", [4, 2, 5, 3], True, same=k),
            one("passes of one micro-batch, divided", [1, 4, 1, 1], True, same=k),
            one("many passes", [2] * whole(20, 30), True, same=k),
            one("one label", [1], False, same=1),
            one("very many labels", [2, 2], False, 10**6, 10**7),
            ("the example", {"labels": [[3, 1], [4]], "divides": True}),
            ("the example, undivided", {"labels": [[3, 1], [4]], "divides": False})]


@ex.act
def act(fn, labels, divides):
    kept = copy.deepcopy(labels)
    found = fn(labels, divides)
    if type(found) is list:
        # A float64 of numpy is a float.
        found = [[float(d) if isinstance(d, float) else d for d in row]
                 if type(row) is list else row for row in found]
    return {"found": found, "labels": labels, "kept": kept}


@ex.law
def law(out, labels, divides):
    expect_parts(out, "found", "labels", "kept")
    found = out["found"]
    expect_length("passes", found, len(labels))
    # Played with fractions: what a loss is divided by behind its backward pass, summed up to 1.
    total = sum(map(sum, labels))
    for p, (row, counts) in enumerate(zip(found, labels, strict=True)):
        expect_length(f"micro-batches of pass {p}", row, len(counts))
        later = Fraction(1)
        for behind in labels[p:]:
            later /= len(behind) if divides else 1
        for m, got in enumerate(row):
            expect_close(f"divisor of micro-batch {m} in pass {p}", got, float(later * total),
                         rtol=1e-6, look="A label of each pass has to weigh the same at the end.")
    for name in ("labels", "kept"):
        expect_equal("labels after the call", out[name], labels)


# ---- wrong, by name

@not_an_answer
def divisors(labels, divides, *, total=None, factor=None, form=list, use=lambda divides: divides):
    """The worked answer with one of its pieces replaced."""
    everything = sum(map(sum, labels))
    found = []
    for p, counts in enumerate(labels):
        by = 1
        if use(divides):
            if factor:
                by = factor(labels, p)
            else:
                for behind in labels[p:]:
                    by *= len(behind)
        all_of_them = total(labels, p) if total else everything
        found.append(form([all_of_them / by for _ in counts]))
    return found


def power(base, exponent):
    return float(base) ** exponent


def before(labels, p):
    by = 1
    for counts in labels[:p + 1]:
        by *= len(counts)
    return by


def after(labels, p):
    by = 1
    for counts in labels[p + 1:]:
        by *= len(counts)
    return by


# The schedule's own division, taken for a single one.
ex.wrong("divided once for each pass, not by the passes behind it", divisors, breaks="divides",
         factor=lambda labels, p: len(labels[p]))
ex.wrong("the passes before it, not those behind it", divisors, breaks="divides", factor=before)
ex.wrong("the own pass forgotten: only those behind it", divisors, breaks="divides", factor=after)
ex.wrong("all micro-batches of the step at once", divisors, breaks="divides",
         factor=lambda labels, p: sum(map(len, labels)))
ex.wrong("all passes at once, not those from it on", divisors, breaks="divides",
         factor=lambda labels, p: before(labels, len(labels) - 1))
ex.wrong("what the schedule divides not given back", divisors, breaks="divides",
         use=lambda divides: False)
ex.wrong("given back where nobody divides", divisors, breaks="otherwise", use=lambda divides: True)
ex.wrong("given back the wrong way round: divided twice", divisors, breaks="divides",
         factor=lambda labels, p: 1 / before(labels[p:], len(labels[p:]) - 1))
ex.wrong("all passes taken to be as long as the first", divisors, breaks="ragged",
         factor=lambda labels, p: power(len(labels[0]), len(labels) - p))
ex.wrong("all passes behind it taken to be as long as it is", divisors, breaks="ragged",
         factor=lambda labels, p: power(len(labels[p]), len(labels) - p))
ex.wrong("all passes taken to be as long as the last", divisors, breaks="ragged",
         factor=lambda labels, p: power(len(labels[-1]), len(labels) - p))
ex.wrong("the labels of the pass, not of the step", divisors, breaks="mean",
         total=lambda labels, p: sum(labels[p]))
ex.wrong("the first micro-batch's labels for all", divisors, breaks="counts",
         total=lambda labels, p: labels[0][0] * sum(map(len, labels)))
ex.wrong("labels counted in 16 bits", divisors, breaks="counts",
         total=lambda labels, p: sum(map(sum, labels)) % 65536)
ex.wrong("the passes, as if the loss were a mean", divisors, breaks=("summed", "mean"),
         total=lambda labels, p: len(labels))
ex.wrong("the micro-batches of the step", divisors, breaks=("summed", "mean"),
         total=lambda labels, p: sum(map(len, labels)))
ex.wrong("the factor for its reciprocal", lambda labels, divides: [
    [1 / d for d in row] for row in divisors(labels, divides)], breaks="summed")
ex.wrong("rows as tuples", divisors, says="type of the micro-batches", breaks="laid out",
         form=tuple)
ex.wrong("whole numbers", lambda labels, divides: [
    [int(d) for d in row] for row in divisors(labels, divides)], says="type of the divisor",
    breaks="laid out")
ex.wrong("one row for all passes", lambda labels, divides: [
    d for row in divisors(labels, divides) for d in row], says="", breaks="laid out")


@ex.wrong("the mean of each micro-batch's own mean", says="divisor of micro-batch",
          breaks=("mean", "counts"))
def mean_of_means(labels, divides):
    found = divisors(labels, divides)
    total, micro = sum(map(sum, labels)), sum(map(len, labels))
    return [[d * count * micro / total for d, count in zip(row, counts, strict=True)]
            for row, counts in zip(found, labels, strict=True)]


@ex.wrong("the last pass taken off labels", says="labels after the call", breaks="stay")
def popped(labels, divides):
    found = divisors(labels, divides)
    labels.pop()
    return found


@ex.wrong("written over labels", says="labels after the call", breaks="stay")
def written_over(labels, divides):
    found = divisors(labels, divides)
    for row, divided in zip(labels, found, strict=True):
        row[:] = divided
    return found
