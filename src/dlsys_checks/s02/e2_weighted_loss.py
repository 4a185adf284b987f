"""Exercise 02.2, `weighted_loss`."""

from __future__ import annotations

import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_parts

ex = exercise("02.2", "weighted_loss",
              seen=("x", "weights", "theta"))


@ex.cases
def cases(g):
    def one(name, rows, scale, zeros=0):
        weights = (torch.rand(rows, generator=g) + 0.2) * scale
        weights[:zeros] = 0.0
        return name, {"x": torch.randn(rows, 3, generator=g), "weights": weights,
                      "theta": torch.randn(3, generator=g) + 1}
    return [one("weights near one", 7, 1.0), one("large weights", 5, 40.0),
            one("some weights are zero", 9, 2.0, zeros=3), one("one row", 1, 3.0)]


@ex.act
def act(fn, x, weights, theta):
    theta = theta.clone().requires_grad_()
    out = fn((x @ theta) ** 2, weights)
    linked = isinstance(out, torch.Tensor) and out.dim() == 0 and out.requires_grad
    grad = torch.autograd.grad(out, theta)[0] if linked else None
    return {"value": out, "grad": grad}


@ex.law
def law(out, x, weights, theta):
    expect_parts(out, "value", "grad")
    shares = weights.double() / weights.double().sum()
    score = x.double() @ theta.double()
    expect_close("weighted mean", out["value"], (shares * score**2).sum().float(), rtol=1e-4)
    if out["grad"] is None:
        raise Broken("graph behind the result", "none", "one that leads to the losses",
                     "Stay in tensors that require gradients.")
    by_hand = 2 * (shares * score) @ x.double()
    expect_close("gradient through the result", out["grad"], by_hand.float(), rtol=1e-3, atol=1e-5)


@ex.wrong("the weighted sum", says="weighted mean")
def weighted_sum(losses, weights):
    return (weights * losses).sum()


@ex.wrong("divided by the number of rows", says="weighted mean")
def over_rows(losses, weights):
    return (weights * losses).mean()


@ex.wrong("the product of two means", says="weighted mean")
def product_of_means(losses, weights):
    return losses.mean() * weights.mean()


@ex.wrong("divided by the number of rows with a weight", says="weighted mean")
def over_counted_rows(losses, weights):
    return (weights * losses).sum() / (weights > 0).sum()


@ex.wrong("softmax of the weights as shares", says="weighted mean")
def softmax_shares(losses, weights):
    return (weights.softmax(0) * losses).sum()


@ex.wrong("losses without their graph", says="graph behind the result")
def detached(losses, weights):
    return (weights * losses.detach()).sum() / weights.sum()


@ex.wrong("one value per row, never summed", says="shape of the weighted mean")
def not_reduced(losses, weights):
    return weights * losses / weights.sum()
