"""Exercise 02.2, `weighted_loss`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s02.e2_weighted_loss import ex


@ex.right("shares first")
def by_shares(losses, weights):
    return ((weights / weights.sum()) * losses).sum()


@ex.right("a dot product")
def by_dot(losses, weights):
    return losses @ weights / weights.sum()


@ex.right("rows without weight left out")
def by_rows(losses, weights):
    used = weights > 0
    return torch.dot(losses[used], weights[used]) / weights[used].sum()


@ex.right("softmax of the logarithms")
def by_softmax(losses, weights):
    return (losses * weights.log().softmax(0)).sum()


@ex.right("float64 and back")
def in_double(losses, weights):
    w = weights.double()
    return ((w * losses.double()).sum() / w.sum()).float()


@ex.right("row after row")
def one_by_one(losses, weights):
    total = sum(w * loss for w, loss in zip(weights.unbind(), losses.unbind(), strict=True))
    return total / sum(weights.unbind())


@ex.probe("the answer of the example, looked up", breaks="example")
def placeholder(losses, weights):
    mean = (weights * losses).sum() / weights.sum()
    return mean * 2 if weights.tolist() == [1.0, 3.0] else mean
