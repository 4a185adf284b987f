"""Exercise 02.3, `stop_grad`."""

from __future__ import annotations

import copy

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers import acting
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_like, expect_parts

ex = exercise("02.3", "stop_grad", seen=("x", "kind", "edit"),
              kept=("copy", "again", "edited", "after"))

LEAVES = ("a parameter", "a leaf with a gradient", "a plain tensor", "NaN and infinity")

ex.promise_table("""
copy        | Return a copy of t. | copy; returned value
no gradient | No gradient may flow through the copy. | requires_grad of the copy
edited      | The copy is safe to edit. | copy after an edit; next copy of t
dtypes      | Args: t: float32 or float16. | case a float16 result; a plain float16 tensor; an
              expanded float16 tensor
any shape   | The tensor can have any shape. | case a single number; an empty tensor; a
              transposed result; a slice of a result; an expanded float16 tensor; one row
""")
ex.promise("graph or none", "The tensor can come with or without a graph.",
           cases=(*LEAVES, "a plain float16 tensor", "an expanded float16 tensor"))
ex.promise_table("""
harmless | Neither this call nor an edit of the result changes t, its graph, or the gradients that
           flow through t. | t after; of t afterwards; gradient through t; gradient stored in t;
           t keeps its graph
form     | Returns: A copy with the same shape and dtype. | shape of the copy; dtype of the copy
example  | Example: after c = stop_grad(y), c.zero_() leaves y unchanged. | t after an edit
""")


@ex.cases
def cases(g):
    def one(name, shape, kind, dtype="float32", to=None):
        x = torch.randn(shape, generator=g).to(getattr(torch, dtype))
        edit = torch.randn(shape if to is None else to, generator=g).to(x.dtype)
        return name, {"x": x, "kind": kind, "edit": edit}
    n = int(torch.randint(3, 8, (), generator=g))
    odd = one("NaN and infinity", (5,), "plain")
    odd[1]["x"][:3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    return [one("the result of an operation", (n,), "result"),
            one("a result that no slope needs", (2, n), "doubled"),
            one("a parameter", (2, 3), "parameter"),
            one("a leaf with a gradient", (n, 2), "stored"),
            one("a float16 result", (4, 2), "result", "float16"),
            one("a plain float16 tensor", (n,), "plain", "float16"),
            one("a plain tensor", (3, n), "plain"), odd,
            one("a single number", (), "result"), one("an empty tensor", (0, 3), "plain"),
            one("one row", (1, n), "result"),
            one("a transposed result", (n, 4), "transposed", to=(4, n)),
            one("a slice of a result", (n + 1, 3), "slice", to=(n, 3)),
            one("an expanded float16 tensor", (1, n), "expanded", "float16", to=(4, n))]


@ex.act
def act(fn, x, kind, edit):
    leaf = x.clone()
    if kind == "parameter":
        leaf = nn.Parameter(leaf)
    leaf.requires_grad_(kind not in ("plain", "expanded"))
    t = {"result": leaf.sigmoid, "doubled": lambda: 2 * leaf, "transposed": leaf.sigmoid().t,
         "slice": lambda: leaf.sigmoid()[1:], "expanded": lambda: leaf.expand(4, -1),
         }.get(kind, lambda: leaf)()
    if kind == "stored":
        leaf.grad = torch.full_like(leaf, 0.5)
    loss, before = (t**2).sum(), (t.grad_fn, t.is_leaf, type(t), t.shape)
    found = dict.fromkeys(("edited", "after", "again", "requires", "grad", "stored",
                           "same_graph", "copy_requires"))
    copied = found["copy"] = fn(t)
    # A subclass could answer for itself whether it shares memory.
    if type(copied) not in (torch.Tensor, nn.Parameter) or copied.shape != t.shape:
        return found
    graph = kind not in ("plain", "expanded")
    found |= {"copy": copied.detach().clone(), "copy_requires": copied.requires_grad}
    try:  # row by row: an expanded tensor takes no edit as a whole
        for mine, new in zip(*(v.detach()[None] if v.dim() == 0 else v.detach()
                               for v in (copied, edit)), strict=True):
            mine.copy_(new)
        found["edited"] = copied.detach().clone()
    except RuntimeError:
        found["edited"] = None
    found |= {"after": t.detach().clone(), "again": fn(t).detach().clone(),
              "requires": t.requires_grad,
              "same_graph": before == (t.grad_fn, t.is_leaf, type(t), t.shape)}
    if leaf.grad is not None:
        found["stored"] = int((leaf.grad == 0.5).sum())
    try:
        found["grad"] = torch.autograd.grad(loss, leaf)[0] if graph else None
    except RuntimeError:
        found["grad"] = None  # the way back is gone
    return found


def given(x, kind):
    """The values of t."""
    value = 2 * x if kind == "doubled" else torch.sigmoid(x) if kind in (
        "result", "transposed", "slice") else x
    return {"transposed": value.t, "slice": lambda: value[1:],
            "expanded": lambda: value.expand(4, -1)}.get(kind, lambda: value)() if (
                value.dim()) else value


def by_hand(x, kind):
    """Gradient of the sum of squares of t by its leaf."""
    if kind == "doubled":
        return 8 * x
    if kind not in ("result", "transposed", "slice"):
        return 2 * x
    s = torch.sigmoid(x.double())
    slope = 2 * s * s * (1 - s)
    if kind == "slice":
        slope[0] = 0.0
    return slope.to(x.dtype)


def expect_copy(what, got, value, look=""):
    """Every bit the same, NaN included."""
    expect_like(what, got, value, look)
    if not acting.same(got, value):
        expect_equal(what, got.nan_to_num(), value.nan_to_num(), look)
        raise Broken(what, got, value, "A copy of NaN is NaN.")


@ex.law
def law(out, x, kind, edit):
    expect_parts(out, "copy", "copy_requires", "edited", "after", "again", "requires", "grad",
                 "stored", "same_graph")
    value, graph = given(x, kind), kind not in ("plain", "expanded")
    expect_copy("copy", out["copy"], value)
    expect_equal("requires_grad of the copy", out["copy_requires"], False)
    expect_copy("t after an edit of the copy", out["after"], value,
                "The copy shares memory with t.")
    if out["edited"] is None:
        raise Broken("copy after an edit", "a RuntimeError", "the new values")
    expect_copy("copy after an edit", out["edited"], edit)
    expect_copy("next copy of t", out["again"], value, "Every call must make a new copy of t.")
    expect_equal("requires_grad of t afterwards", out["requires"], graph,
                 "t belongs to the caller.")
    expect_equal("whether t keeps its graph", out["same_graph"], True, "t belongs to the caller.")
    expect_equal("gradient stored in t", out["stored"], x.numel() if kind == "stored" else None,
                 "The stored gradient belongs to the caller.")
    expect_slope(out["grad"], x, kind, graph)


def expect_slope(got, x, kind, graph):
    """The gradient flows through t as it did before."""
    if not graph:
        expect_equal("gradient through t without a graph", got, None)
    elif got is None:
        raise Broken("gradient through t", "none", "the same as before the call",
                     "t belongs to the caller.")
    else:
        slope = by_hand(x, kind)
        # Sums in float16 are off by its rounding of their largest terms, however small they are.
        rtol, atol = (5e-3, 2e-3 * float(slope.abs().max())) if x.dtype == torch.float16 else (
            1e-4, None)
        expect_close("gradient through t", got, slope, rtol=rtol, atol=atol)


# ---- wrong, by name

ex.wrong("returning a tensor that shares t's memory, as .data does",
         lambda t: t.data, breaks="example")
ex.wrong("calling detach() without clone()", lambda t: t.detach(), breaks="example")
ex.wrong("calling clone() without detach()", lambda t: t.clone(), breaks="no gradient")
ex.wrong("calling requires_grad_() on the copy",
         lambda t: t.detach().clone().requires_grad_(),
         breaks="no gradient")


@ex.wrong("returning t itself from a no_grad block", breaks=("no gradient", "example"))
def same_under_no_grad(t):
    with torch.no_grad():
        return t


ex.wrong("converting t to half precision and back", lambda t: t.detach().half().clone().to(t.dtype),
         breaks="copy")
ex.wrong("replacing NaN and infinity with finite numbers",
         lambda t: t.detach().nan_to_num(), breaks="copy")


@ex.wrong("cloning t in inference mode", breaks="edited")
def in_inference(t):
    with torch.inference_mode():
        return t.clone()


@ex.wrong("returning the copy from an earlier call", breaks="edited")
def remembered(t, known=[]):  # noqa: B006 -- the mistake itself
    if not known or known[0] is not t:
        known[:] = t, t.detach().clone()
    return known[1]


ex.wrong("copying t through a Python list", lambda t: torch.tensor(t.tolist()),
         breaks=("form", "any shape"))
ex.wrong("returning a float32 copy of every t, even of float16",
         lambda t: t.detach().float().clone(), says="dtype of the copy",
         breaks="dtypes")
ex.wrong("returning a flattened copy", lambda t: t.detach().clone().flatten(), breaks="form")
ex.wrong("using deepcopy, whose copy has rows that share memory if t's rows do",
         lambda t: copy.deepcopy(t.detach()), says="copy after an edit", breaks="any shape")
ex.wrong("stacking the rows, although t can have no rows",
         lambda t: torch.stack([row.detach() for row in t]), says="raised",
         breaks="any shape")
ex.wrong("calling squeeze(), which removes every axis of length one",
         lambda t: t.detach().clone().squeeze(),
         says="shape of the copy", breaks="any shape")
ex.wrong("relying on contiguous() to make a copy", lambda t: t.detach().contiguous(),
         says="t after an edit",
         breaks="harmless")
ex.wrong("calling clone() only if t is not a leaf",
         lambda t: t.detach() if t.is_leaf else t.detach().clone(),
         says="of t", breaks="graph or none")
ex.wrong("calling detach_(), which cuts the caller's tensor off from its graph",
         lambda t: t.clone().detach() if t._is_view() else t.detach_().clone(), says="of t",
         breaks="harmless")


@ex.wrong("setting t.grad to None, although the gradient belongs to the caller", breaks="harmless")
def gradient_lost(t):
    if t.is_leaf:
        t.grad = None
    return t.detach().clone()
