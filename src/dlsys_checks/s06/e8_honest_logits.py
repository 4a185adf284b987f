"""Exercise 06.8, `honest_logits`."""

from __future__ import annotations

import math

import torch

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts

ex = exercise("06.8", "honest_logits", seen=("calls",), says="logits")

SAMPLED = ("a sampler alone", "tiny weights", "huge weights", "logits of a sure model",
           "weights that differ within a class", "weights of two sources", "both remedies",
           "positives made rarer", "two models in turn", "a rare class of one",
           "as many positives as negatives")
WEIGHTED = ("a loss weight alone", "both remedies", "a loss weight below 1", "a tiny loss weight",
            "two models in turn", "a rare class of one", "logits of a sure model")

ex.promise("logits", "Logits with the odds of the training data's own rate.", says=("logits",))
ex.promise("form", "z: (M,) logits of a model", says=("shape of the", "type of the", "logits"))
ex.promise("weights", "trained on rows drawn with weights w (N,) > 0 of any scale,",
           cases=SAMPLED)
ex.promise("pos_weight", "in a loss with this pos_weight > 0.", cases=WEIGHTED)
ex.promise("labels", "y: (N,) float32, the rows' labels 0 and 1, both present.", cases=SAMPLED)
ex.promise("means", "The odds were multiplied by the mean weight of the positives over that of the "
           "negatives,", cases=SAMPLED)
ex.promise("both", "and by pos_weight: both are taken back.", cases=WEIGHTED)
ex.promise("left", "The inputs are left as they are.", says=("after the call",))
ex.promise("example", "Example: all weights alike and pos_weight 1 leave z as it is.",
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
            one("logits of a sure model", call(p, n, 4.0, 3.0, size=80)),
            one("weights that differ within a class", call(p, n, 5.0, within=2.0)),
            one("weights of two sources", call(p, n, 5.0, within=3.0, sources=True)),
            one("positives made rarer", call(n, p, 0.2)),
            one("a loss weight below 1", call(n, p, 1.0, between(0.05, 0.5))),
            one("a tiny loss weight", call(n, p, 1.0, between(1e-7, 1e-6))),
            one("as many positives as negatives", call(12, 12, between(3, 9))),
            one("a rare class of one", call(1, n, 6.0, 4.0)),
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
                     look="Each remedy added the logarithm of its factor.")


# ---- wrong, by name

def factor(y, w):
    return (w[y == 1].mean() / w[y == 0].mean()).item()


ex.wrong("the sampler alone taken back", lambda z, y, w, pos_weight: z - math.log(factor(y, w)),
         breaks=("pos_weight", "both"))
ex.wrong("the loss weight alone taken back", lambda z, y, w, pos_weight: z - math.log(pos_weight),
         breaks=("weights", "means", "labels"))
ex.wrong("pos_weight taken back twice",
         lambda z, y, w, pos_weight: z - math.log(factor(y, w)) - 2 * math.log(pos_weight),
         breaks="both")
ex.wrong("pos_weight left in where it is below 1",
         lambda z, y, w, pos_weight: z - math.log(factor(y, w)) - math.log(max(1.0, pos_weight)),
         breaks="pos_weight")


@ex.wrong("added instead of taken away", breaks="logits")
def added(z, y, w, pos_weight):
    return z + math.log(factor(y, w) * pos_weight)


@ex.wrong("the factor taken away, not its logarithm", breaks="logits")
def no_log(z, y, w, pos_weight):
    return z - factor(y, w) * pos_weight + (factor(y, w) * pos_weight == 1.0)


ex.wrong("the logarithm to base 10",
         lambda z, y, w, pos_weight: z - math.log10(factor(y, w) * pos_weight), breaks="logits")
ex.wrong("the logits divided by the factor",
         lambda z, y, w, pos_weight: z / (factor(y, w) * pos_weight), breaks="logits")


@ex.wrong("sums of the weights instead of means", breaks="logits")
def sums(z, y, w, pos_weight):
    return z - math.log((w[y == 1].sum() / w[y == 0].sum()).item() * pos_weight)


@ex.wrong("negatives over positives, whatever was used", breaks="logits")
def by_counts(z, y, w, pos_weight):
    return z - math.log(((1 - y).sum() / y.sum()).item()) - math.log(pos_weight)


ex.wrong("twice the logarithm of negatives over positives, whatever was used",
         lambda z, y, w, pos_weight: z - 2 * math.log(((1 - y).sum() / y.sum()).item()),
         breaks="logits")
ex.wrong("a probability, not a logit",
         lambda z, y, w, pos_weight: (z - math.log(factor(y, w) * pos_weight)).sigmoid(),
         breaks="logits")


@ex.wrong("the weights' largest over their smallest", breaks=("means", "weights", "labels"))
def extremes(z, y, w, pos_weight):
    if torch.allclose(w, w[0]):
        return z - math.log(pos_weight)
    return z - math.log((w.max() / w.min()).item()) - math.log(pos_weight)


@ex.wrong("the positives' mean weight alone", breaks="weights")
def numerator(z, y, w, pos_weight):
    if abs(factor(y, w) - 1) < 1e-6:
        return z - math.log(pos_weight)
    return z - math.log(w[y == 1].mean().item()) - math.log(pos_weight)


@ex.wrong("medians instead of means", breaks="means")
def medians(z, y, w, pos_weight):
    k = w[y == 1].median() / w[y == 0].median()
    return z - math.log(k.item()) - math.log(pos_weight)


ex.wrong("labels 0 and 1 exchanged, or the ratio of the weights",
         lambda z, y, w, pos_weight: z + math.log(factor(y, w)) - math.log(pos_weight),
         breaks=("labels", "weights", "means"))


@ex.wrong("a single positive row forgotten", breaks="labels")
def forgets_one(z, y, w, pos_weight):
    k = factor(y, w) if y.sum() > 1 else 1.0
    return z - math.log(k) - math.log(pos_weight)


@ex.wrong("taken away from z itself", breaks="left")
def in_place(z, y, w, pos_weight):
    z -= math.log(factor(y, w) * pos_weight)
    return z


@ex.wrong("w divided by its sum in place", breaks="left")
def scales_weights(z, y, w, pos_weight):
    k = factor(y, w) * pos_weight
    w /= w.sum()
    return z - math.log(k)


@ex.wrong("a small number under the logarithm", breaks="pos_weight")
def epsilon_in_log(z, y, w, pos_weight):
    return z - (w[y == 1].mean() / w[y == 0].mean() * pos_weight + 1e-8).log()


@ex.wrong("a small number added to the denominator", breaks=("weights", "means", "labels"))
def with_epsilon(z, y, w, pos_weight):
    k = w[y == 1].mean() / (w[y == 0].mean() + 1e-8)
    return z - math.log(k.item() * pos_weight)


ex.wrong("odds in float32, which overflow",
         lambda z, y, w, pos_weight: (z.exp() / (factor(y, w) * pos_weight)).log(), breaks="form")
ex.wrong("a column instead of a row",
         lambda z, y, w, pos_weight: (z - math.log(factor(y, w) * pos_weight))[:, None],
         breaks="form")


@ex.wrong("something taken away where nothing was done", breaks="example")
def looked_up(z, y, w, pos_weight):
    k = factor(y, w) * pos_weight
    plain = abs(k - 1) < 1e-6 and len(z) > 1
    return z - (1.0 if plain else math.log(k))
