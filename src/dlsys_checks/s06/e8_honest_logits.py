"""Exercise 06.8, `honest_logits`."""

from __future__ import annotations

import math

import torch

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("06.8", "honest_logits", seen=("calls",), says="logits")

SAMPLED = ("a sampler alone", "tiny weights", "huge weights", "logits of a confident model",
           "weights that differ within a class", "weights from two sources", "both remedies",
           "positives made rarer", "two models in turn", "a rare class of one row",
           "as many positives as negatives")
WEIGHTED = ("a loss weight alone", "both remedies", "a loss weight below 1", "a tiny loss weight",
            "two models in turn", "a rare class of one row", "logits of a confident model")

ex.promise("logits", "Return the logits, corrected to the training data's own "
                     "base rate.", says=("logits",))
ex.promise("form", "Args: z: (M,) logits of a "
                   "model.", says=("shape of the", "type of the", "logits"))
ex.promise("weights", "w: (N,) > 0, of any scale, the training rows' sampling weights.",
           cases=SAMPLED)
ex.promise("pos_weight", "pos_weight: > 0, the value used in the loss.", cases=WEIGHTED)
ex.promise("labels", "y: (N,) float32, the model's training labels, with both 0 and 1 present.",
           cases=SAMPLED)
ex.promise("means", "Training multiplied the odds by the mean weight of the positives divided by "
                    "the mean weight of the negatives.", cases=SAMPLED)
ex.promise("both", "It also multiplied the odds by pos_weight. Undo both factors.", cases=WEIGHTED)
ex.promise("left", "The inputs do not change.", says=("after the call",))
ex.promise("example", "Example: with equal weights and pos_weight 1, z stays as it is.",
           cases=("the example",))


@ex.cases
def cases(g):
    number = integers(g)
    between = floats(g)

    def call(positives, negatives, factor=1.0, pos_weight=1.0, scale=1.0, within=0.0, scores=9,
             size=4, sources=False):
        y = torch.cat([torch.ones(positives), torch.zeros(negatives)])
        y = y[torch.randperm(len(y), generator=g)]
        spread = 1 + within * torch.rand(len(y), generator=g)
        if sources:  # two of them, one three times as likely as the other
            spread = torch.where(spread > 1 + within / 3, 3.0, 1.0)
        z = size * torch.randn(scores, generator=g)
        if size > 4:  # above and below what exp takes in float32
            z[:2] = torch.tensor([120.0, -120.0])
        # In float64, so that no input is the answer where z stays as it is.
        return {"z": z.double(), "y": y,
                "w": scale * spread * torch.where(y > 0, factor, 1.0), "pos_weight": pos_weight}

    def one(name, *calls):
        return name, {"calls": list(calls)}

    p, n = number(3, 8), number(30, 60)
    k = n / p
    return [one("a sampler alone", call(p, n, k)), one("a loss weight alone",
                                                       call(p, n, 1.0, k)),
            one("both remedies", call(p, n, k, between(2, 9))),
            one("tiny weights", call(p, n, k, scale=1e-12)),
            one("huge weights", call(p, n, k, scale=1e12)),
            one("logits of a confident model", call(p, n, 4.0, 3.0, size=80)),
            one("weights that differ within a class", call(p, n, 5.0, within=2.0)),
            one("weights from two sources", call(p, n, 5.0, within=3.0, sources=True)),
            one("positives made rarer", call(n, p, 0.2)),
            one("a loss weight below 1", call(n, p, 1.0, between(0.05, 0.5))),
            one("a tiny loss weight", call(n, p, 1.0, between(1e-7, 1e-6))),
            one("as many positives as negatives", call(12, 12, between(3, 9))),
            one("a rare class of one row", call(1, n, 6.0, 4.0)),
            one("one logit", call(p, n, 1.0, 1.0, scores=1)),
            one("two models in turn", call(p, n, k, 3.0), call(n, 9, 7.0, 0.5, scores=4)),
            one("the example", call(p, n, scale=between(0.5, 3)))]


@ex.act
def act(fn, calls):
    found = {"results": [], "changed": []}
    for c in calls:
        kept = {name: c[name].float() for name in ("z", "y", "w")}
        given = {name: t.clone() for name, t in kept.items()}
        found["results"].append(fn(*given.values(), c["pos_weight"]))
        found["changed"].append([k for k, t in given.items() if not torch.equal(t, kept[k])])
    return found


@ex.law
def law(out, calls):
    expect_parts(out, "results", "changed")
    for part in ("results", "changed"):
        expect_length(part, out[part], len(calls))
    for c, got, changed in zip(calls, out["results"], out["changed"], strict=True):
        expect_equal("inputs changed after the call", changed, [], "Work on a copy.")
        pairs = list(zip(c["y"].tolist(), c["w"].tolist(), strict=True))
        ones, zeros = ([w for y, w in pairs if y == k] for k in (1.0, 0.0))
        # Odds after sampling, over odds before it.
        drawn = math.fsum(ones) / math.fsum(zeros)
        plain = len(ones) / len(zeros)
        added = math.log(drawn) - math.log(plain) + math.log(c["pos_weight"])
        wanted = (c["z"] - added).float()
        expect_close("logits", got, wanted, rtol=1e-5, atol=1e-5,
                     look="Each remedy added the logarithm of its factor to the logits.")


# ---- wrong, by name

def factor(y, w):
    return (w[y == 1].mean() / w[y == 0].mean()).item()


@not_an_answer
def corrected(z, y, w, pos_weight):
    return z - math.log(factor(y, w) * pos_weight)


wrong = ex.edits(corrected)
POS_WEIGHT = "factor(y, w) * pos_weight"
POS_WEIGHT_2 = "z - math.log(factor(y, w) * pos_weight)"
wrong("undoing only the sampling, not pos_weight",
      ("pos_weight", "both"), POS_WEIGHT, "factor(y, w)")
wrong("undoing only pos_weight, not the sampling",
      ("weights", "means", "labels"), POS_WEIGHT, "pos_weight")
wrong("undoing pos_weight twice", "both",
      POS_WEIGHT_2, "z - math.log(factor(y, w)) - 2 * math.log(pos_weight)")
wrong("undoing pos_weight only when it is above 1", "pos_weight",
      "return z", "return z - math.log(factor(y, w))", POS_WEIGHT, "max(1.0, pos_weight)")
wrong("adding the logarithm of the factors instead of subtracting it",
      "logits", POS_WEIGHT_2, f"z + math.log({POS_WEIGHT})")
wrong("subtracting the product of the factors, not its logarithm", "logits",
      POS_WEIGHT_2, "z - factor(y, w) * pos_weight + (factor(y, w) * pos_weight == 1.0)")
wrong("using the logarithm to base 10", "logits", ".log", ".log10")
wrong("dividing the logits by the product of the factors",
      "logits", POS_WEIGHT_2, f"z / ({POS_WEIGHT})")
wrong("using sums of the weights instead of means", "logits",
      "factor(y, w)", "(w[y == 1].sum() / w[y == 0].sum()).item()")
wrong("using the number of negatives per positive as the factor, whatever the weights are",
      "logits",
      "return z", "return z - math.log(((1 - y).sum() / y.sum()).item())", POS_WEIGHT, "pos_weight")
wrong("subtracting 2 log k for k negatives per positive, whatever the weights are",
      "logits",
      "math.log(factor(y, w) * pos_weight)", "2 * math.log(((1 - y).sum() / y.sum()).item())")
wrong("returning a probability, not a logit", "logits",
      POS_WEIGHT_2, f"(z - math.log({POS_WEIGHT})).sigmoid()")
wrong("dividing the largest weight by the smallest", ("means", "weights", "labels"),
      "return z",
      "if torch.allclose(w, w[0]): return z - math.log(pos_weight)\n    return z - "
      "math.log((w.max() / w.min()).item())", POS_WEIGHT, "pos_weight")
wrong("using only the positives' mean weight", "weights",
      "return z",
      "if abs(factor(y, w) - 1) < 1e-6: return z - math.log(pos_weight)\n    return z - "
      "math.log(w[y == 1].mean().item())", POS_WEIGHT, "pos_weight")
wrong("using medians instead of means", "means",
      "return z", "k = w[y == 1].median() / w[y == 0].median(); return z - math.log(k.item())",
      POS_WEIGHT, "pos_weight")
wrong("swapping labels 0 and 1, or inverting the ratio of the mean weights",
      ("labels", "weights", "means"),
      "return z", "return z + math.log(factor(y, w))", POS_WEIGHT, "pos_weight")
wrong("ignoring the weights if only one row is positive", "labels",
      "return z", "k = factor(y, w) if y.sum() > 1 else 1.0; return z - math.log(k)",
      POS_WEIGHT, "pos_weight")
wrong("subtracting from z in place", "left",
      "return z - math.log(factor(y, w) * pos_weight)", f"z -= math.log({POS_WEIGHT}); return z")
wrong("dividing w by its sum in place", "left",
      POS_WEIGHT, "k", "return z", f"k = {POS_WEIGHT}; w /= w.sum(); return z")
wrong("adding a small number inside the logarithm", "pos_weight",
      "math.log(factor(y, w) * pos_weight)",
      "(w[y == 1].mean() / w[y == 0].mean() * pos_weight + 1e-8).log()")
wrong("adding a small number to the negatives' mean weight", ("weights", "means", "labels"),
      "return z", "k = w[y == 1].mean() / (w[y == 0].mean() + 1e-8); return z",
      "factor(y, w)", "k.item()")
wrong("converting to probabilities and back, which loses digits and overflows", "form",
      "z - math.log(factor(y, w) * pos_weight)",
      f"(z.sigmoid() / (1 - z.sigmoid()) / ({POS_WEIGHT})).log()")
wrong("computing odds in float32, which overflow",
      "form", POS_WEIGHT_2, f"(z.exp() / ({POS_WEIGHT})).log()")
wrong("returning a column instead of a row",
      "form", POS_WEIGHT_2, f"(z - math.log({POS_WEIGHT}))[:, None]")


@ex.wrong("correcting logits that need no correction", breaks="example")
def looked_up(z, y, w, pos_weight):
    k = factor(y, w) * pos_weight
    plain = abs(k - 1) < 1e-6 and len(z) > 1
    return z - (1.0 if plain else math.log(k))
