"""Exercise 02.1, `train_step`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_close, expect_length, expect_parts

ex = exercise("02.1", "train_step",
              seen=("weight", "bias", "lr", "preset", "batches"))


@ex.cases
def cases(g):
    def one(name, rows, features, preset):
        def batch():
            return [torch.randn(rows, features, generator=g) + 0.5,
                    torch.randn(rows, 1, generator=g) * 2]
        return name, {"weight": torch.randn(1, features, generator=g),
                      "bias": torch.randn(1, generator=g) + 2, "lr": 0.05, "preset": preset,
                      "batches": [batch(), batch()]}
    return [one("two steps", 9, 3, False), one("gradients left over from before", 6, 4, True),
            one("one row", 1, 2, False)]


@ex.act
def act(fn, weight, bias, lr, preset, batches):
    model = nn.Linear(weight.shape[1], 1)
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.copy_(bias)
    if preset:
        for p in model.parameters():
            p.grad = torch.full_like(p, 3.0)
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    losses = [fn(model, opt, x, y) for x, y in batches]
    return {"losses": losses, "weight": model.weight, "bias": model.bias}


@ex.law
def law(out, weight, bias, lr, preset, batches):
    expect_parts(out, "losses", "weight", "bias")
    w, b, losses = weight.double(), bias.double(), []
    for x, y in batches:
        error = x.double() @ w.T + b - y.double()
        losses.append(float((error**2).mean()))
        w = w - lr * 2 * error.T @ x.double() / len(x)
        b = b - lr * 2 * error.mean()
    expect_close("weight after two steps", out["weight"], w.float(), rtol=1e-3, atol=1e-4)
    expect_close("bias after two steps", out["bias"], b.float(), rtol=1e-3, atol=1e-4)
    expect_length("losses", out["losses"], len(losses))
    for got, wanted in zip(out["losses"], losses, strict=True):
        expect_close("loss before the update", got, wanted, rtol=1e-3, atol=1e-6)


@ex.wrong("gradients never cleared", says="weight after")
def never_cleared(model, opt, x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()


@ex.wrong("gradients cleared between backward and step", says="weight after")
def cleared_too_late(model, opt, x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.zero_grad()
    opt.step()
    return loss.item()


@ex.wrong("gradients cleared at the end only", says="weight after")
def cleared_at_the_end(model, opt, x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad()
    return loss.item()


@ex.wrong("only the weight's gradient cleared", says="bias after")
def bias_piles_up(model, opt, x, y):
    model.weight.grad = None
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()


@ex.wrong("the loss after the update", says="loss before the update")
def loss_afterwards(model, opt, x, y):
    opt.zero_grad()
    F.mse_loss(model(x), y).backward()
    opt.step()
    return F.mse_loss(model(x), y).item()


@ex.wrong("the sum of the squared errors", says="weight after", trap="02.2")
def sum_of_squares(model, opt, x, y):
    opt.zero_grad()
    loss = F.mse_loss(model(x), y, reduction="sum")
    loss.backward()
    opt.step()
    return loss.item()


@ex.wrong("the loss as a tensor that keeps its graph", says="type of the loss", trap="02.5")
def loss_with_graph(model, opt, x, y):
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss
