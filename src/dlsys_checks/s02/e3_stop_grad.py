"""Exercise 02.3, `stop_grad`."""

from __future__ import annotations

import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_parts

ex = exercise("02.3", "stop_grad",
              seen=("x", "kind"), kept=("after", "copy"))


@ex.cases
def cases(g):
    def one(name, shape, kind, dtype="float32"):
        return name, {"x": torch.randn(*shape, generator=g).to(getattr(torch, dtype)),
                      "kind": kind}
    return [one("the result of an operation", (5,), "result"),
            one("a parameter", (2, 3), "leaf"),
            one("a float16 result", (4, 2), "result", "float16"),
            one("a tensor without a graph", (3,), "plain")]


@ex.act
def act(fn, x, kind):
    leaf = x.clone().requires_grad_(kind != "plain")
    t = leaf.sigmoid() if kind == "result" else leaf
    loss = (t**2).sum()
    copied = fn(t)
    found = {"copy": copied.detach().clone(), "copy_requires": copied.requires_grad}
    with torch.no_grad():
        copied.zero_()
    found |= {"after": t.detach().clone(), "requires": t.requires_grad, "grad": None}
    if kind != "plain":
        try:
            found["grad"] = torch.autograd.grad(loss, leaf)[0]
        except RuntimeError:
            found["grad"] = None  # the way back is gone
    return found


@ex.law
def law(out, x, kind):
    expect_parts(out, "copy", "copy_requires", "after", "requires", "grad")
    value = torch.sigmoid(x) if kind == "result" else x
    expect_close("copy", out["copy"], value, rtol=1e-3, atol=0.0)
    expect_equal("requires_grad of the copy", out["copy_requires"], False)
    expect_close("t after an edit of the copy", out["after"], value, rtol=1e-3, atol=0.0,
                 look="The two share their memory.")
    expect_equal("requires_grad of t afterwards", out["requires"], kind != "plain",
                 "t belongs to the caller.")
    if kind == "plain":
        expect_equal("gradient of a tensor without a graph", out["grad"], None)
    elif out["grad"] is None:
        raise Broken("gradient through t", "none", "one as before the call",
                     "t belongs to the caller.")
    else:
        slope = value * (1 - value) if kind == "result" else torch.ones_like(x)
        expect_close("gradient through t", out["grad"], 2 * value * slope, rtol=5e-3, atol=1e-5)


@ex.wrong(".data", says="t after an edit")
def dot_data(t):
    return t.data


@ex.wrong("detach() without clone()", says="t after an edit")
def only_detach(t):
    return t.detach()


@ex.wrong("clone() without detach()", says="requires_grad of the copy")
def only_clone(t):
    return t.clone()


@ex.wrong("t itself, returned from a no_grad block", says="requires_grad of the copy")
def same_under_no_grad(t):
    with torch.no_grad():
        return t


@ex.wrong("detach_(), which cuts off the caller's tensor", says="requires_grad of t")
def cuts_the_caller(t):
    return t.detach_().clone()


@ex.wrong("a copy by way of Python numbers", says="dtype of the copy")
def through_numbers(t):
    return torch.tensor(t.tolist())


@ex.wrong("a copy that wants gradients of its own", says="requires_grad of the copy")
def new_leaf(t):
    return t.detach().clone().requires_grad_()
