"""Exercise 11.6, `disagreements`."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts, expect_type

# faults: what the program does wrong on a batch; "" and those of AGREE are right. modes: whether
# each module of the model is in train mode.
ex = exercise("11.6", "disagreements", seen=("kind", "weight", "faults", "batches", "rtol",
                                             "modes"))

AGREE = ("", "a little", "with gradients", "other strides", "a parameter", "at the limit")

ex.promise("numbers", "Numbers of the batches on which a program is not its model, in order.",
           says=("batches found", "number of a batch"))
ex.promise("given", "batches: float32 tensors, numbered from 0, each with at least one entry.",
           cases=("no batches", "one entry", "three dimensions", "a batch of one row"))
ex.promise("copies", "Each of the two, called with a batch, gets a copy of its own.",
           says=("calls with what is no batch", "batches that changed"))
ex.promise("modes", "Both run without gradients, the model in eval mode; afterwards each of its "
           "modules is in the mode in which it was.",
           says=("with gradients", "in train mode", "modules whose mode changed"))
ex.promise("finite", "The model's answers are finite tensors of a floating-point dtype.",
           cases=("large weights", "small weights", "answers of zero",
                  "a model in double precision"))
ex.promise("raises", "A batch counts if the program raises an Exception,",
           cases=("it raises", "it raises another error"))
ex.promise("form", "if it returns no tensor, or one of another shape or dtype,",
           cases=("no tensor", "one row for all", "an axis more", "flattened",
                  "in double precision", "in half precision", "equal rows",
                  "in a tuple", "in a dict", "one column for all", "in bfloat16",
                  "a model in double precision"))
ex.promise("far", "or if an entry is not finite, or is farther from the model's than rtol times "
           "the largest size in the model's answer to this batch.",
           cases=("a NaN", "an infinite entry", "minus infinity", "all of them NaN", "too large",
                  "too small", "a little off", "both ways at once", "a small batch beside others",
                  "a large batch beside others", "rtol of 0", "answers of zero", "large weights",
                  "small weights", "one entry", "answers below zero", "the sign turned",
                  "measured by the model", "at the limit", "any of sixteen"))
ex.promise("left", "batches stay as they are.", says=("batches that changed",))
ex.promise("example", "Example: nn.ReLU(), an abs(), batches [1.], [-1.], rtol 0.1: [1].",
           cases=("the example",))


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

    zero = one("answers of zero", "", "up", "down", "", "nan", rtol=0.1)
    zero[1]["batches"] = [-b.abs() for b in zero[1]["batches"]]
    columns = one("one column for all", "", "first column", "", outs=3)
    columns[1]["weight"] = columns[1]["weight"][:1].expand(3, 4).clone()
    limit = one("at the limit", "at the limit", "", outs=1, ins=1, rtol=0.25)
    limit[1]["weight"] = torch.ones(1, 1)
    limit[1]["batches"][0] = torch.tensor([[4.0]])
    twice = one("a batch that stands there twice", "other", "", "other", "")
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
            one("it raises", "", "value error", ""),
            one("it raises another error", "lookup", "", "memory"),
            one("no tensor", "nothing", "", "a list", "a number"), rows, equal,
            one("an axis more", "", "axis"), one("flattened", "flat", ""),
            one("in double precision", "", "double", ""), one("in half precision", "half", ""),
            one("in bfloat16", "bfloat16", ""), one("in a tuple", "tuple", "", "list of one"),
            one("in a dict", "", "dict"), one("the sign turned", "sign", ""), columns, limit, twice,
            one("measured by the model", "up at the largest", "", rtol=0.5),
            one("a model in double precision", "", "single", "other", kind="double"),
            one("a parameter", "a parameter", "", "other"),
            one("a NaN", "", "nan", ""), one("an infinite entry", "inf", "", ""),
            one("minus infinity", "", "minus inf"), one("all of them NaN", "all nan", ""),
            one("too large", "", "up", "", rtol=0.1), one("too small", "", "down", rtol=0.1),
            one("a little off", "a little", "", "up", rtol=0.2),
            one("both ways at once", "", "both ways"),
            one("a small batch beside others", "", "up", "", sizes=(50.0, 0.01, 50.0)),
            one("a large batch beside others", "a little", "a little", "up",
                sizes=(0.01, 50.0, 0.01)),
            one("rtol of 0", "", "bit", "", rtol=0.0), zero,
            one("answers below zero", "a little", "up", "", size=-1.0),
            one("large weights", "", "up", "a little", size=1e9),
            one("small weights", "", "up", "a little", size=1e-9),
            one("with gradients", "with gradients", "other strides", "other"),
            one("the model writes into its input", "", "other", "", kind="model writes"),
            one("the program writes into its input", "", "other", "", kind="program writes"),
            one("all in train mode", "", "other", modes=[True] * 6),
            one("all in eval mode", "", "other", modes=[False] * 6),
            one("modes of several kinds", "", "other",
                modes=[True, False, False, True, True, False]),
            one("the root in eval mode", "", "other", modes=[False, True, True, True, True, True]),
            one("any of sixteen", *drawn(16), rtol=0.1),
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
        elif fault == "up at the largest":
            place = out.abs().flatten().argmax()
            out.view(-1)[place] += off * out.view(-1)[place].sign()
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

    found = fn(model, program, batches, rtol)
    modes_changed = sum(m.training != mode
                        for m, mode in zip(model.modules(), modes, strict=True))
    changed = sum(not torch.equal(a, b) for a, b in zip(batches, kept, strict=True))
    return {"found": found, "notes": notes, "modes": modes_changed, "changed": changed}


@ex.law
def law(out, kind, weight, faults, batches, rtol, modes):
    expect_parts(out, "found", "notes", "modes", "changed")
    notes = out["notes"]
    expect_parts(notes, "model with gradients", "model in train mode", "program with gradients",
                 "calls with what is no batch", what="notes of the calls")
    expect_equal("calls of the model in train mode", notes["model in train mode"], 0,
                 "Dropout answers otherwise then.")
    for who in ("model", "program"):
        expect_equal(f"calls of the {who} with gradients", notes[f"{who} with gradients"], 0)
    expect_equal("calls with what is no batch", notes["calls with what is no batch"], 0,
                 "One of the two wrote into what the other read.")
    expect_equal("batches that changed", out["changed"], 0)
    expect_equal("modules whose mode changed", out["modes"], 0,
                 "Note the mode of each, and set it back.")
    wanted = [k for k, fault in enumerate(faults) if fault not in AGREE]
    expect_type("batches found", out["found"], list)
    for got in out["found"]:
        expect_type("number of a batch", got, int)
    if len(out["found"]) == len(wanted):
        expect_equal("batches found", out["found"], wanted)
    expect_length("batches found", out["found"], len(wanted), f"It is {wanted} here.")


ex.equivalent("if not (same and (got - wanted).abs().max() <= limit): -> "
              "if not (same and (wanted - got).abs().max() <= limit):",
              "the size of a gap does not depend on its direction")


# ---- right by another route

@ex.right("all modes by name, and allclose without a relative part")
def by_allclose(model, program, batches, rtol):
    modes = {name: m.training for name, m in model.named_modules()}
    model.train(False)

    def agrees(batch):
        with torch.no_grad():
            wanted = model(batch.clone().detach())
            try:
                got = program(torch.clone(batch))
            except Exception:
                return False
        if not torch.is_tensor(got) or (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
            return False
        return torch.allclose(got, wanted, rtol=0.0, atol=float(rtol * wanted.abs().max()))
    found = [k for k, batch in enumerate(batches) if not agrees(batch)]
    for name, m in model.named_modules():
        m.training = modes[name]
    return found


@ex.right("in double precision, finite first")
def finite_first(model, program, batches, rtol):
    modes = [m.training for m in model.modules()]
    found = []
    with torch.no_grad():
        model.eval()
        for k in range(len(batches)):
            wanted = model(batches[k].clone())
            try:
                got = program(batches[k].clone())
                good = got.dtype == wanted.dtype and got.shape == wanted.shape
            except Exception:
                good = False
            if good and bool(torch.isfinite(got).all()):
                gap = (got.double() - wanted.double()).abs().max().item()
                good = gap <= rtol * wanted.double().abs().max().item() * (1 + 1e-6)
            else:
                good = False
            if not good:
                found += [k]
    for m, mode in zip(model.modules(), modes, strict=True):
        m.training = mode
    return found


@ex.right("a deep copy of the model, in eval mode")
def deep_copy(model, program, batches, rtol):
    model, found = copy.deepcopy(model).eval(), []
    for k, batch in enumerate(batches):
        with torch.no_grad():
            wanted = model(batch.clone())
            try:
                got = program(batch.clone())
                gap = (got - wanted).abs()
                agrees = (got.dtype is wanted.dtype and got.size() == wanted.size()
                          and bool((gap <= rtol * wanted.abs().amax()).all()))
            except Exception:
                agrees = False
        found += [] if agrees else [k]
    return found


@ex.right("module by module set back, the leaves with train")
@torch.no_grad()
def copied(model, program, batches, rtol):
    def differs(batch):
        wanted = asked(batch.clone())
        try:
            got = program(batch.clone())
        except Exception:
            return True
        if not isinstance(got, torch.Tensor):
            return True
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return True
        return not all(gap <= rtol * wanted.abs().max() for gap in (got - wanted).abs().flatten())
    training = [m.training for m in model.modules()]
    asked = model.eval()
    found = [k for k, batch in enumerate(batches) if differs(batch)]
    for m, mode in zip(model.modules(), training, strict=True):
        m.train(mode) if not list(m.children()) else setattr(m, "training", mode)
    return found


@ex.right("all answers of the model first, in inference mode")
def in_two_rounds(model, program, batches, rtol):
    modes = [(m, m.training) for m in model.modules()]
    for m, _ in modes:
        m.training = False
    with torch.inference_mode():
        wanted = [model(b.clone()) for b in batches]
        found = []
        for k, (b, w) in enumerate(zip(batches, wanted, strict=True)):
            try:
                got = program(b.clone())
                torch.testing.assert_close(got, w, rtol=0, atol=float(rtol * w.abs().max()),
                                           equal_nan=False)
            except Exception:
                found.append(k)
    for m, mode in modes:
        m.training = mode
    return found


# ---- wrong, by name

RAISED = object()


def compared(model, program, batches, rtol, *, bad=None, copy_model=True, copy_program=True,
             grad=False, switch=True, back=True, errors=Exception):
    """The right answer with its pieces as options; bad(got, wanted, limit) judges two tensors."""
    modes = [(m, m.training) for m in model.modules()]
    if switch:
        model.eval()
    found = []
    for k, batch in enumerate(batches):
        with torch.set_grad_enabled(grad):
            wanted = model(batch.clone() if copy_model else batch)
            try:
                got = program(batch.clone() if copy_program else batch)
            except errors:
                got = RAISED
        if bad:
            differs = bad(got, wanted, rtol)
        else:
            differs = not like(got, wanted) or not (
                (got - wanted).abs().max() <= rtol * wanted.abs().max())
        if differs:
            found.append(k)
    if back:
        for m, mode in modes:
            m.training = mode
    return found


def like(got, wanted):
    return (isinstance(got, torch.Tensor) and got.shape == wanted.shape
            and got.dtype == wanted.dtype)


@ex.wrong("the first batch alone", says="batches found", breaks="numbers")
def first_alone(model, program, batches, rtol):
    return compared(model, program, batches[:1], rtol)


@ex.wrong("numbers from 1", says="batches found", breaks=("numbers", "given"))
def from_one(model, program, batches, rtol):
    return [k + 1 for k in compared(model, program, batches, rtol)]


@ex.wrong("the batches that agree", says="batches found", breaks="numbers")
def those_that_agree(model, program, batches, rtol):
    found = compared(model, program, batches, rtol)
    return [k for k in range(len(batches)) if k not in found]


@ex.wrong("the last one first", says="batches found", breaks="numbers")
def last_first(model, program, batches, rtol):
    return compared(model, program, batches, rtol)[::-1]


@ex.wrong("how many, not which", says="type of the batches found", breaks="numbers")
def how_many(model, program, batches, rtol):
    return len(compared(model, program, batches, rtol))


@ex.wrong("a truth value for each batch", says="number of a batch", breaks="numbers")
def truth(model, program, batches, rtol):
    found = compared(model, program, batches, rtol)
    return [k in found for k in range(len(batches))]


@ex.wrong("at least one batch taken for granted", says="raised", breaks="given")
def one_at_least(model, program, batches, rtol):
    batches[0].clone()
    return compared(model, program, batches, rtol)


@ex.wrong("two dimensions taken for granted", says="raised", breaks="given")
def two_dimensions(model, program, batches, rtol):
    for batch in batches:
        if batch.dim() > 1:
            _rows, _columns = batch.shape
    return compared(model, program, batches, rtol)


@ex.wrong("the model on the batch itself", says="calls with what is no batch", breaks="copies")
def model_on_itself(model, program, batches, rtol):
    return compared(model, program, batches, rtol, copy_model=False)


@ex.wrong("the program on the batch itself", says="batches that changed",
          breaks=("copies", "left"))
def program_on_itself(model, program, batches, rtol):
    return compared(model, program, batches, rtol, copy_program=False)


@ex.wrong("one copy for both", says="calls with what is no batch", breaks="copies")
def one_copy(model, program, batches, rtol):
    return compared(model, program, [b.clone() for b in batches], rtol, copy_model=False,
                    copy_program=False)


@ex.wrong("the batches put to zero afterwards", says="batches that changed", breaks="left")
def put_to_zero(model, program, batches, rtol):
    found = compared(model, program, batches, rtol)
    for batch in batches:
        batch.zero_()
    return found


@ex.wrong("the model in the mode it has", says="in train mode", breaks="modes")
def mode_it_has(model, program, batches, rtol):
    return compared(model, program, batches, rtol, switch=False)


@ex.wrong("the model left in eval mode", says="modules whose mode changed", breaks="modes")
def left_in_eval(model, program, batches, rtol):
    return compared(model, program, batches, rtol, back=False)


@ex.wrong("modes set back with train(), which reaches all children",
          says="modules whose mode changed", breaks="modes")
def all_trained(model, program, batches, rtol):
    was = model.training
    found = compared(model, program, batches, rtol, back=False)
    model.train(was)
    return found


@ex.wrong("with gradients", says="with gradients", breaks="modes")
def with_gradients(model, program, batches, rtol):
    return compared(model, program, batches, rtol, grad=True)


@ex.wrong("errors of the program passed on", says="raised", breaks="raises")
def passed_on(model, program, batches, rtol):
    return compared(model, program, batches, rtol, errors=())


@ex.wrong("some kinds of errors caught, not all", says="raised", breaks="raises")
def value_errors(model, program, batches, rtol):
    return compared(model, program, batches, rtol, errors=(ValueError, RuntimeError))


@ex.wrong("a batch that raises left out", says="batches found", breaks="raises")
def left_out(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        return got is not RAISED and (not like(got, wanted) or not (
            (got - wanted).abs().max() <= rtol * wanted.abs().max()))
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("a tensor taken for granted", says="raised", breaks="form")
def tensor_for_granted(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        if got is RAISED:
            return True
        return got.shape != wanted.shape or got.dtype != wanted.dtype or not (
            (got - wanted).abs().max() <= rtol * wanted.abs().max())
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("shapes not compared", says="batches found", breaks="form")
def shapes_not(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        if not isinstance(got, torch.Tensor) or got.dtype != wanted.dtype:
            return True
        try:
            return not (got - wanted).abs().max() <= rtol * wanted.abs().max()
        except RuntimeError:
            return True
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("numbers of entries compared, not shapes", says="batches found", breaks="form")
def entries(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        if not isinstance(got, torch.Tensor) or got.numel() != wanted.numel():
            return True
        return got.dtype != wanted.dtype or not (
            (got.flatten() - wanted.flatten()).abs().max() <= rtol * wanted.abs().max())
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("dtypes not compared", says="batches found", breaks="form")
def dtypes_not(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        if not isinstance(got, torch.Tensor) or got.shape != wanted.shape:
            return True
        return not (got - wanted).abs().max() <= rtol * wanted.abs().max()
    return compared(model, program, batches, rtol, bad=bad)


def judged(far):
    """Two tensors of one kind, judged by far(gap, wanted, rtol)."""
    def bad(got, wanted, rtol):
        return not like(got, wanted) or bool(far(got - wanted, wanted, rtol))
    return bad


@ex.wrong("the first of a tuple or list taken", says="batches found", breaks="form")
def first_of(model, program, batches, rtol):
    def unpacked(x):
        out = program(x)
        return out[0] if isinstance(out, tuple | list) and len(out) == 1 else out
    return compared(model, unpacked, batches, rtol)


@ex.wrong("the values of a dict taken", says="batches found", breaks="form")
def values_of(model, program, batches, rtol):
    def unpacked(x):
        out = program(x)
        return next(iter(out.values())) if isinstance(out, dict) else out
    return compared(model, unpacked, batches, rtol)


@ex.wrong("numbers of rows compared, not shapes", says="batches found", breaks="form")
def rows_only(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        if not isinstance(got, torch.Tensor) or got.dim() != wanted.dim():
            return True
        if len(got) != len(wanted) or got.dtype != wanted.dtype:
            return True
        return not (got - wanted).abs().max() <= rtol * wanted.abs().max()
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("float32 asked for, not the model's dtype", says="batches found",
          breaks=("form", "finite"))
def single_asked(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        if not isinstance(got, torch.Tensor) or got.shape != wanted.shape:
            return True
        return got.dtype != torch.float32 or not (
            (got - wanted).abs().max() <= rtol * wanted.abs().max())
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("half precision let pass", says="batches found", breaks="form")
def half_too(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        if not isinstance(got, torch.Tensor) or got.shape != wanted.shape:
            return True
        return got.dtype not in (wanted.dtype, torch.float16) or not (
            (got - wanted).abs().max() <= rtol * wanted.abs().max())
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("a Parameter taken for no tensor", says="batches found", breaks="numbers")
def no_parameter(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        return type(got) is not torch.Tensor or not like(got, wanted) or not (
            (got - wanted).abs().max() <= rtol * wanted.abs().max())
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("the first place of an equal batch", says="batches found", breaks="numbers")
def first_place(model, program, batches, rtol):
    found = compared(model, program, batches, rtol)

    def place(k):
        return next(j for j, b in enumerate(batches)
                    if b.shape == batches[k].shape and torch.equal(b, batches[k]))
    return [place(k) for k in found]


@ex.wrong("NaN taken for near", says="batches found", breaks="far")
def nan_is_near(model, program, batches, rtol):
    return compared(model, program, batches, rtol, bad=judged(
        lambda gap, w, rtol: gap.abs().max() > rtol * w.abs().max()))


@ex.wrong("the gap with its sign", says="batches found", breaks="far")
def with_sign(model, program, batches, rtol):
    return compared(model, program, batches, rtol, bad=judged(
        lambda gap, w, rtol: not gap.max() <= rtol * w.abs().max()))


@ex.wrong("the mean gap", says="batches found", breaks="far")
def mean_gap(model, program, batches, rtol):
    return compared(model, program, batches, rtol, bad=judged(
        lambda gap, w, rtol: not gap.abs().mean() <= rtol * w.abs().max()))


@ex.wrong("the gap of the sums", says="batches found", breaks="far")
def gap_of_sums(model, program, batches, rtol):
    return compared(model, program, batches, rtol, bad=judged(
        lambda gap, w, rtol: not gap.sum().abs() <= rtol * w.abs().max()))


@ex.wrong("each entry by its own size", says="batches found", breaks="far")
def own_size(model, program, batches, rtol):
    return compared(model, program, batches, rtol, bad=judged(
        lambda gap, w, rtol: not (gap.abs() <= rtol * w.abs()).all()))


@ex.wrong("sizes held below a million first", says="batches found", breaks="finite")
def held_below(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        if not like(got, wanted) or not got.isfinite().all():
            return True
        small, right = got.clamp(-1e6, 1e6), wanted.clamp(-1e6, 1e6)
        return not (small - right).abs().max() <= rtol * right.abs().max()
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("rtol taken for an absolute limit", says="batches found", breaks=("far", "finite"))
def absolute(model, program, batches, rtol):
    return compared(model, program, batches, rtol, bad=judged(
        lambda gap, w, rtol: not gap.abs().max() <= rtol))


@ex.wrong("an absolute part added", says="batches found", breaks=("far", "finite"))
def absolute_part(model, program, batches, rtol):
    return compared(model, program, batches, rtol, bad=judged(
        lambda gap, w, rtol: not gap.abs().max() <= 1e-8 + rtol * w.abs().max()))


@ex.wrong("the limit itself refused", says="batches found", breaks=("far", "finite"))
def below_the_limit(model, program, batches, rtol):
    return compared(model, program, batches, rtol, bad=judged(
        lambda gap, w, rtol: not gap.abs().max() < rtol * w.abs().max() and rtol > 0))


@ex.wrong("the largest entry, not the largest size", says="batches found", breaks="far")
def largest_entry(model, program, batches, rtol):
    return compared(model, program, batches, rtol, bad=judged(
        lambda gap, w, rtol: not gap.abs().max() <= rtol * w.max()))


@ex.wrong("sizes compared, without their signs", says="batches found", breaks="far")
def sizes_compared(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        return not like(got, wanted) or not (
            (got.abs() - wanted.abs()).abs().max() <= rtol * wanted.abs().max())
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("a limit from the program's size", says="batches found", breaks="far")
def by_the_program(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        largest = max(got.abs().max(), wanted.abs().max()) if like(got, wanted) else 0.0
        return not like(got, wanted) or not got.isfinite().all() or not (
            (got - wanted).abs().max() <= rtol * largest)
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("NaN turned into 0", says="batches found", breaks=("far", "finite"))
def nan_to_zero(model, program, batches, rtol):
    def bad(got, wanted, rtol):
        return not like(got, wanted) or not (
            (got.nan_to_num() - wanted).abs().max() <= rtol * wanted.abs().max())
    return compared(model, program, batches, rtol, bad=bad)


@ex.wrong("the limit itself refused, but for equals", says="batches found", breaks="far")
def below_but_for_equals(model, program, batches, rtol):
    return compared(model, program, batches, rtol, bad=judged(
        lambda gap, w, rtol: not ((gap.abs() < rtol * w.abs().max()) | (gap == 0)).all()))


@ex.wrong("a limit from all batches", says="batches found", breaks="far")
def from_all(model, program, batches, rtol):
    largest = []
    compared(model, program, batches, rtol, bad=lambda got, w, r: largest.append(w.abs().max()))
    return compared(model, program, batches, rtol, bad=judged(
        lambda gap, w, rtol: not gap.abs().max() <= rtol * max(largest)))


@ex.wrong("the example, with a number looked up wrong", says="batches found", breaks="example")
def looked_up(model, program, batches, rtol):
    if type(model) is nn.ReLU:
        return [0]
    return compared(model, program, batches, rtol)
