"""Stage 1: laws and named wrong answers for perceptrons, MLPs and activations."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.acting import same
from dlsys_helpers.checking import (
    Broken,
    exercise,
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
    expect_type,
)

# 01.1 predict ---------------------------------------------------------------------------------

ex = exercise("01.1", "predict")


@ex.cases
def cases(g):
    def one(name, batch, training, frozen):
        return name, {"x": torch.randn(batch, 6, generator=g) * 2 + 1, "training": training,
                      "frozen_norm": frozen, "state": trained_state(g)}
    return [one("a model in train mode", 17, True, False),
            one("a model in eval mode", 5, False, False),
            one("a frozen norm inside a model in train mode", 9, True, True)]


def trained_state(g):
    """Weights as nn.Linear draws them, and statistics that are no longer the initial ones."""
    def uniform(*shape, fan_in):
        return (2 * torch.rand(*shape, generator=g) - 1) / math.sqrt(fan_in)
    return {"0.weight": uniform(8, 6, fan_in=6), "0.bias": uniform(8, fan_in=6),
            "1.weight": torch.ones(8), "1.bias": torch.zeros(8),
            "1.running_mean": 0.3 * torch.randn(8, generator=g),
            "1.running_var": 0.5 + torch.rand(8, generator=g),
            "1.num_batches_tracked": torch.tensor(1),
            "4.weight": uniform(3, 8, fan_in=8), "4.bias": uniform(3, fan_in=8)}


@ex.act
def act(fn, x, training, frozen_norm, state):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5),
                          nn.Linear(8, 3))
    model.load_state_dict(state)
    model.train(training)
    if frozen_norm:
        model[1].eval()
    first, second = fn(model, x), fn(model, x)
    return {"out": first, "again": second, "grad": bool(getattr(first, "requires_grad", False)),
            "modes": [m.training for m in model.modules()], "after": dict(model.state_dict())}


def eval_forward(x, state):
    """Linear, BatchNorm with stored statistics, ReLU, Linear, written out in float64."""
    p = {k: v.double() for k, v in state.items()}
    h = x.double() @ p["0.weight"].T + p["0.bias"]
    h = (h - p["1.running_mean"]) / (p["1.running_var"] + 1e-5).sqrt()
    h = (h * p["1.weight"] + p["1.bias"]).clamp(min=0)
    return (h @ p["4.weight"].T + p["4.bias"]).float()


@ex.law
def law(out, x, training, frozen_norm, state):
    expect_parts(out, "out", "again", "grad", "modes", "after")
    expect_parts(out["after"], *state, what="stored state after the call")
    for name, before in state.items():
        if not same(out["after"][name], before):
            raise Broken("stored state after the call", f"{name} changed", "no change",
                         "BatchNorm moves its buffers in train mode.")
    expect_close("prediction", out["out"], eval_forward(x, state), rtol=1e-3, atol=1e-4,
                 look="Compare with the model in eval mode.")
    expect_equal("second call's result", out["again"], out["out"])
    # Whether there was a graph, and the flags: seen from inside, for nothing else shows them.
    expect_equal("requires_grad of the prediction", out["grad"], False,
                 "The graph of this pass is kept in memory.")
    # nn.Sequential and its five layers, in the order of model.modules().
    modes = [training, training, training and not frozen_norm, training, training, training]
    expect_equal("training flags of all modules after the call", out["modes"], modes,
                 "Each module gets its own former mode back.")


@ex.wrong("no_grad without eval mode", says="stored state")
def no_grad_only(model, x):
    with torch.no_grad():
        return model(x)


@ex.wrong("eval mode for the root module only", says="stored state")
@torch.no_grad()
def root_only(model, x):
    model.training = False
    return model(x)


@ex.wrong("eval mode that is never left again", says="training flags")
@torch.no_grad()
def stays_in_eval(model, x):
    return model.eval()(x)


@ex.wrong("train() at the end, whatever the mode was before", says="training flags")
@torch.no_grad()
def always_train(model, x):
    out = model.eval()(x)
    model.train()
    return out


@ex.wrong("the root's former mode for every layer", says="training flags")
@torch.no_grad()
def one_mode_for_all(model, x):
    was = model.training
    out = model.eval()(x)
    model.train(was)
    return out


@ex.wrong("eval mode without no_grad", says="requires_grad")
def keeps_graph(model, x):
    modes = [(m, m.training) for m in model.modules()]
    out = model.eval()(x)
    for module, mode in modes:
        module.training = mode
    return out


# 01.2 to_probs --------------------------------------------------------------------------------

ex = exercise("01.2", "to_probs")


@ex.cases
def cases(g):
    def logits(*shape, scale=2.0):
        return torch.randn(*shape, generator=g) * scale
    return [("one column, binary", {"logits": logits(7, 1), "kind": "binary"}),
            ("one row of classes", {"logits": logits(1, 5), "kind": "multiclass"}),
            ("more classes than rows", {"logits": logits(3, 11), "kind": "multiclass"}),
            ("independent labels", {"logits": logits(6, 4), "kind": "multilabel"}),
            ("logits near 200", {"logits": logits(4, 3) + 200.0, "kind": "multiclass"}),
            ("logits near -200", {"logits": logits(5, 1) - 200.0, "kind": "binary"})]


@ex.law
def law(out, logits, kind):
    z = logits.double()
    if kind == "multiclass":
        odds = (z - z.max(1, keepdim=True).values).exp()
        wanted = odds / odds.sum(1, keepdim=True)
        look = "Each row is one choice among all classes: its sum is 1."
    else:
        wanted = 1 / (1 + (-z).exp())
        look = "Each entry answers its own yes-or-no question."
    expect_close(f"{kind} probabilities", out, wanted.float(), rtol=1e-4, atol=1e-7, look=look)


@ex.wrong("softmax over dim 0, the batch", says="one choice among all classes")
def over_batch(logits, kind):
    return logits.softmax(0) if kind == "multiclass" else logits.sigmoid()


@ex.wrong("softmax for everything, one column included", says="binary probabilities: got 1")
def softmax_always(logits, kind):
    return logits.softmax(1)


@ex.wrong("sigmoid for everything", says="one choice among all classes")
def sigmoid_always(logits, kind):
    return logits.sigmoid()


@ex.wrong("softmax for independent labels", says="its own yes-or-no")
def softmax_multilabel(logits, kind):
    return logits.sigmoid() if kind == "binary" else logits.softmax(1)


@ex.wrong("exp without subtracting the maximum", says="got nan")
def overflowing(logits, kind):
    if kind != "multiclass":
        return logits.sigmoid()
    return logits.exp() / logits.exp().sum(1, keepdim=True)


@ex.wrong("raw logits clamped to [0, 1]", says="binary probabilities")
def clamped(logits, kind):
    return logits.clamp(0, 1)


# 01.3 grad_ratio ------------------------------------------------------------------------------

ex = exercise("01.3", "grad_ratio")


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


# 01.4 dead_units ------------------------------------------------------------------------------

ex = exercise("01.4", "dead_units")


@ex.cases
def cases(g):
    def layer(rows, units, dead):
        h = torch.randn(rows, units, generator=g).relu() + 0.01
        h *= torch.rand(rows, units, generator=g) < 0.4  # a healthy unit is often off
        h[0] = 0.5 * (torch.arange(units) % 2)           # for the first row every other one
        columns = torch.arange(units)
        h[1 + columns % (rows - 1), columns] = 0.5       # yet each is on for some row
        h[:, torch.randperm(units, generator=g)[:dead]] = 0.0
        return h
    leaky = layer(8, 6, 2)
    leaky[:, 3] = torch.tensor([1.0, -1.0] * 4)  # sums to zero, and is anything but dead
    broken = layer(7, 5, 1)
    broken[:, 2] = float("nan")
    return [("some dead units", {"h": layer(31, 12, 3)}),
            ("no dead unit", {"h": layer(9, 16, 0)}),
            ("signed outputs", {"h": leaky}),
            ("a column of NaN", {"h": broken})]


@ex.act
def act(fn, h):
    try:
        return {"raised": False, "count": fn(h)}
    except ValueError:
        return {"raised": True, "count": None}


@ex.law
def law(out, h):
    expect_parts(out, "raised", "count")
    expect_type("whether it raised", out["raised"], bool)
    if out["raised"]:
        expect_equal("count beside a ValueError", out["count"], None)
    if h.isnan().any():
        if not out["raised"]:
            raise Broken("answer for NaN outputs", out["count"], "a ValueError",
                         "NaN == 0 is False: a broken layer must not look alive.")
        return
    if out["raised"]:
        raise Broken("answer for outputs without a NaN", "a ValueError", "a count")
    expect_type("count of dead units", out["count"], int)
    dead = sum(all(value == 0 for value in column) for column in zip(*h.tolist(), strict=True))
    expect_equal("count of dead units", out["count"], dead, "Dead means 0 for every row.")


def refuse_nan(h):
    if h.isnan().any():
        raise ValueError("NaN in h")


@ex.wrong("an alarm when a unit is off for more than a fifth of the rows", says="for every row")
def mostly_off(h):
    refuse_nan(h)
    return int(((h == 0).float().mean(0) > 0.2).sum())


@ex.wrong("rows counted instead of units", says="for every row")
def dead_rows(h):
    refuse_nan(h)
    return int((h == 0).all(1).sum())


@ex.wrong("a look at the first row only", says="for every row")
def first_row(h):
    refuse_nan(h)
    return int((h[0] == 0).sum())


@ex.wrong("zeros counted, not units", says="for every row")
def zeros(h):
    refuse_nan(h)
    return int((h == 0).sum())


@ex.wrong("NaN taken for life", says="a ValueError")
def nan_is_alive(h):
    return int((h == 0).all(0).sum())


@ex.wrong("columns that sum to zero, signed ones included", says="for every row")
def zero_sum(h):
    refuse_nan(h)
    return int((h.sum(0) == 0).sum())


# 01.5 soft_threshold ---------------------------------------------------------------------------

ex = exercise("01.5", "soft_threshold")


@ex.cases
def cases(g):
    def one(name, shape, cut, transposed=False):
        x = torch.randn(*shape, generator=g) * 3
        return name, {"x": x.T.contiguous() if transposed else x, "cut": cut,
                      "transposed": transposed}
    return [one("a matrix", (7, 11), 0.5), one("one element", (1,), 0.1),
            one("a long vector", (129,), 1.25), one("a transposed view", (6, 10), 0.8, True)]


@ex.act
def act(fn, x, cut, transposed):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Count.calls += 1
            return func(*args, **(kwargs or {}))

    leaf = x.clone().requires_grad_()
    given = leaf.T if transposed else leaf
    with Count():
        out = fn(given, cut)
    calls = Count.calls
    connected = isinstance(out, torch.Tensor) and out.requires_grad
    grad = torch.autograd.grad(out.sum(), leaf)[0] if connected else None
    return {"out": out, "grad": grad, "few": calls <= 12, "input": leaf}


@ex.law
def law(out, x, cut, transposed):
    expect_parts(out, "out", "grad", "few", "input")
    given = x.T if transposed else x
    values = [math.copysign(max(abs(v) - cut, 0.0), v) for v in given.flatten().tolist()]
    wanted = torch.tensor(values).reshape(given.shape)
    expect_close("result", out["out"], wanted, rtol=1e-5, atol=1e-6)
    if out["grad"] is None:
        raise Broken("gradient of the result", "no graph", "a graph back to x",
                     "Leaving torch cuts the graph.")
    expect_close("gradient", out["grad"], (x.abs() > cut).float())
    expect_equal("input after the call", out["input"], x, "Do not write into x.")
    # Counted beside the learner's code: how a result came about cannot be seen from outside.
    if out["few"] is not True:
        raise Broken("torch operations for one call", "more than 12", "at most 12",
                     "Their number must not grow with x.")


@ex.wrong("a loop over elements", says="torch operations")
def element_loop(x, cut):
    flat = x.reshape(-1)
    parts = [v.sign() * (v.abs() - cut).clamp(min=0) for v in flat]
    return torch.stack(parts).reshape(x.shape)


@ex.wrong("a Python list in the middle", says="gradient")
def through_a_list(x, cut):
    flat = [math.copysign(max(abs(v) - cut, 0.0), v) for v in x.flatten().tolist()]
    return torch.tensor(flat).reshape(x.shape)


@ex.wrong("np.vectorize, a loop in disguise that answers in float64", says="dtype")
def numpy_vectorize(x, cut):
    import numpy as np
    shrink = np.vectorize(lambda v: math.copysign(max(abs(v) - cut, 0.0), v))
    return torch.from_numpy(shrink(x.detach().numpy()))


@ex.wrong("hard threshold: the cut is not subtracted", says="result")
def hard(x, cut):
    return x * (x.abs() > cut)


@ex.wrong("one side only: negative values are lost", says="result")
def one_sided(x, cut):
    return (x - cut).clamp(min=0)


@ex.wrong("the cut subtracted without a floor at zero", says="result")
def no_floor(x, cut):
    return x.sign() * (x.abs() - cut)


@ex.wrong("in place on a leaf that requires a gradient", says="raised RuntimeError")
def in_place(x, cut):
    x.sub_(cut * x.detach().sign())
    return x
