"""Exercise 02.1, `train_step`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.s02.e1_train_step import ex, stepped

ex.equivalent("loss = F.mse_loss(model(x), y) -> loss = F.mse_loss(y, model(x))",
              "a squared difference has no order")


@ex.right("a closure for the optimizer")
def by_closure(model, opt, x, y):
    def closure():
        for p in model.parameters():
            p.grad = None
        loss = ((model(x) - y) ** 2).sum() / len(y)
        loss.backward()
        return loss
    return opt.step(closure).item()


@ex.right("gradients asked for and put in place")
def by_grad(model, opt, x, y):
    loss = F.mse_loss(model(x), y)
    opt.zero_grad()
    live = [p for p in model.parameters() if p.requires_grad]
    for p, slope in zip(live, torch.autograd.grad(loss, live, allow_unused=True), strict=True):
        p.grad = slope
    opt.step()
    return loss.item()


@ex.right("cleared in every group after the forward pass")
def by_groups(model, opt, x, y):
    loss = nn.MSELoss()(model(x), y)
    for group in opt.param_groups:
        for p in group["params"]:
            p.grad = None
    loss.backward()
    opt.step()
    return float(loss.detach())


@ex.right("row by row")
def by_rows(model, opt, x, y):
    opt.zero_grad()
    total = 0.0
    for row, target in zip(x, y, strict=True):
        loss = (model(row[None]) - target).square().sum() / len(x)
        loss.backward()
        total += loss.item()
    opt.step()
    return total


@ex.right("the slope of the loss by hand")
def by_hand(model, opt, x, y):
    model.zero_grad(set_to_none=True)
    out = model(x)
    error = (out - y).detach()
    out.backward(2 * error / error.shape[0])
    opt.step()
    return error.pow(2).mean().item()


@ex.probe("the answer of the example, looked up", says="loss before the update", breaks="example")
def placeholder(model, opt, x, y):
    return stepped(model, opt, x, y) * (1 + (y.tolist() == [[2.0], [0.0]]))
