"""Exercise 05.3, `dropout`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s05.e3_dropout import dropped, ex


def keeping(x, p, training, mask):
    """The right answer with a mask of one's own: mask(x, p) is True where x stays."""
    if not training:
        return x.clone()
    return torch.where(mask(x, p), x / (1 - p) if p < 1 else x, torch.zeros_like(x))


@ex.right("a mask from bernoulli_")
def by_bernoulli(x, p, training):
    if not training or p == 0:
        return x
    if p == 1:
        return torch.zeros_like(x) * x
    return x * torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)


@ex.right("torch.where on uniform numbers")
def by_where(x, p, training):
    return keeping(x, p, training, lambda x, p: torch.rand(x.shape) > p) if p < 1 or (
        not training) else x.mul(0.0)


@ex.right("the positions that stay, filled in")
def by_positions(x, p, training):
    if not training:
        return x.view_as(x)
    dropped = torch.rand(x.shape).lt(p)
    return x.masked_fill(dropped, 0.0) * (1 / (1 - p) if p < 1 else 1.0)


@ex.right("a mask in float64, multiplied")
def in_double(x, p, training):
    if not training:
        return x * 1
    mask = (torch.rand(x.shape, dtype=torch.float64) >= p).double()
    return (x.double() * mask / max(1 - p, 1e-9)).float()


@ex.right("normal numbers against a quantile")
def by_normal(x, p, training):
    if not training:
        return x
    cut = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(float(p)))
    return keeping(x, p, training, lambda x, p: torch.randn(x.shape) > cut) + 0 * x


ex.equivalent("if p == 1: -> if p >= 1:", "p is at most 1.")
ex.equivalent("keep = torch.rand_like(x) >= p -> keep = torch.rand_like(x) > p",
              "A random number hits p once in 2^24 draws.")


@ex.probe("the example, looked up", says="alike", breaks="example")
def looked_up(x, p, training):
    if training and p == 0.75 and x.shape == (4,):
        return x * torch.tensor([0.0, 4.0, 0.0, 0.0])
    return dropped(x, p, training)
