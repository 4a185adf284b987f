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

ex.promise("far", "How far step() moves each parameter, relative to the size before.",
           says=("relative change", "type of the report"))
ex.promise("once", "step: a function without arguments that trains model in place; it is called "
           "once,", says=("calls of step", "raised TypeError", "raised RuntimeError"))
ex.promise("nothing else", "and nothing else is done to the model.",
           says=("changed in the model",))
ex.promise("names", "The report has the names of named_parameters() in their order, frozen "
           "parameters as well.", says=("names in the report",))
ex.promise("float", "Beside each stands |after - before| / |before| as a float,",
           says=("relative change",))
ex.promise("overflow", "with norms over all elements in which no float16 overflows and no float32 "
           "vanishes;", cases=("large numbers of 16 bits", "tiny numbers of 32 bits",
                               "from end to end of 16 bits"))
ex.promise("stayed", "0.0 where nothing moved;", cases=("nothing moved", "zeros that stay"))
ex.promise("zeros", "math.inf where zeros moved.", cases=("zeros that move",))
ex.promise("example", 'Example: a single weight of 2. that goes to 1.: {"weight": 0.5}.',
           cases=("the example",))


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
        if "end to end" in name:
            after = [-b for b in before]
        if "on the way" in name:
            after[1].view(-1)[0] = torch.nan
        if zeros and stays:
            after[1] = before[1].clone()
        if kind == "example":
            before, after = [torch.tensor([[2.0]])], [torch.tensor([[1.0]])]
        return name, {"kind": kind, "before": before, "after": after}
    return [one("three parameters", "plain"), one("frozen ones among them", "frozen"),
            one("a number and a row", "scalar"), one("three axes", "cube"),
            one("double precision", "double"),
            one("large numbers of 16 bits", "half", scale=9000.0),
            one("tiny numbers of 32 bits", "tiny", scale=1e-25),
            one("from end to end of 16 bits", "half", scale=30000.0),
            one("moves of a millionth", "plain", move=2e-6), one("far moves", "plain", move=2e8),
            one("tiny moves in double precision", "double", move=1e-10),
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
        ("frozen", kind == "frozen" and model.second.w.requires_grad),
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
        sizes = f"|after - before| is {moved:.4g}, |before| {size:.4g}."
        if not math.isfinite(wanted):
            wanted = "not a number" if math.isnan(wanted) else "infinite"
        if str not in (type(got), type(wanted)):
            expect_close(what, got, wanted, rtol=1e-3, look=sizes)
        elif not same(got, wanted):
            raise Broken(what, got, wanted, sizes)
    expect_equal("what was changed in the model", out["changed"], [])


def relative(before, after):
    """|after - before| / |before| of two tensors, in float64."""
    before, after = (v.detach().double().flatten() for v in (before, after))
    moved, size = torch.dist(before, after).item(), torch.dot(before, before).sqrt().item()
    if moved == 0:
        return 0.0
    return moved / size if size > 0 else math.inf


# ---- wrong, by name

@not_an_answer
def reported(model, step, *, change=relative, keep=lambda p: True, copied=True, calls=1):
    """The right report with its pieces as options."""
    old = {n: p.detach().clone() if copied else p.detach()
           for n, p in model.named_parameters()}
    for _ in range(calls):
        step()
    return {n: change(old[n], p) for n, p in model.named_parameters() if keep(p)}


ex.wrong("no copy: the memory moves along", reported, breaks=("far", "float"), copied=False)


@ex.wrong("the change itself, not relative", breaks=("far", "zeros"))
def absolute(model, step):
    return reported(model, step, change=lambda a, b: math.dist(
        a.double().flatten().tolist(), b.detach().double().flatten().tolist()))


ex.wrong("a list in place of a dict", lambda model, step: list(reported(model, step).values()),
         breaks="far")


@ex.wrong("relative to the size after the step", breaks="float")
def over_after(model, step):
    def change(a, b):
        moved, size = relative(torch.ones(1).to(a), torch.ones(1).to(a)), relative(b, a)
        return moved + size if not math.isinf(relative(a, b)) else math.inf
    return reported(model, step, change=change)


ex.wrong("a tensor in place of a float",
         lambda model, step: {n: torch.tensor(v) for n, v in reported(model, step).items()},
         says="type of the relative change", breaks="float")
ex.wrong("frozen parameters left out", reported, breaks="names", keep=lambda p: p.requires_grad)
ex.wrong("names sorted by the alphabet",
         lambda model, step: dict(sorted(reported(model, step).items())), breaks="names")


@ex.wrong("buffers reported as well", breaks="names")
def with_buffers(model, step):
    return {**reported(model, step), **{n: 0.0 for n, _ in model.named_buffers()}}


ex.wrong("step called twice", reported, breaks="once", calls=2)
ex.wrong("step called with the model", lambda model, step: reported(model, lambda: step(model)),
         breaks="once")


@ex.wrong("norms in the parameter's own dtype", breaks="overflow")
def own_dtype(model, step):
    def change(a, b):
        moved, size = (b.detach() - a).norm().item(), a.norm().item()
        if torch.equal(a, b):
            return 0.0
        if not a.any():
            return math.inf
        return moved / size if size else 0.0
    return reported(model, step, change=change)


@ex.wrong("norms in float32, in which tiny squares vanish", breaks=("overflow", "float"))
def in_single(model, step):
    def change(a, b):
        moved, size = (b.detach().float() - a.float()).norm().item(), a.float().norm().item()
        return moved / size if size else math.inf if moved else 0.0
    return reported(model, step, change=change)


@ex.wrong("the size taken for more than 0: a division that raises", says="raised Zero",
          breaks=("stayed", "zeros"))
def size_granted(model, step):
    def change(a, b):
        return (b.detach().double() - a.double()).norm().item() / a.double().norm().item()
    return reported(model, step, change=change)


@ex.wrong("deviations from the mean compared, not sizes",
          breaks=("far", "float", "stayed", "zeros", "example"))
def deviations(model, step):
    def change(a, b):
        moved, size = (v.double().std(correction=0).item() for v in (b.detach() - a, a))
        return moved / size if size else math.inf if moved else 0.0
    return reported(model, step, change=change)


@ex.wrong("a small constant added to the size", breaks=("overflow", "zeros"))
def with_constant(model, step):
    def change(a, b):
        size = a.double().norm().item() + 1e-12
        return (b.detach().double() - a.double()).norm().item() / size
    return reported(model, step, change=change)


ex.wrong("infinity where nothing moved from zero", reported, breaks="stayed",
         change=lambda a, b: relative(a, b) if a.any() else math.inf)
ex.wrong("0 / 0 where nothing moved from zero: not a number", reported, breaks="stayed",
         change=lambda a, b: relative(a, b) if a.any() or b.any() else math.nan)
ex.wrong("0 where zeros moved", reported, breaks="zeros",
         change=lambda a, b: relative(a, b) if a.any() else 0.0)


@ex.wrong("a NaN taken for no move", breaks="float")
def nan_as_zero(model, step):
    def change(a, b):
        moved = relative(a, b)
        return 0.0 if math.isnan(moved) else moved
    return reported(model, step, change=change)


ex.wrong("rounded to four digits", reported, breaks="float",
         change=lambda a, b: round(relative(a, b), 4))


@ex.wrong("changes above a million cut off", breaks="float")
def cut_off(model, step):
    def change(a, b):
        moved = relative(a, b)
        return moved if math.isinf(moved) else min(moved, 1e6)
    return reported(model, step, change=change)


@ex.wrong("the difference in the parameter's own dtype", breaks=("overflow", "float"))
def own_difference(model, step):
    def change(a, b):
        moved, size = (b.detach() - a).double().norm().item(), a.double().norm().item()
        return 0.0 if not moved else moved / size if size else math.inf
    return reported(model, step, change=change)


@ex.wrong("step called without gradients", breaks="once")
def without_gradients(model, step):
    with torch.no_grad():
        return reported(model, step)


@ex.wrong("the model put into eval mode", breaks="nothing else")
def eval_mode(model, step):
    report = reported(model, step)
    model.eval()
    return report


@ex.wrong("the gradients emptied", breaks="nothing else")
def emptied(model, step):
    report = reported(model, step)
    model.zero_grad()
    return report


@ex.wrong("the old values put back", breaks="nothing else")
def put_back(model, step):
    old = copy.deepcopy(model.state_dict())
    report = reported(model, step)
    model.load_state_dict(old)
    return report


@ex.wrong("the model put into train mode", breaks="nothing else")
def train_mode(model, step):
    model.train()
    return reported(model, step)
