"""Exercise 15.2, `pass_losses`."""

from __future__ import annotations

import copy
from fractions import Fraction

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("15.2", "pass_losses", seen=("labels", "divides"), says="divisor of micro-batch")

ex.promise_table("""
summed    | Compute the divisor for each micro-batch's summed loss in a step. | divisor of
            micro-batch
counts    | labels[p][m]: the number of labels that count in micro-batch m of pass p, at least 1. |
            case unequal labels; unequal labels, divided; one label; very many labels; the example;
            the example, undivided
ragged    | Each pass has one or more micro-batches, and passes can have different numbers of
            micro-batches. | case unequal passes; unequal passes, divided; passes of one
            micro-batch, divided; the example; the example, undivided
mean      | The gradients of all passes add up in .grad, and at the end .grad has to be the gradient
            of the mean loss over all labels of the step. | divisor of micro-batch
divides   | divides: if True, at the end of each pass the schedule divides everything in .grad by
            the number of micro-batches in this pass. | case divided; two passes, divided; unequal
            labels, divided; unequal passes, divided; passes of one micro-batch, divided; many
            passes; one pass, divided; the example
otherwise | If divides is False, no gradient is divided. | case undivided; unequal labels; unequal
            passes; one label; very many labels; the example, undivided
laid out  | Returns one float per micro-batch, nested like labels. | type of; number of; shape
stay      | labels is not changed. | labels after the call
example   | Example: [[3, 1], [4]] gives [[4.0, 4.0], [8.0]] if the schedule divides, else [[8.0,
            8.0], [8.0]]. | case the example; the example, undivided
""")


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
                         rtol=1e-6, look="In the end, every label should have the same weight.")
    for name in ("labels", "kept"):
        expect_equal("labels after the call", out[name], labels)


# ---- wrong, by name

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


@not_an_answer
def divisors(labels, divides, *, use=lambda divides: divides):
    everything = sum(map(sum, labels))
    found = []
    for p, counts in enumerate(labels):
        by = 1
        if use(divides):
            for behind in labels[p:]:
                by *= len(behind)
        all_of_them = everything
        found.append(list([all_of_them / by for _ in counts]))
    return found


wrong = ex.edits(divisors)
# The schedule's own division, taken for a single one.
wrong("correcting only for the division after the pass itself", "divides",
      "for behind in labels[p:]:\n                by *= len(behind)", "by = len(labels[p])")
wrong("correcting for earlier passes instead of later ones", "divides",
      "for behind in labels[p:]:\n                by *= len(behind)", "by = before(labels, p)")
wrong("correcting for later passes, but not for the pass itself", "divides",
      "for behind in labels[p:]:\n                by *= len(behind)", "by = after(labels, p)")
wrong("correcting by the number of micro-batches in the whole step", "divides",
      "for behind in labels[p:]:\n                by *= len(behind)", "by = sum(map(len, labels))")
wrong("correcting for the divisions of all passes in every pass", "divides",
      "for behind in labels[p:]:\n                by *= len(behind)",
      "by = before(labels, len(labels) - 1)")
ex.wrong("not correcting for the schedule's divisions", divisors, breaks="divides",
         use=lambda divides: False)
ex.wrong("correcting for a division that does not happen",
         divisors, breaks="otherwise", use=lambda divides: True)
wrong("correcting in the wrong direction, so that every gradient is divided twice", "divides",
      "for behind in labels[p:]:\n                by *= len(behind)",
      "by = 1 / before(labels[p:], len(labels[p:]) - 1)")
wrong("assuming that all passes are as long as the first", "ragged",
      "for behind in labels[p:]:\n                by *= len(behind)",
      "by = power(len(labels[0]), len(labels) - p)")
wrong("assuming that all later passes are as long as the pass itself", "ragged",
      "for behind in labels[p:]:\n                by *= len(behind)",
      "by = power(len(labels[p]), len(labels) - p)")
wrong("assuming that all passes are as long as the last", "ragged",
      "for behind in labels[p:]:\n                by *= len(behind)",
      "by = power(len(labels[-1]), len(labels) - p)")
wrong("dividing by the number of labels in the pass, not in the step",
      "mean", "= everything", "= sum(labels[p])")
wrong("assuming as many labels in every micro-batch as in the first", "counts",
      "= everything", "= labels[0][0] * sum(map(len, labels))")
wrong("counting the labels in 16 bits", "counts", "= everything", "= sum(map(sum, labels)) % 65536")
wrong("using only the number of passes as the divisor",
      ("summed", "mean"), "= everything", "= len(labels)")
wrong("using only the number of micro-batches as the divisor", ("summed", "mean"),
      "= everything", "= sum(map(len, labels))")
wrong("returning factors instead of divisors", "summed",
      "return found", "return [[1 / d for d in row] for row in found]")
wrong("returning rows as tuples", "laid out", "list", "tuple", says="type of the micro-batches")
wrong("returning integers instead of floats", "laid out",
      "return found", "return [[int(d) for d in row] for row in found]", says="type of the divisor")
wrong("returning one flat list for all passes", "laid out",
      "return found", "return [d for row in found for d in row]", says="")
wrong("averaging the means of the micro-batches", ("mean", "counts"),
      "return found",
      "total, micro = sum(map(sum, labels)), sum(map(len, labels)); return [[d * count * micro / "
      "total for d, count in zip(row, counts, strict=True)] for row, counts in zip(found, "
      "labels, strict=True)]", says="divisor of micro-batch")
wrong("removing the last pass from labels", "stay",
      "return found", "labels.pop(); return found", says="labels after the call")
wrong("overwriting the caller's labels", "stay",
      "return found",
      "for row, divided in zip(labels, found, strict=True): row[:] = divided\n    return found",
      says="labels after the call")
