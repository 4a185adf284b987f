"""Exercise 02.2, `weighted_loss`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_checks.rounding import ROUNDED
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_parts

ex = exercise("02.2", "weighted_loss", seen=("x", "shift", "weights", "theta"),
              says="weighted mean")

ex.promise_table("""
mean    | Compute the weighted mean of per-row losses. | weighted mean; gradient through
losses  | Args: losses: (N,) float32, with a graph. | case one row; losses of both signs; huge
          losses; tiny losses; many rows
weights | weights: (N,) float32, each at least 0. Some can be 0, but not all. | case some weights
          are zero; a single weight; equal weights
float32 | Returns: The mean in float32. | dtype of the weighted mean
scalar  | The result is a scalar that stays connected to the graph of the losses. | shape of
          the weighted mean; graph behind; path from the result; gradient through
doubled | Doubling every weight changes nothing, even if the weights are tiny or huge. | case tiny
          weights; weights below one; huge weights
example | Example: losses [1., 3.] with weights [1., 3.] give 2.5. | case the example
""")


@ex.cases
def cases(g):
    number = integers(g)

    def one(name, rows, scale=1.0, zeros=(), size=1.0, shift=0.0):
        weights = (torch.rand(rows, generator=g) + 0.5) * scale
        weights[list(zeros)] = 0.0
        return name, {"x": torch.randn(rows, 3, generator=g) * size, "shift": shift,
                      "weights": weights, "theta": torch.randn(3, generator=g) + 1}
    alone = number(0, 6)
    example = {"x": torch.tensor([[1.0, 0.0, 0.0], [0.0, 3.0**0.5, 0.0]]), "shift": 0.0,
               "weights": torch.tensor([1.0, 3.0]), "theta": torch.tensor([1.0, 1.0, 0.5])}
    equal = one("equal weights", number(4, 8), 3.0)
    equal[1]["weights"][:] = number(2, 5)
    return [one("weights near one", number(5, 9)), one("large weights", number(4, 7), 40.0),
            one("some weights are zero", 9, 2.0, zeros=(0, 3, number(4, 9))),
            one("a single weight", 6, 3.0, zeros=[k for k in range(6) if k != alone]),
            equal, one("one row", 1, 3.0),
            one("losses of both signs", number(6, 12), 2.0, shift=1.0 + number(0, 3)),
            one("huge losses", 5, 1.0, size=1e4), one("tiny losses", 7, 2.0, size=1e-3),
            one("many rows", number(300, 500)), one("weights below one", 5, 0.02),
            one("tiny weights", number(4, 8), 1e-20), one("huge weights", 6, 1e12),
            ("the example", example)]


@ex.act
def act(fn, x, shift, weights, theta):
    theta = theta.clone().requires_grad_()
    both = torch.stack([(x @ theta) ** 2 - shift, x @ theta], 1)
    losses = both[:, 0]  # neighbours in memory are not neighbours in the vector
    before = losses.detach().clone()
    value = fn(losses, weights)
    linked = isinstance(value, torch.Tensor) and value.dim() == 0 and value.requires_grad
    grad = torch.autograd.grad(value, theta, allow_unused=True)[0] if linked else None
    return {"value": value, "linked": linked, "grad": grad, "edited": int((losses != before).sum())}


@ex.law
def law(out, x, shift, weights, theta):
    expect_parts(out, "value", "linked", "grad", "edited")
    shares = weights.double() / weights.double().sum()
    score, reach = x.double() @ theta.double(), x.double().abs() @ theta.double().abs()
    losses = score**2 - shift
    # Scores cancel, and so do losses of both signs.
    expect_close("weighted mean", out["value"], (shares * losses).sum().float(), rtol=1e-5,
                 atol=ROUNDED * float((shares * (reach**2 + shift)).sum()),
                 look=f"The {len(weights)} losses are between {losses.min():.4g} and "
                      f"{losses.max():.4g}, and their weights add up to "
                      f"{weights.double().sum():.4g}.")
    expect_equal("graph behind the result", out["linked"], True,
                 "Compute the result from the losses with tensor operations only.")
    if out["grad"] is None:
        raise Broken("path from the result back to the losses", "none", "one",
                     "A new tensor has no link to the losses.")
    by_hand = 2 * (shares * score) @ x.double()
    expect_close("gradient through the result", out["grad"], by_hand.float(), rtol=1e-4,
                 atol=ROUNDED * float((2 * (shares * reach) @ x.double().abs()).max()))
    expect_equal("losses changed by the call", out["edited"], 0,
                 "The losses belong to the caller, so do not change them.")


# ---- wrong, by name

ex.wrong("returning the weighted sum instead of the weighted mean",
         lambda losses, weights: (weights * losses).sum(), breaks="mean")
ex.wrong("dividing by the number of rows", lambda losses, weights: (weights * losses).mean(),
         breaks="mean")
ex.wrong("multiplying the mean loss by the mean weight",
         lambda losses, weights: losses.mean() * weights.mean(),
         breaks="mean")
ex.wrong("dividing by the number of rows whose weight is above zero",
         lambda losses, weights: (weights * losses).sum() / (weights > 0).sum(), breaks="mean")
ex.wrong("taking the plain mean of the rows whose weight is above zero",
         lambda losses, weights: losses[weights > 0].mean(), breaks="mean")
ex.wrong("scaling the weights to a mean of one and adding up the weighted losses",
         lambda losses, weights: (weights / weights.mean() * losses).sum(), breaks="mean")
ex.wrong("dividing the weights by the largest and averaging the weighted losses",
         lambda losses, weights: (weights / weights.max() * losses).mean(), breaks="mean")
ex.wrong("multiplying the losses by the softmax of the weights",
         lambda losses, weights: (weights.softmax(0) * losses).sum(), breaks="mean")


@ex.wrong("dividing by the norm of the weights instead of their sum", breaks="mean")
def over_norm(losses, weights):
    return (weights * losses).sum() / (weights / weights.max()).norm() / weights.max()


ex.wrong("detaching the losses from their graph",
         lambda losses, weights: (weights * losses.detach()).sum() / weights.sum(),
         says="graph behind the result", breaks="scalar")


@ex.wrong("returning a new leaf that is not connected to the losses", breaks="scalar")
def new_leaf(losses, weights):
    return torch.tensor(((weights * losses).sum() / weights.sum()).item(), requires_grad=True)


ex.wrong("returning one value per row instead of the sum over rows",
         lambda losses, weights: weights * losses / weights.sum(), breaks="scalar")
ex.wrong("returning a vector with one entry",
         lambda losses, weights: ((weights * losses).sum() / weights.sum())[None], breaks="scalar")
ex.wrong("returning a result in float64",
         lambda losses, weights: (weights.double() * losses).sum() / weights.double().sum(),
         breaks="float32")
ex.wrong("clamping negative losses to zero",
         lambda losses, weights: (weights * losses.clamp(min=0)).sum() / weights.sum(),
         breaks="losses")
ex.wrong("clamping every loss to at most 1000",
         lambda losses, weights: (weights * losses.clamp(max=1000.0)).sum() / weights.sum(),
         breaks="losses")
ex.wrong("using only the first 256 rows",
         lambda losses, weights: (weights * losses)[:256].sum() / weights[:256].sum(),
         breaks="losses")


@ex.wrong("replacing zero weights with a small weight", breaks="weights")
def no_zero(losses, weights):
    weights = weights.clamp(min=1e-2 * float(weights.max()))
    return (weights * losses).sum() / weights.sum()


@ex.wrong("raising ValueError for a weight of zero", says="raised ValueError", breaks="weights")
def refuses_zero(losses, weights):
    if (weights <= 0).any():
        raise ValueError("weights must be positive")
    return (weights * losses).sum() / weights.sum()


ex.wrong("clamping the sum of the weights to at least 1",
         lambda losses, weights: (weights * losses).sum() / weights.sum().clamp(min=1),
         breaks="doubled")
ex.wrong("adding a small number to the sum of the weights",
         lambda losses, weights: (weights * losses).sum() / (weights.sum() + 1e-8),
         breaks="doubled")


@ex.wrong("clamping every weight to at least 1e-4", breaks=("doubled", "weights"))
def no_tiny_weight(losses, weights):
    weights = weights.clamp(min=1e-4)
    return (weights * losses).sum() / weights.sum()
