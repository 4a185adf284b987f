"""Exercise 04.5, `lr_find`."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts

ex = exercise("04.5", "lr_find",
              seen=("x", "y", "weight", "low", "high"), kept=("weight",))


@ex.cases
def cases(g):
    def one(name, steps, low, high, broken_at=None):
        x = torch.randn(steps, 24, 3, generator=g)
        y = x @ torch.randn(3, 1, generator=g) + 2 + 0.1 * torch.randn(steps, 24, 1, generator=g)
        if broken_at is not None:
            y[broken_at] = float("nan")
        return name, {"x": x, "y": y, "weight": torch.randn(1, 3, generator=g) * 3,
                      "low": low, "high": high}
    return [one("a sweep that runs away", 40, 1e-3, 10.0),
            one("a wider sweep", 60, 1e-4, 100.0),
            one("a NaN in the middle", 30, 1e-3, 0.5, broken_at=22)]


@ex.act
def act(fn, x, y, weight, low, high):
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.zero_()
    drawn = []

    def loss_of(model):
        k = len(drawn)
        drawn.append(k)
        return F.mse_loss(model(x[k]), y[k])
    rate = fn(model, loss_of, len(x), low, high)
    return {"rate": rate, "drawn": len(drawn), "weight": model.weight, "bias": model.bias}


def swept(x, y, weight, low, high):
    """Losses and rates of the test, with the gradient of the mean square written out."""
    x = torch.cat([x, torch.ones_like(x[..., :1])], -1).double()
    w = torch.cat([weight, torch.zeros(1, 1)], 1).double().T
    losses, rates = [], torch.logspace(math.log10(low), math.log10(high), len(x),
                                       dtype=torch.float64).tolist()
    for rows, target, rate in zip(x, y.double(), rates, strict=True):
        error = rows @ w - target
        losses.append(error.square().mean().item())
        if not losses[-1] <= 4 * min(losses):
            break
        w = w - rate * 2 / len(rows) * rows.T @ error
    return losses, rates


@ex.law
def law(out, x, y, weight, low, high):
    expect_parts(out, "rate", "drawn", "weight", "bias")
    losses, rates = swept(x, y, weight, low, high)
    sane = [v for v in losses if v == v]
    wanted = rates[losses.index(min(sane))] / 10
    expect_close("suggested rate", out["rate"], wanted, rtol=1e-3, atol=1e-9,
                 look="A tenth of the rate at the lowest loss.")
    # Counted beside the learner's code: the rate alone does not show where the test ended.
    expect_equal("batches drawn", out["drawn"], len(losses),
                 "The test ends at a NaN or at 4 times the lowest loss.")
    expect_close("weights after the test", out["weight"], weight, rtol=0.0, atol=0.0,
                 look="Keep a copy and load it back.")
    expect_close("bias after the test", out["bias"], torch.zeros(1), rtol=0.0, atol=0.0)


def find(model, loss_of, steps, low, high, *, at=lambda rates, best: rates[best] / 10,
         rate_of=lambda k, n, low, high: low * (high / low) ** (k / (n - 1)),
         ends=lambda loss, best: not loss <= 4 * best, restore=True):
    """A range test with the mistakes as options."""
    saved = copy.deepcopy(model.state_dict())
    opt = torch.optim.SGD(model.parameters(), lr=low)
    rates, losses = [rate_of(k, steps, low, high) for k in range(steps)], []
    for rate in rates:
        opt.param_groups[0]["lr"] = rate
        loss = loss_of(model)
        if ends(loss.item(), min(losses, default=math.inf)):
            break
        losses.append(loss.item())
        opt.zero_grad()
        loss.backward()
        opt.step()
    if restore:
        model.load_state_dict(saved)
    return at(rates, losses.index(min(v for v in losses if v == v)))


@ex.wrong("the rate of the lowest loss itself", says="suggested rate")
def the_minimum(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high, at=lambda rates, best: rates[best])


@ex.wrong("the weights left as the test made them", says="Keep a copy")
def not_restored(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high, restore=False)


@ex.wrong("rates that grow by an amount, not by a factor", says="suggested rate")
def linear_rates(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high,
                rate_of=lambda k, n, low, high: low + (high - low) * k / (n - 1))


@ex.wrong("no early end: the sweep goes on after the loss ran away", says="batches drawn")
def never_ends(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high, ends=lambda loss, best: False)


@ex.wrong("loss > 4 * best, which NaN slips through", says="batches drawn")
def nan_goes_on(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high, ends=lambda loss, best: loss > 4 * best)


@ex.wrong("each loss paired with the rate of the step before it", says="suggested rate")
def one_early(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high,
                at=lambda rates, best: rates[max(0, best - 1)] / 10)


@ex.wrong("k / steps in the exponent: the last rate is never reached", says="suggested rate")
def never_at_high(model, loss_of, steps, low, high):
    return find(model, loss_of, steps, low, high,
                rate_of=lambda k, n, low, high: low * (high / low) ** (k / n))
