"""Exercise 01.5, `soft_threshold`."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("01.5", "soft_threshold",
              seen=("values", "shape", "cut", "view", "leaf", "upstream"), kept=("input",))

SHAPES = ("no axis", "no element", "one element", "four axes", "a transposed view",
          "an expanded view")
ex.promise("formula", "sign(x) * max(|x| - cut, 0) for every element; cut > 0.",
           says=("result: got",))
ex.promise("any shape", "x: float32 of any shape,", cases=SHAPES)
ex.promise("kept", "left as it is.", says=("input after the call", "in-place operation",
                                           "requires_grad of x"))
ex.promise("form", "The result has its shape and dtype", says=("shape of the", "dtype of the"))
ex.promise("connected", "and stays connected to x, so gradients flow back.",
           says=("gradient", "requires_grad of the"))
ex.promise("operations", "The number of torch operations must not grow with x.",
           says=("torch operations",))
ex.promise("example", "Example: soft_threshold(torch.tensor([-2., .3]), 0.5) is [-1.5, 0.].",
           cases=("the example",))


@ex.cases
def cases(g):
    def one(name, *shape, scale=1.0, view="", leaf=True, change=None):
        cut = scale * (0.2 + float(torch.rand((), generator=g)))
        x = cut * 3 * torch.randn(shape, generator=g)
        if change:
            change(x, cut)
        seen = x.T if view == "transposed" else x.expand(4, -1) if view == "expanded" else x
        upstream = torch.randn(seen.shape, generator=g)
        # Exactly on the cut there are two slopes, and either is right.
        upstream *= seen.abs() != torch.tensor(cut)
        return name, {"values": x.flatten().tolist(), "shape": list(shape), "cut": cut,
                      "view": view, "leaf": leaf, "upstream": upstream.flatten().tolist()}

    def some_zeros(x, cut):
        x[1], x[3] = 0.0, -0.0

    def on_the_cut(x, cut):
        x[0], x[1], x[2], x[3] = cut, -cut, 1.01 * cut, -1.01 * cut

    number = integers(g)

    def both_signs(x, cut):
        x.view(-1)[:4] = torch.tensor([2.0, -2.0, 0.5, -0.5]) * cut

    return [one("a matrix", number(5, 9), number(7, 12), change=both_signs),
            one("one element", 1), one("no axis"), one("no element", 0, number(1, 4)),
            one("four axes", 2, 3, 1, number(3, 6), change=both_signs),
            one("a long vector", number(90, 130), change=both_signs),
            one("a transposed view", 6, number(8, 12), view="transposed", change=both_signs),
            one("an expanded view", number(7, 10), view="expanded", change=both_signs),
            one("exact zeros", number(6, 9), change=some_zeros),
            one("values on the cut", number(7, 11), change=on_the_cut),
            one("tiny values", number(8, 14), scale=1e-7, change=both_signs),
            one("huge values", number(8, 14), scale=1e7, change=both_signs),
            one("no gradient wanted", 3, number(4, 7), leaf=False, change=both_signs),
            ("the example", {"values": [-2.0, 0.3], "shape": [2], "cut": 0.5, "view": "",
                             "leaf": True, "upstream": [1.0, 1.0]})]


@ex.act
def act(fn, values, shape, cut, view, leaf, upstream):
    from torch.overrides import TorchFunctionMode  # a dispatch mode imports the compiler: seconds

    class Count(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    def called(start):
        given = (start.T if view == "transposed" else start.expand(4, -1)
                 if view == "expanded" else start)
        with Count() as counted:
            out = fn(given, cut)
        return out, counted.calls, given

    x = torch.tensor(values).reshape(shape)
    start = x.clone().requires_grad_(leaf)
    out, few, given = called(start)
    grad = None
    arriving = torch.tensor(upstream).reshape(given.shape)
    if isinstance(out, torch.Tensor) and out.requires_grad and out.shape == arriving.shape:
        grad, = torch.autograd.grad((out * arriving).sum(), start, allow_unused=True)
    more = 0
    long = [1] * (x.dim() - 1) + [1 + 5_000 // max(1, x.numel())]
    for times in ([2] * x.dim(), long) if x.dim() else ():
        if not more:
            more = max(0, called(x.repeat(times).requires_grad_(leaf))[1] - few)
    return {"out": out, "graph": bool(getattr(out, "requires_grad", False)), "grad": grad,
            "more": more, "input": start, "asks": given.requires_grad}


def shrunk(given, cut):
    """Soft threshold of one number after the other, in Python's float64."""
    values = [math.copysign(max(abs(v) - cut, 0.0), v) for v in given.flatten().tolist()]
    return torch.tensor(values).reshape(given.shape)


def slope(x, cut, view, upstream):
    """What flows back to x: the upstream gradient where an element lies beyond the cut."""
    arriving = upstream.T if view == "transposed" else upstream
    return (arriving.sum(0) if view == "expanded" else arriving) * (x.abs() > cut)


@ex.law
def law(out, values, shape, cut, view, leaf, upstream):
    x = torch.tensor(values).reshape(shape)
    expect_parts(out, "out", "graph", "grad", "more", "input", "asks")
    given = x.T if view == "transposed" else x.expand(4, -1) if view == "expanded" else x
    expect_equal("input after the call", out["input"], x, "Do not write into x.")
    expect_equal("requires_grad of x after the call", out["asks"], leaf, "Leave x as it is.")
    # Just beyond the cut nearly all digits cancel: what is left keeps the rounding of the cut.
    expect_close("result", out["out"], shrunk(given, cut), atol=1e-6 * cut)
    expect_equal("requires_grad of the result", out["graph"], leaf,
                 "Gradients must flow back: leaving torch cuts the graph.")
    if leaf and out["grad"] is None:
        raise Broken("gradient of x from the result", "none", "one for each element",
                     "A graph must lead back to x.")
    arriving = torch.tensor(upstream).reshape(given.shape)
    if leaf:
        expect_close("gradient", out["grad"], slope(x, cut, view, arriving))
    else:
        expect_equal("gradient where x asks for none", out["grad"], None)
    # Counted beside the learner's code: how a result came about cannot be seen from outside.
    expect_equal("torch operations more for a larger x", out["more"], 0,
                 "Their number must not grow with x.")


# ---- wrong, by name

@not_an_answer
def shrink(x, cut):
    return torch.sign(x) * F.relu(x.abs() - cut)


@ex.wrong("a loop over elements", breaks="operations")
def element_loop(x, cut):
    if x.numel() == 0:
        return x.clone()
    return torch.stack([shrink(v, cut) for v in x.reshape(-1)]).reshape(x.shape)


@ex.wrong("a loop over rows", breaks="operations")
def row_loop(x, cut):
    return torch.stack([shrink(row, cut) for row in x]) if x.dim() and len(x) else shrink(x, cut)


ex.wrong("the lesson's loop, which has one axis in mind",
         lambda x, cut: torch.stack([v.sign() * (v.abs() - cut).clamp(min=0) for v in x]),
         breaks=("operations", "any shape"))


@ex.wrong("pieces of a thousand elements", breaks="operations")
def pieces(x, cut):
    flat = x.reshape(-1).split(1000)
    return torch.cat([shrink(piece, cut) for piece in flat]).reshape(x.shape)


@ex.wrong("a Python list in the middle", says="requires_grad of the result", breaks="connected")
def through_a_list(x, cut):
    flat = [math.copysign(max(abs(v) - cut, 0.0), v) for v in x.flatten().tolist()]
    return torch.tensor(flat).reshape(x.shape)


ex.wrong("a new leaf that only looks connected",
         lambda x, cut: shrink(x.detach(), cut).requires_grad_(x.requires_grad), breaks="connected")
ex.wrong("x over |x|, which is 0 / 0 at zero",
         lambda x, cut: x / x.abs() * (x.abs() - cut).clamp(min=0), says="result: got nan",
         breaks="formula")
ex.wrong("the cut divided by |x|: no gradient at zero",
         lambda x, cut: x * (1 - cut / x.abs()).clamp(min=0), says="gradient: got nan",
         breaks="connected")
ex.wrong("a gradient of 1 everywhere", lambda x, cut: x + (shrink(x, cut) - x).detach(),
         breaks="connected")
ex.wrong("a constant in the formula that swallows tiny values",
         lambda x, cut: x * (1 - cut / (x.abs() + 1e-8)).clamp(min=0), breaks="formula")


@ex.wrong("np.vectorize, a loop in disguise that answers in float64", says="dtype",
          breaks=("form", "any shape", "connected"))
def numpy_vectorize(x, cut):
    import numpy as np
    shrink_one = np.vectorize(lambda v: math.copysign(max(abs(v) - cut, 0.0), v))
    return torch.from_numpy(shrink_one(x.detach().numpy()))


ex.wrong("a cut in float64 that takes the result along",
         lambda x, cut: shrink(x, torch.full(x.shape, cut, dtype=torch.float64)), says="dtype",
         breaks="form")
ex.wrong("all elements in one row", lambda x, cut: shrink(x, cut).flatten(), breaks="form")
ex.wrong("the first element cut out for its sign", lambda x, cut: shrink(x, cut) + 0 * x[:1].sum(),
         says="raised IndexError", breaks="any shape")
ex.wrong("the largest element asked for first",
         lambda x, cut: shrink(x, cut) if x.abs().max() > cut else x * 0,
         says="raised RuntimeError", breaks="any shape")
ex.wrong("view(-1), which a transposed tensor refuses",
         lambda x, cut: shrink(x.view(-1), cut).view(x.shape), says="raised RuntimeError",
         breaks="any shape")
ex.wrong("hard threshold: the cut is not subtracted", lambda x, cut: x * (x.abs() > cut),
         says="result", breaks="formula")
ex.wrong("one side only: negative values are lost", lambda x, cut: (x - cut).clamp(min=0),
         says="result", breaks="formula")
ex.wrong("the cut subtracted without a floor at zero", lambda x, cut: x.sign() * (x.abs() - cut),
         says="result", breaks="formula")
ex.wrong("a cut of one half, whatever is asked", lambda x, cut: shrink(x, 0.5), says="result",
         breaks="formula")


@ex.wrong("in place on a leaf that requires a gradient", says="raised RuntimeError", breaks="kept")
def in_place(x, cut):
    x.sub_(cut * x.detach().sign())
    return x


@ex.wrong("written into x behind autograd's back", breaks="kept")
def written_into(x, cut):
    out = shrink(x, cut)
    if x.is_contiguous():
        x.data.mul_(x.data.abs() > cut)
    return out


ex.wrong("x made to ask for gradients", lambda x, cut: shrink(x.requires_grad_(), cut),
         breaks="kept")
