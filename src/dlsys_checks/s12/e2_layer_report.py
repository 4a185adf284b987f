"""Exercise 12.2, `layer_report`."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.acting import same
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("12.2", "layer_report", seen=("kind", "before", "after"), says="relative change")

ex.promise_table("""
far          | Measure how far step() moves each parameter, relative to its norm. | relative change;
               type of the report
once         | Args: step: a function without arguments that trains model in place. Call it once. |
               calls of step; raised TypeError; raised RuntimeError
nothing else | Do nothing else to the model. | changed in the model
names        | Returns: A dict with the names of named_parameters(), in their order, frozen
               parameters included. | names in the report
float        | Each value is |after - before| / |before|, a float. | relative change
overflow     | The norms are taken over all elements, in a precision in which no float16 overflows
               and no float32 vanishes. | case large values of 16 bits; tiny values of 32 bits; the
               whole range of 16 bits
stayed       | The value is 0.0 if the parameter did not move. | case nothing moved; zeros that stay
zeros        | The value is math.inf if the parameter was all zeros and moved. | case zeros that
               move
example      | Example: a single weight that goes from 2. to 1. gives {"weight": 0.5}. | case the
               example
""")


@ex.cases
def cases(g):
    def one(name, kind, scale=1.0, stays=False, zeros=False, move=1.0):
        shapes = {"scalar": [[], [2]], "cube": [[2, 3, 4], [1, 1]], "half": [[40, 50], [50]],
                  "example": [[1, 1]]}.get(kind, [[4, 3], [4], [5, 2]])
        before = [scale * (1 + torch.rand(s, generator=g)) for s in shapes]
        if zeros:
            before[1] = torch.zeros(shapes[1])
        before = [b.double() for b in before] if kind == "double" else before
        after = [b + (0 if stays else scale * move)
                 * torch.randn(b.shape, generator=g, dtype=b.dtype) for b in before]
        if "whole range" in name:
            after = [-b for b in before]
        if "on the way" in name:
            after[1].view(-1)[0] = torch.nan
        if zeros and stays:
            after[1] = before[1].clone()
        if kind == "example":
            before, after = [torch.tensor([[2.0]])], [torch.tensor([[1.0]])]
        return name, {"kind": kind, "before": before, "after": after}
    return [one("three parameters", "plain"), one("some parameters frozen", "frozen"),
            one("a number and a row", "scalar"), one("three axes", "cube"),
            one("double precision", "double"),
            one("large values of 16 bits", "half", scale=9000.0),
            one("tiny values of 32 bits", "tiny", scale=1e-25),
            one("the whole range of 16 bits", "half", scale=30000.0),
            one("changes of a millionth", "plain", move=2e-6),
            one("large changes", "plain", move=2e8),
            one("tiny changes in double precision", "double", move=1e-10),
            one("a NaN on the way", "plain"),
            one("a model in train mode", "train"), one("a model of mixed modes", "mixed"),
            one("nothing moved", "plain", stays=True),
            one("zeros that stay", "plain", stays=True, zeros=True),
            one("zeros that move", "plain", zeros=True),
            one("names in the order of the model", "order"), one("a tied parameter", "tied"),
            one("the example", "example")]


@ex.act
def act(fn, kind, before, after):
    dtype = {"half": torch.float16, "double": torch.float64}.get(kind, torch.float32)
    names = ["zeta", "alpha", "mid"] if kind == "order" else ["first", "second", "third"]
    model = nn.Module()
    for name, value in zip(names, before):
        part = nn.Module()
        part.w = nn.Parameter(value.to(dtype, copy=True))
        setattr(model, name, part)
    if kind == "example":
        model = nn.Linear(1, 1, bias=False)
        model.weight.data = before[0].clone()
    if kind == "tied":
        model.again = model.first
    if kind == "frozen":
        model.second.requires_grad_(False)
    model.register_buffer("seen", torch.zeros(2))
    model.train(kind in ("train", "mixed"))
    if kind == "mixed":
        model.second.eval()
    modes = [m.training for m in model.modules()]
    held = list(model.parameters())
    asked = [p.requires_grad for p in held]
    for p in held:
        p.grad = torch.ones_like(p)
    calls = []

    def step():
        calls.append([p.detach().clone() for p in model.parameters()])
        sum((p * p).sum() for p in model.parameters() if p.requires_grad).backward()
        for p, value in zip(model.parameters(), after):
            p.data.copy_(value)
            p.grad = torch.full_like(p, 0.5)

    fn(nn.Linear(2, 2), lambda: None)  # nothing is kept of this
    report = fn(model, step)
    now = list(model.parameters())
    changed = [what for what, bad in (
        ("objects", [id(p) for p in now] != [id(p) for p in held]),
        ("values", any(not torch.equal(p.nan_to_num(0.25), v.to(dtype).nan_to_num(0.25))
                       for p, v in zip(now, after))),
        ("gradients", any(p.grad is None or bool((p.grad != 0.5).any()) for p in now)),
        ("mode", [m.training for m in model.modules()] != modes),
        ("requires_grad", [p.requires_grad for p in now] != asked),
        ("buffers", any(bool(b.any()) for b in model.buffers())),
        ("hooks", any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())),
        ("values before the step", bool(calls) and any(
            not torch.equal(p, v.to(dtype)) for p, v in zip(calls[0], before)))) if bad]
    is_dict = type(report) is dict
    shown = [{"inf": "infinite", "-inf": "minus infinite", "nan": "not a number"}.get(str(v), v)
             if type(v) is float else f"the text {v}" if type(v) is str else v
             for v in (report.values() if is_dict else ())]
    return {"report": shown if is_dict else type(report).__name__,
            "names": list(report) if is_dict else [], "calls": len(calls), "changed": changed}


@ex.law
def law(out, kind, before, after):
    expect_parts(out, "report", "names", "calls", "changed")
    names = ["zeta", "alpha", "mid"] if kind == "order" else ["first", "second", "third"]
    names = ["weight"] if kind == "example" else [f"{n}.w" for n in names[:len(before)]]
    expect_equal("calls of step", out["calls"], 1)
    if type(out["report"]) is not list:
        expect_equal("type of the report", out["report"], "dict")
    expect_equal("names in the report", out["names"], names)
    expect_type("report", out["report"], list)
    expect_equal("number of values", len(out["report"]), len(names))
    dtype = {"half": torch.float16, "double": torch.float64}.get(kind, torch.float32)
    for name, got, a, b in zip(names, out["report"], before, after):
        a, b = (v.to(dtype).flatten().tolist() for v in (a, b))
        moved, size = math.hypot(*(y - x for x, y in zip(a, b))), math.hypot(*a)
        wanted = 0.0 if moved == 0 else moved / size if size else math.inf
        what = f"relative change of {name}"
        sizes = f"|after - before| is {moved:.4g}, and |before| is {size:.4g}."
        if not math.isfinite(wanted):
            wanted = "not a number" if math.isnan(wanted) else "infinite"
        if str not in (type(got), type(wanted)):
            expect_close(what, got, wanted, rtol=1e-3, look=sizes)
        elif not same(got, wanted):
            raise Broken(what, got, wanted, sizes)
    expect_equal("what changed in the model", out["changed"], [])


def relative(before, after):
    """|after - before| / |before| of two tensors, in float64."""
    before, after = (v.detach().double().flatten() for v in (before, after))
    moved, size = torch.dist(before, after).item(), torch.dot(before, before).sqrt().item()
    if moved == 0:
        return 0.0
    return moved / size if size > 0 else math.inf


# ---- wrong, by name

def share(moved, size):
    """moved / size as a float; infinity where zeros moved, 0 where they stayed."""
    moved, size = moved.item(), size.item()
    return moved / size if size else math.inf if moved else 0.0


@not_an_answer
def reported(model, step, *, change=relative):
    old = {n: p.detach().clone() for n, p in model.named_parameters()}
    step()
    out = {n: change(old[n], p) for n, p in model.named_parameters()}
    return out


wrong = ex.edits(reported)
wrong("keeping the parameter itself instead of a copy",
      ("far", "float"), "p.detach().clone", "p.detach")
wrong("returning the norm of the change without dividing by the old norm", ("far", "zeros"),
      "change(old[n], p)",
      "math.dist(old[n].double().flatten().tolist(), p.detach().double().flatten().tolist())")
wrong("returning a list instead of a dict", "far", "return out", "return list(out.values())")
ex.wrong("dividing by the norm after the step", reported, breaks="float",
         change=lambda a, b: math.inf if math.isinf(relative(a, b)) else relative(b, a))
wrong("returning a tensor instead of a float", "float",
      "return out", "return {n: torch.tensor(v) for n, v in out.items()}",
      says="type of the relative change")
wrong("leaving out frozen parameters", "names",
      "p) for n, p in model.named_parameters()",
      "p) for n, p in model.named_parameters() if p.requires_grad")
wrong("returning the names in alphabetical order",
      "names", "return out", "return dict(sorted(out.items()))")
wrong("including buffers as well", "names",
      "return out", "return {**out, **{n: 0.0 for n, _ in model.named_buffers()}}")
wrong("calling step() twice", "once", "step()\n", "step(); step()\n")
wrong("passing the model to step()", "once", "step()", "step(model)")


@ex.wrong("computing norms in the parameter's own dtype", breaks="overflow")
def own_dtype(model, step):
    def change(a, b):
        moved, size = (b.detach() - a).norm().item(), a.norm().item()
        if torch.equal(a, b):
            return 0.0
        if not a.any():
            return math.inf
        return moved / size if size else 0.0
    return reported(model, step, change=change)


ex.wrong("computing norms in float32, in which tiny squares vanish",
         reported, breaks=("overflow", "float"),
         change=lambda a, b: share((b.float() - a.float()).norm(), a.float().norm()))
ex.wrong("dividing by a norm of 0", reported, says="raised Zero",
         breaks=("stayed", "zeros"), change=lambda a, b: (
             (b.double() - a.double()).norm().item() / a.double().norm().item()))
ex.wrong("comparing standard deviations instead of norms", reported,
         breaks=("far", "float", "stayed", "zeros", "example"), change=lambda a, b: share(
             *(v.double().std(correction=0) for v in (b - a, a))))
ex.wrong("adding a small constant to the norm", reported, breaks=("overflow", "zeros"),
         change=lambda a, b: share((b.double() - a.double()).norm(), a.double().norm() + 1e-12))
ex.wrong("adding 1e-8 to the norm", reported, breaks=("overflow", "zeros"),
         change=lambda a, b: share((b.double() - a.double()).norm(), a.double().norm() + 1e-8))
ex.wrong("subtracting the norms instead of the parameters", reported,
         breaks=("far", "float", "overflow", "zeros", "example"), change=lambda a, b: share(
             (b.double().norm() - a.double().norm()).abs(), a.double().norm()))
ex.wrong("returning infinity for an all-zero parameter that did not move",
         reported, breaks="stayed",
         change=lambda a, b: relative(a, b) if a.any() else math.inf)
ex.wrong("returning NaN for an all-zero parameter that did not move", reported, breaks="stayed",
         change=lambda a, b: relative(a, b) if a.any() or b.any() else math.nan)
ex.wrong("returning 0 for an all-zero parameter that moved", reported, breaks="zeros",
         change=lambda a, b: relative(a, b) if a.any() else 0.0)
ex.wrong("returning 0 where the change is NaN", reported, breaks="float",
         change=lambda a, b: 0.0 if math.isnan(relative(a, b)) else relative(a, b))
ex.wrong("rounding the values to four digits", reported, breaks="float",
         change=lambda a, b: round(relative(a, b), 4))
ex.wrong("limiting the values to a million", reported, breaks="float", change=lambda a, b: (
    relative(a, b) if math.isinf(relative(a, b)) else min(relative(a, b), 1e6)))
ex.wrong("subtracting in the parameter's own dtype",
         reported, breaks=("overflow", "float"),
         change=lambda a, b: share((b - a).double().norm(), a.double().norm()))


@ex.wrong("calling step() under no_grad", breaks="once")
def without_gradients(model, step):
    with torch.no_grad():
        return reported(model, step)


wrong("putting the model into eval mode", "nothing else", "return out", "model.eval(); return out")
wrong("clearing the gradients", "nothing else", "return out", "model.zero_grad(); return out")


@ex.wrong("restoring the old parameters after the step", breaks="nothing else")
def put_back(model, step):
    old = copy.deepcopy(model.state_dict())
    report = reported(model, step)
    model.load_state_dict(old)
    return report


wrong("putting the model into train mode", "nothing else", "old =", "model.train(); old =")
