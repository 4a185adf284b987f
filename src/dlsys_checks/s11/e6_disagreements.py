"""Exercise 11.6, `disagreements`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

# faults: what the program does wrong on a batch; "" and those of AGREE are right. modes: whether
# each module of the model is in train mode.
ex = exercise("11.6", "disagreements",
              seen=("kind", "weight", "faults", "batches", "rtol", "modes"), says="batches found")

AGREE = ("", "a little", "a little at the largest", "with gradients", "other strides",
         "a parameter", "at the limit")

ex.promise_table("""
numbers | List the batches on which a program differs from its model. | batches found; index of a
          batch
given   | batches: float32 tensors, each with at least one entry. | case no batches; one entry;
          three dimensions; a batch of one row
copies  | Model and program each get their own copy of a batch. | calls with a changed batch;
          batches that changed
modes   | Model and program run without gradients, and the model runs in eval mode. Afterwards, the
          grad mode and the mode of each module are as before. | with gradients; in train mode;
          modules whose mode changed; grad mode
finite  | Args: model: returns finite tensors of a floating-point dtype. | case large weights; small
          weights; outputs of zero; a model in double precision
raises  | Returns: The indices of the batches that differ, from 0, in ascending order. A batch
          differs if the program raises an Exception. | case a program that raises; a program that
          raises another error
form    | A batch also differs if the program returns no tensor, or a tensor of a different shape or
          dtype. | case not a tensor; one row for all; an extra axis; flattened; in double
          precision; in half precision; equal rows; in a tuple; in a dict; one column for all; in
          bfloat16; a model in double precision
far     | A batch also differs if an entry is not finite, or is further from the model's entry than
          rtol times the largest absolute value in the model's output for this batch. | case a NaN;
          an infinite entry; minus infinity; all entries NaN; too large; too small; a little off;
          both ways at once; a small batch among others; a large batch among others; rtol of 0;
          outputs of zero; large weights; small weights; one entry; outputs below zero; the sign
          flipped; measured by the model; at the limit; a random mix of sixteen; a little off at the
          largest
left    | They do not change. | batches that changed
example | Example: nn.ReLU() and torch.abs, with batches [1.] and [-1.] and rtol 0.1, give [1]. |
          case the example
""")


@ex.cases
def cases(g):
    def one(name, *faults, kind="plain", outs=3, ins=4, rtol=0.01, shapes=None, size=1.0,
            modes=None, sizes=()):
        batches = []
        for k in range(len(faults)):
            shape = shapes[k] if shapes else (2 + k % 3, ins)
            x = torch.randn(*shape, generator=g)
            x[..., -1] = -x[..., -1].abs() - 0.5      # so that a ReLU in place changes it,
            x[..., 0] = x[..., 0].abs() + 0.5         # and no answer is zero
            batches.append(x * (sizes[k] if sizes else 1.0))
        weight = size * (torch.rand(outs, ins, generator=g) + 0.5)
        if modes is None:
            modes = (torch.rand(6, generator=g) < 0.5).tolist()
        return name, {"kind": kind, "weight": weight, "faults": list(faults), "batches": batches,
                      "rtol": rtol, "modes": modes}

    def drawn(count):
        return [("", "a little", "other", "up")[int(torch.randint(4, (), generator=g))]
                for _ in range(count)]

    zero = one("outputs of zero", "", "up", "down", "", "nan", rtol=0.1)
    zero[1]["batches"] = [-b.abs() for b in zero[1]["batches"]]
    columns = one("one column for all", "", "first column", "", outs=3)
    columns[1]["weight"] = columns[1]["weight"][:1].expand(3, 4).clone()
    limit = one("at the limit", "at the limit", "", outs=1, ins=1, rtol=0.25)
    limit[1]["weight"] = torch.ones(1, 1)
    limit[1]["batches"][0] = torch.tensor([[4.0]])
    peak = one("a little off at the largest", "a little at the largest", "up", rtol=0.2)
    peak[1]["batches"][0][0] *= 10                 # far above the mean
    twice = one("a batch listed twice", "other", "", "other", "")
    twice[1]["batches"][2] = twice[1]["batches"][0].clone()
    rows = one("one row for all", "", "first row", "", shapes=[(3, 4)] * 3)
    equal = one("equal rows", "first row", "", shapes=[(3, 4)] * 2)
    equal[1]["batches"][0] = equal[1]["batches"][0][:1].expand(3, 4).clone()
    return [one("all agree", "", "", "", ""), one("none agrees", "other", "other", "other"),
            one("the first", "other", "", ""), one("the last", "", "", "", "other"),
            one("two of five", "", "other", "", "other", ""), one("no batches"),
            one("one entry", "other", "", outs=1, ins=1, shapes=[(1, 1)] * 2),
            one("three dimensions", "", "other", "", shapes=[(2, 3, 4)] * 3),
            one("a batch of one row", "", "other", shapes=[(1, 4)] * 2),
            one("a program that raises", "", "value error", ""),
            one("a program that raises another error", "lookup", "", "memory"),
            one("not a tensor", "nothing", "", "a list", "a number"), rows, equal,
            one("an extra axis", "", "axis"), one("flattened", "flat", ""),
            one("in double precision", "", "double", ""), one("in half precision", "half", ""),
            one("in bfloat16", "bfloat16", ""), one("in a tuple", "tuple", "", "list of one"),
            one("in a dict", "", "dict"), one("the sign flipped", "sign", ""), columns, limit, peak,
            twice,
            one("measured by the model", "up at the largest", "", rtol=0.5),
            one("a model in double precision", "", "single", "other", kind="double"),
            one("a parameter", "a parameter", "", "other"),
            one("a NaN", "", "nan", ""), one("an infinite entry", "inf", "", ""),
            one("minus infinity", "", "minus inf"), one("all entries NaN", "all nan", ""),
            one("too large", "", "up", "", rtol=0.1), one("too small", "", "down", rtol=0.1),
            one("a little off", "a little", "", "up", rtol=0.2),
            one("both ways at once", "", "both ways"),
            one("a small batch among others", "", "up", "", sizes=(50.0, 0.01, 50.0)),
            one("a large batch among others", "a little", "a little", "up",
                sizes=(0.01, 50.0, 0.01)),
            one("rtol of 0", "", "bit", "", rtol=0.0), zero,
            one("outputs below zero", "a little", "up", "", size=-1.0),
            one("large weights", "", "up", "a little", size=1e9),
            one("small weights", "", "up", "a little", size=1e-9),
            one("with gradients", "with gradients", "other strides", "other"),
            one("the model writes into its input", "", "other", "", kind="model writes"),
            one("the program writes into its input", "", "other", "", kind="program writes"),
            one("a caller without gradients", "", "other", kind="no gradients"),
            one("all in train mode", "", "other", modes=[True] * 6),
            one("all in eval mode", "", "other", modes=[False] * 6),
            one("modes of several kinds", "", "other",
                modes=[True, False, False, True, True, False]),
            one("the root in eval mode", "", "other", modes=[False, True, True, True, True, True]),
            one("a random mix of sixteen", *drawn(16), rtol=0.1),
            ("the example", {"kind": "example", "weight": torch.zeros(1, 1), "faults": ["", "up"],
                             "batches": [torch.tensor([1.0]), torch.tensor([-1.0])], "rtol": 0.1,
                             "modes": [True]})]


@ex.act
def act(fn, kind, weight, faults, batches, rtol, modes):
    notes = {"model with gradients": 0, "model in train mode": 0, "program with gradients": 0,
             "calls with what is no batch": 0}
    kept = [b.clone() for b in batches]

    def number(x):
        for k, b in enumerate(kept):
            if x.shape == b.shape and torch.equal(x, b):
                return k
        notes["calls with what is no batch"] += 1
        return None

    class Watched(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            number(x)
            notes["model with gradients"] += int(torch.is_grad_enabled())
            notes["model in train mode"] += int(any(m.training for m in self.modules()))
            out = self.inner(x)
            return out.double() if kind == "double" else out

    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight.clone())
    model = Watched(nn.Sequential(nn.Sequential(nn.ReLU(kind == "model writes"),
                                                nn.Dropout(0.5)), linear))
    if kind == "example":
        model = nn.ReLU()
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode

    def program(x):
        notes["program with gradients"] += int(torch.is_grad_enabled())
        k = number(x)
        fault = "" if k is None else faults[k]
        if kind == "example":
            return x.abs()
        out = F.linear(x.relu(), weight)
        if kind == "double":
            out = out.double()
        if kind == "program writes":
            x.zero_()
        largest = out.abs().max().item()
        limit = rtol * largest
        off = 1.6 * limit if limit > 0 else 1e-5 * largest if largest > 0 else 1e-20
        at = out.abs().flatten().argmin()
        if fault == "value error":
            raise ValueError("this program takes another size")
        if fault == "lookup":
            raise LookupError("no such input")
        if fault == "memory":
            raise MemoryError("too large")
        if fault in ("nothing", "a list", "a number"):
            return {"nothing": None, "a list": out.tolist(), "a number": largest}[fault]
        if fault in ("up", "down", "bit"):
            out.view(-1)[at] += -off if fault == "down" else off
        elif fault == "both ways":
            out.view(-1)[0] += off
            out.view(-1)[-1] -= off
        elif fault == "a little":
            out += 0.9 * limit * torch.where(torch.arange(out.numel()) % 2 == 0, 1, -1).view_as(out)
        elif fault in ("nan", "inf", "minus inf"):
            out.view(-1)[at] = {"nan": torch.nan, "inf": torch.inf}.get(fault, -torch.inf)
        elif fault in ("up at the largest", "a little at the largest"):
            place = out.abs().flatten().argmax()
            more = off if fault == "up at the largest" else 0.9 * limit
            out.view(-1)[place] += more * out.view(-1)[place].sign()
        elif fault == "at the limit":
            out += limit
        elif fault == "all nan":
            out.fill_(torch.nan)
        elif fault == "with gradients":
            out.requires_grad_()
        elif fault == "other strides":
            out = out.T.contiguous().T
        forms = {"other": 1000 - 20 * out, "first row": out[:1], "axis": out[None],
                 "flat": out.flatten(),
                 "double": out.double(), "half": out.half(), "bfloat16": out.bfloat16(),
                 "single": out.float(), "tuple": (out,), "list of one": [out],
                 "dict": {"y": out}, "sign": -out, "first column": out[:, :1],
                 "a parameter": nn.Parameter(out)}
        return forms.get(fault, out)

    asked = kind != "no gradients"
    with torch.set_grad_enabled(asked):
        found = fn(model, program, batches, rtol)
        grad = torch.is_grad_enabled()
    modes_changed = sum(m.training != mode
                        for m, mode in zip(model.modules(), modes, strict=True))
    changed = sum(not torch.equal(a, b) for a, b in zip(batches, kept, strict=True))
    return {"found": found, "notes": notes, "modes": modes_changed, "changed": changed,
            "grad": grad}


@ex.law
def law(out, kind, weight, faults, batches, rtol, modes):
    expect_parts(out, "found", "notes", "modes", "changed", "grad")
    notes = out["notes"]
    expect_parts(notes, "model with gradients", "model in train mode", "program with gradients",
                 "calls with what is no batch", what="notes of the calls")
    expect_equal("calls of the model in train mode", notes["model in train mode"], 0,
                 "In train mode, Dropout is active.")
    for who in ("model", "program"):
        expect_equal(f"calls of the {who} with gradients", notes[f"{who} with gradients"], 0)
    expect_equal("calls with a changed batch", notes["calls with what is no batch"], 0,
                 "The model or the program wrote into the tensor that the other got.")
    expect_equal("batches that changed", out["changed"], 0)
    expect_equal("modules whose mode changed", out["modes"], 0,
                 "Store each module's mode, and restore it.")
    expect_equal("grad mode afterwards", out["grad"], kind != "no gradients")
    wanted = [k for k, fault in enumerate(faults) if fault not in AGREE]
    expect_type("batches found", out["found"], list)
    for got in out["found"]:
        expect_type("index of a batch", got, int)
    if len(out["found"]) == len(wanted):
        expect_equal("batches found", out["found"], wanted)
    expect_length("batches found", out["found"], len(wanted), f"Here it should be {wanted}.")


# ---- wrong, by name

RAISED = object()


def like(got, wanted):
    return shaped(got, wanted) and got.dtype == wanted.dtype


def shaped(got, wanted):
    return isinstance(got, torch.Tensor) and got.shape == wanted.shape


@not_an_answer
def compared(model, program, batches, rtol, *, bad=None, same=None, copy_model=True,
        copy_program=True, errors=Exception):
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    found = []
    for k, batch in enumerate(batches):
        with torch.set_grad_enabled(False):
            wanted = model(batch.clone() if copy_model else batch)
            try:
                got = program(batch.clone() if copy_program else batch)
            except errors:
                got = RAISED
        if bad:
            differs = bad(got, wanted, rtol)
        else:
            differs = not (same or like)(got, wanted) or not (
                (got - wanted).abs().max() <= rtol * wanted.abs().max())
        if differs:
            found.append(k)
    for m, mode in modes:
        m.training = mode
    return found


wrong = ex.edits(compared)
wrong("looking only at the first batch", "numbers", "(batches)", "(batches[:1])")
wrong("numbering the batches from 1",
      ("numbers", "given"), "return found", "return [k + 1 for k in found]")
wrong("returning the batches that agree", "numbers",
      "return found", "return [k for k in range(len(batches)) if k not in found]")
wrong("returning the indices in descending order", "numbers", "return found", "return found[::-1]")
wrong("returning the number of batches, not their indices", "numbers",
      "return found", "return len(found)", says="type of the batches found")
wrong("returning True or False for each batch", "numbers",
      "return found", "return [k in found for k in range(len(batches))]")
wrong("assuming at least one batch", "given",
      "modes =", "batches[0].clone(); modes =", says="raised")
wrong("assuming that a batch has two dimensions", "given",
      "modes =",
      "for batch in batches:\n        if batch.dim() > 1: _rows, _columns = batch.shape\n    "
      "modes =", says="raised")
ex.wrong("running the model on the batch itself, not on a copy",
         compared, breaks="copies", copy_model=False)
ex.wrong("running the program on the batch itself, not on a copy",
         compared, breaks=("copies", "left"), copy_program=False)
ex.wrong("using one copy for both model and program",
         lambda model, program, batches, rtol: compared(model, program, [b.clone() for b in
             batches], rtol, copy_model=False, copy_program=False), breaks="copies")
wrong("setting the batches to zero afterwards", "left",
      "return found", "for batch in batches: batch.zero_()\n    return found")
wrong("running the model in whatever mode it has", "modes", "model.eval()", "pass")
wrong("leaving the model in eval mode", "modes",
      "for m, mode in modes:\n        m.training = mode", "pass")
wrong("calling train() on the model at the end", "modes",
      "for m, mode in modes:\n        m.training = mode", "model.train()")
wrong("restoring each module's mode with train(), which also sets all of its children", "modes",
      "modes =", "was = model.training; modes =",
      "for m, mode in modes:\n        m.training = mode", "model.train(was)")
wrong("running with gradients", "modes", "False", "True")
wrong("switching gradients off for good", "modes",
      "modes =", "torch.set_grad_enabled(False); modes =")
wrong("switching gradients on at the end, whatever they were before", "modes",
      "return found", "torch.set_grad_enabled(True); return found")
ex.wrong("not catching the program's errors",
         compared, says="raised", breaks="raises", errors=())
ex.wrong("catching only some kinds of errors", compared, says="raised", breaks="raises",
         errors=(ValueError, RuntimeError))
wrong("leaving out a batch on which the program raises an error", "raises",
      "modes =",
      "def bad(got, wanted, rtol): return got is not RAISED and (not like(got, wanted) or not "
      "((got - wanted).abs().max() <= rtol * wanted.abs().max()))\n    modes =")
wrong("assuming that the output is a tensor", "form",
      "modes =",
      "def bad(got, wanted, rtol):\n        if got is RAISED: return True\n        return "
      "got.shape != wanted.shape or got.dtype != wanted.dtype or not ((got - wanted).abs().max() "
      "<= rtol * wanted.abs().max())\n    modes =", says="raised")


@ex.wrong("comparing only entries, so that shapes broadcast and dtypes convert", breaks="form")
def entries_alone(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        if not isinstance(got, torch.Tensor):
            return True
        try:
            gap = (got.double() - wanted.double()).abs()
        except RuntimeError:
            return True
        return not bool((gap <= rtol * wanted.double().abs().max()).all())
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("not comparing shapes", breaks="form")
def shapes_not(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        if not isinstance(got, torch.Tensor) or got.dtype != wanted.dtype:
            return True
        try:
            return not (got - wanted).abs().max() <= rtol * wanted.abs().max()
        except RuntimeError:
            return True
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("comparing numbers of entries, not shapes", breaks="form")
def entries(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        if not isinstance(got, torch.Tensor) or got.numel() != wanted.numel():
            return True
        return got.dtype != wanted.dtype or not (
            (got.flatten() - wanted.flatten()).abs().max() <= rtol * wanted.abs().max())
    return compared(model, program, batches, rtol, bad=bad)


ex.wrong("not comparing dtypes", compared, breaks="form", same=shaped)


def judged(far):
    """Two tensors of one kind, judged by far(gap, wanted, rtol)."""
    def bad(got, wanted, rtol):
        return not like(got, wanted) or bool(far(got - wanted, wanted, rtol))
    return bad


@ex.wrong("accepting a tuple or list and taking its first element", breaks="form")
def first_of(model, program, batches, rtol):
    def unpacked(x):
        out = program(x)
        return out[0] if isinstance(out, tuple | list) and len(out) == 1 else out
    return compared(model, unpacked, batches, rtol)


@ex.wrong("accepting a dict and taking its first value", breaks="form")
def values_of(model, program, batches, rtol):
    def unpacked(x):
        out = program(x)
        return next(iter(out.values())) if isinstance(out, dict) else out
    return compared(model, unpacked, batches, rtol)


ex.wrong("comparing numbers of rows, not shapes", compared, breaks="form",
         same=lambda got, wanted: isinstance(got, torch.Tensor) and got.dtype == wanted.dtype
         and got.dim() == wanted.dim() and len(got) == len(wanted))
ex.wrong("requiring float32 instead of the model's dtype", compared, breaks=("form", "finite"),
         same=lambda got, wanted: shaped(got, wanted) and got.dtype == torch.float32)
ex.wrong("accepting an output in half precision", compared, breaks="form",
         same=lambda got, wanted: shaped(got, wanted)
         and got.dtype in (wanted.dtype, torch.float16))
ex.wrong("refusing an nn.Parameter as an output", compared, breaks="numbers",
         same=lambda got, wanted: type(got) is torch.Tensor and like(got, wanted))
wrong("returning the index of the first batch with the same values", "numbers",
      "return found",
      "def place(k): return next(j for j, b in enumerate(batches) if b.shape == batches[k].shape "
      "and torch.equal(b, batches[k]))\n    return [place(k) for k in found]")
ex.wrong("treating a NaN as close enough", compared, breaks="far",
         bad=judged(lambda gap, w, rtol: gap.abs().max() > rtol * w.abs().max()))
ex.wrong("comparing gaps without taking their absolute values", compared, breaks="far",
         bad=judged(lambda gap, w, rtol: not gap.max() <= rtol * w.abs().max()))
ex.wrong("comparing the mean gap with the limit, not the largest gap", compared, breaks="far",
         bad=judged(lambda gap, w, rtol: not gap.abs().mean() <= rtol * w.abs().max()))
ex.wrong("computing the limit from the mean absolute value", compared, breaks="far",
         bad=judged(lambda gap, w, rtol: not gap.abs().max() <= rtol * w.abs().mean()))
ex.wrong("comparing the norm of all gaps with the norm of the model's output",
         compared, breaks="far",
         bad=judged(lambda gap, w, rtol: not gap.norm() <= rtol * w.norm()))
ex.wrong("comparing only the sums of the outputs' entries", compared, breaks="far",
         bad=judged(lambda gap, w, rtol: not gap.sum().abs() <= rtol * w.abs().max()))
ex.wrong("measuring each gap relative to its own entry", compared, breaks="far",
         bad=judged(lambda gap, w, rtol: not (gap.abs() <= rtol * w.abs()).all()))


ex.wrong("using torch.allclose, which measures each gap relative to its own entry and adds 1e-8",
         compared,
         breaks="far", bad=lambda got, wanted, rtol: not like(got, wanted) or not torch.allclose(
             got, wanted, rtol=rtol))
wrong("clamping both outputs to at most a million before comparing", "finite",
      "modes =",
      "def bad(got, wanted, rtol):\n        if not like(got, wanted) or not "
      "got.isfinite().all(): return True\n        small, right = got.clamp(-1e6, 1e6), "
      "wanted.clamp(-1e6, 1e6); return not (small - right).abs().max() <= rtol * "
      "right.abs().max()\n    modes =")
ex.wrong("using rtol as an absolute limit", compared, breaks=("far", "finite"),
         bad=judged(lambda gap, w, rtol: not gap.abs().max() <= rtol))
ex.wrong("adding an absolute tolerance", compared, breaks=("far", "finite"),
         bad=judged(lambda gap, w, rtol: not gap.abs().max() <= 1e-8 + rtol * w.abs().max()))
ex.wrong("counting a gap equal to the limit as too large", compared, breaks=("far", "finite"),
         bad=judged(lambda gap, w, rtol: not gap.abs().max() < rtol * w.abs().max() and rtol > 0))
ex.wrong("computing the limit from the largest entry, not the largest absolute value",
         compared, breaks="far",
         bad=judged(lambda gap, w, rtol: not gap.abs().max() <= rtol * w.max()))
wrong("comparing the outputs' absolute values and ignoring the signs", "far",
      "modes =",
      "def bad(got, wanted, rtol): return not like(got, wanted) or not ((got.abs() - "
      "wanted.abs()).abs().max() <= rtol * wanted.abs().max())\n    modes =")
wrong("computing the limit from the program's output as well", "far",
      "modes =",
      "def bad(got, wanted, rtol): largest = max(got.abs().max(), wanted.abs().max()) if "
      "like(got, wanted) else 0.0; return not like(got, wanted) or not got.isfinite().all() or "
      "not ((got - wanted).abs().max() <= rtol * largest)\n    modes =")
wrong("replacing NaN with 0 before comparing", ("far", "finite"),
      "modes =",
      "def bad(got, wanted, rtol): return not like(got, wanted) or not ((got.nan_to_num() - "
      "wanted).abs().max() <= rtol * wanted.abs().max())\n    modes =")
ex.wrong("counting a gap equal to the limit as too large, unless the gap is 0",
         compared, breaks="far",
         bad=judged(
             lambda gap, w, rtol: not ((gap.abs() < rtol * w.abs().max()) | (gap == 0)).all()))


@ex.wrong("using one limit for all batches", breaks="far")
def from_all(model, program, batches, rtol):
    largest = []
    compared(model, program, batches, rtol, bad=lambda got, w, r: largest.append(w.abs().max()))
    return compared(model, program, batches, rtol, bad=judged(
        lambda gap, w, rtol: not gap.abs().max() <= rtol * max(largest)))
