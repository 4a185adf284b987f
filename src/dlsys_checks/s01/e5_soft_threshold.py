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
ex.promise("formula", "Compute sign(x) * max(|x| - cut, 0) for every element of x.",
           says=("result: got",))
ex.promise("any shape", "Args: x: float32 of any shape.", cases=SHAPES)
ex.promise_table("""
kept       | The call does not change x. cut: a number above 0. | input after the call;
             in-place operation; requires_grad of x
form       | Returns: A tensor with the shape and dtype of x. | shape of the; dtype of the
connected  | The result stays connected to x, so that gradients flow back to x. | gradient;
             requires_grad of the
operations | The number of torch operations must not grow with x. | torch operations
example    | Example: soft_threshold(torch.tensor([-2., .3]), 0.5) is [-1.5, 0.]. | case the example
""")


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
            one("no gradient required", 3, number(4, 7), leaf=False, change=both_signs),
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
                 "Gradients must flow back to x. A detour outside PyTorch cuts the graph.")
    if leaf and out["grad"] is None:
        raise Broken("gradient of x from the result", "none", "one for each element",
                     "The graph of the result must lead back to x.")
    arriving = torch.tensor(upstream).reshape(given.shape)
    if leaf:
        expect_close("gradient", out["grad"], slope(x, cut, view, arriving))
    else:
        expect_equal("gradient although x requires none", out["grad"], None)
    # Counted beside the learner's code: how a result came about cannot be seen from outside.
    expect_equal("additional torch operations for a larger x", out["more"], 0,
                 "The number of operations must not grow with x.")


# ---- wrong, by name

@ex.wrong("looping over elements", breaks="operations")
def element_loop(x, cut):
    if x.numel() == 0:
        return x.clone()
    return torch.stack([shrink(v, cut) for v in x.reshape(-1)]).reshape(x.shape)


@ex.wrong("looping over rows", breaks="operations")
def row_loop(x, cut):
    return torch.stack([shrink(row, cut) for row in x]) if x.dim() and len(x) else shrink(x, cut)


@not_an_answer
def shrink(x, cut):
    out = torch.sign(x) * F.relu(x.abs() - cut)
    return out


wrong = ex.edits(shrink)
wrong("copying the lesson's loop, which expects one axis", ("operations", "any shape"),
      "return out", "return torch.stack([v.sign() * (v.abs() - cut).clamp(min=0) for v in x])")
ex.wrong("processing x in pieces of a thousand elements",
         lambda x, cut: torch.cat([shrink(piece, cut) for piece in
             x.reshape(-1).split(1000)]).reshape(x.shape), breaks="operations")
wrong("computing with a Python list, which cuts the graph", "connected",
      "out = torch.sign(x) * F.relu(x.abs() - cut)",
      "flat = [math.copysign(max(abs(v) - cut, 0.0), v) for v in x.flatten().tolist()]; out = "
      "torch.tensor(flat).reshape(x.shape)", says="requires_grad of the result")
ex.wrong("returning a new leaf that requires grad but is not connected to x",
         lambda x, cut: shrink(x.detach(), cut).requires_grad_(x.requires_grad), breaks="connected")
wrong("dividing x by |x|, which is 0 / 0 at zero", "formula",
      "return out", "return x / x.abs() * (x.abs() - cut).clamp(min=0)", says="result: got nan")
wrong("dividing the cut by |x|, which makes the gradient at zero NaN", "connected",
      "return out", "return x * (1 - cut / x.abs()).clamp(min=0)", says="gradient: got nan")
wrong("letting every gradient through unchanged, even below the cut",
      "connected", "return out", "return x + (out - x).detach()")
wrong("adding 1e-8 to |x| in the denominator, which is too much for tiny values", "formula",
      "return out", "return x * (1 - cut / (x.abs() + 1e-8)).clamp(min=0)")
wrong("using np.vectorize, which hides a loop and returns float64",
      ("form", "any shape", "connected"), "out = torch.sign(x) * F.relu(x.abs() - cut)",
      "import numpy as np; shrink_one = np.vectorize(lambda v: math.copysign(max(abs(v) - cut, "
      "0.0), v)); out = torch.from_numpy(shrink_one(x.detach().numpy()))", says="dtype")
wrong("using a float64 tensor for the cut, which turns the result into float64", "form",
      "- cut", "- torch.full(x.shape, cut, dtype=torch.float64)", says="dtype")
wrong("returning all elements as one flat row", "form", "return out", "return out.flatten()")
wrong("slicing the first axis, which a scalar does not have", "any shape",
      "return out", "return out + 0 * x[:1].sum()", says="raised IndexError")
wrong("taking the maximum of |x|, which fails if x has no elements", "any shape",
      "return out", "return out if x.abs().max() > cut else x * 0", says="raised RuntimeError")
ex.wrong("calling view(-1), which fails on a transposed tensor",
         lambda x, cut: shrink(x.view(-1), cut).view(x.shape), says="raised RuntimeError",
         breaks="any shape")
wrong("applying a hard threshold, which does not subtract the cut", "formula",
      "return out", "return x * (x.abs() > cut)", says="result")
wrong("handling only positive values, so that negative values become zero", "formula",
      "return out", "return (x - cut).clamp(min=0)", says="result")
wrong("subtracting the cut without a floor at zero", "formula",
      "return out", "return x.sign() * (x.abs() - cut)", says="result")
wrong("using a cut of 0.5 instead of the argument", "formula", "- cut", "- 0.5", says="result")
wrong("changing x in place, although x is a leaf that requires grad", "kept",
      "out =", "x.sub_(cut * x.detach().sign()); return x; out =", says="raised RuntimeError")
wrong("changing x in place through .data, which autograd does not see", "kept",
      "return out", "if x.is_contiguous(): x.data.mul_(x.data.abs() > cut)\n    return out")
wrong("calling requires_grad_() on x", "kept", "out =", "x = x.requires_grad_(); out =")
