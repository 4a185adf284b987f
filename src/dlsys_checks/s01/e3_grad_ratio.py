"""Exercise 01.3, `grad_ratio`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
)

ex = exercise("01.3", "grad_ratio",
              seen=("weights", "biases", "preset", "x", "y"), kept=("weights",))


@ex.cases
def cases(g):
    def one(name, rows, sizes, scale, preset=False):
        weights = [torch.randn(o, i, generator=g) * scale for i, o in zip(sizes, sizes[1:])]
        biases = [torch.randn(o, generator=g) * 0.3 for o in sizes[1:]]
        return name, {"weights": weights, "biases": biases, "preset": preset,
                      "x": torch.randn(rows, sizes[0], generator=g),
                      "y": torch.randint(sizes[-1], (rows,), generator=g)}
    return [one("three layers", 6, (5, 7, 4, 3), 0.5),
            one("gradients left over from before", 9, (4, 6, 2), 0.8, preset=True),
            one("a nearly silent first layer", 8, (3, 9, 9, 5), 0.15)]


@ex.act
def act(fn, weights, biases, preset, x, y):
    layers = []
    for w, b in zip(weights, biases):
        linear = nn.Linear(w.shape[1], w.shape[0])
        with torch.no_grad():
            linear.weight.copy_(w)
            linear.bias.copy_(b)
        layers += [linear, nn.Tanh()]
    model = nn.Sequential(*layers[:-1])
    if preset:
        for p in model.parameters():
            p.grad = torch.ones_like(p)
    ratio = fn(model, x, y)
    return {"ratio": ratio, "weights": [m.weight for m in model[::2]]}


def weight_grads(weights, biases, x, y):
    """Gradients of the mean cross-entropy by the chain rule, by hand, in float64."""
    w, b = [t.double() for t in weights], [t.double() for t in biases]
    acts = [x.double()]
    for k in range(len(w) - 1):
        acts.append(torch.tanh(acts[-1] @ w[k].T + b[k]))
    logits = acts[-1] @ w[-1].T + b[-1]
    delta = (logits.softmax(1) - F.one_hot(y, logits.shape[1])) / len(y)
    grads = []
    for k in reversed(range(len(w))):
        grads.insert(0, delta.T @ acts[k])
        delta = delta @ w[k] * (1 - acts[k] ** 2)
    return grads


@ex.law
def law(out, weights, biases, preset, x, y):
    expect_parts(out, "ratio", "weights")
    expect_length("weights after the call", out["weights"], len(weights))
    for got, w in zip(out["weights"], weights, strict=True):
        expect_like("weight after the call", got, w)
    moved = torch.stack([(got - w).abs().max()
                         for got, w in zip(out["weights"], weights, strict=True)])
    expect_equal("largest change of a weight", float(moved.max()), 0.0,
                 "Measuring must not train.")
    grads = weight_grads(weights, biases, x, y)
    wanted = float(grads[0].norm() / grads[-1].norm())
    expect_close("gradient norm of the first weight over that of the last", out["ratio"], wanted,
                 rtol=1e-3, atol=1e-9)


def linear_layers(model):
    return [m for m in model if isinstance(m, nn.Linear)]


def backward(model, x, y):
    F.cross_entropy(model(x), y).backward()


@ex.wrong("last over first: the ratio upside down", says="over that of the last")
def upside_down(model, x, y):
    model.zero_grad()
    backward(model, x, y)
    first, *_, last = linear_layers(model)
    return (last.weight.grad.norm() / first.weight.grad.norm()).item()


@ex.wrong("gradients added to those left over from before", says="over that of the last",
          trap="02.1")
def keeps_old_grads(model, x, y):
    backward(model, x, y)
    first, *_, last = linear_layers(model)
    return (first.weight.grad.norm() / last.weight.grad.norm()).item()


@ex.wrong("the bias counted in the norm", says="over that of the last")
def with_bias(model, x, y):
    model.zero_grad()
    backward(model, x, y)
    first, *_, last = (torch.cat([m.weight.grad.flatten(), m.bias.grad])
                       for m in linear_layers(model))
    return (first.norm() / last.norm()).item()


@ex.wrong("gradients read after they were zeroed", says="got nan")
def read_after_zeroing(model, x, y):
    backward(model, x, y)
    model.zero_grad(set_to_none=False)
    first, *_, last = linear_layers(model)
    return (first.weight.grad.norm() / last.weight.grad.norm()).item()


@ex.wrong("the weight change of one Adam step instead of the gradient", says="change of a weight")
def adam_step(model, x, y):
    layers = linear_layers(model)
    before = [m.weight.detach().clone() for m in layers]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer.zero_grad()
    backward(model, x, y)
    optimizer.step()
    moves = [(m.weight - w).norm() for m, w in zip(layers, before)]
    return (moves[0] / moves[-1]).item()


@ex.wrong("the largest entry instead of the norm", says="over that of the last")
def largest_entry(model, x, y):
    model.zero_grad()
    backward(model, x, y)
    first, *_, last = linear_layers(model)
    return (first.weight.grad.abs().max() / last.weight.grad.abs().max()).item()
