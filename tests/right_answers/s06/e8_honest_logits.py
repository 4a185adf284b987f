"""Exercise 06.8, `honest_logits`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch

from dlsys_checks.s06.e8_honest_logits import ex


@ex.right("each remedy by itself")
def by_steps(z, y, w, pos_weight):
    positive = y > 0.5
    z = z - torch.log(w[positive].mean()) + torch.log(w[~positive].mean())
    return z - math.log(pos_weight)


@ex.right("odds, divided")
def by_odds(z, y, w, pos_weight):
    k = (w * y).sum() / y.sum() / ((w * (1 - y)).sum() / (1 - y).sum())
    odds = z.double().exp() / (k.double() * pos_weight)
    return odds.log().float()


@ex.right("rates before and after")
def by_rates(z, y, w, pos_weight):
    before, after = y.double().mean(), (w * y).double().sum() / w.double().sum()
    return (z - (after.logit() - before.logit()) - math.log(pos_weight)).float()


@ex.right("in Python's floats")
def by_floats(z, y, w, pos_weight):
    rows = list(zip(y.tolist(), w.tolist(), strict=True))
    mean = {}
    for label in (0.0, 1.0):
        own = [weight for k, weight in rows if k == label]
        mean[label] = sum(own) / len(own)
    shift = math.log(mean[1.0] / mean[0.0] * pos_weight)
    return torch.tensor([v - shift for v in z.tolist()])


ex.equivalent("k = w[y == 1].mean() / w[y == 0].mean() * pos_weight -> "
              "k = w[y == 1].mean() / w[y <= 0].mean() * pos_weight", "labels are 0 and 1")
ex.equivalent("k = w[y == 1].mean() / w[y == 0].mean() * pos_weight -> "
              "k = w[y >= 1].mean() / w[y == 0].mean() * pos_weight", "labels are 0 and 1")


@ex.probe("each weight counted once", breaks="means")
def each_weight_once(z, y, w, pos_weight):
    means = [w[y == label].unique().double().mean() for label in (1, 0)]
    return z - (means[0] / means[1]).log() - torch.tensor(pos_weight, dtype=z.dtype).log()
