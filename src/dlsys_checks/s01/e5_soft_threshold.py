"""Exercise 01.5, `soft_threshold`."""

from __future__ import annotations

import math

import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_parts

ex = exercise("01.5", "soft_threshold",
              seen=("x", "cut", "transposed"), kept=("input",))


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
