"""Exercise 10.5, `load_adapter`."""

from __future__ import annotations

import math

import torch
from torch import nn

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

# Paths are those of peft: the file's lack the part `default`, the adapter's name in the model.
# A parameter is [path, shape, dtype, requires_grad, start], a tensor of the file [path, shape,
# dtype, start]: its numbers follow from start. In place of requires_grad, "buffer" is a buffer, and
# a path means the parameter of that path. Starts: 0 zeros, -1 minus zeros, -2 a sum of zero, -3
# none above zero, -4 tiny, -5 the last number alone, -6 zero in float32 but not in float64.
ex = exercise("10.5", "load_adapter", seen=("params", "file"), says="raised for a file that fits")

ex.promise_table("""
whole      | Load an adapter from a file into a model, completely or not at all. | raised; adapter
             tensor
paths      | The model's adapter consists of all parameters in named_parameters() whose paths end
             with the three parts lora_A.default.weight or lora_B.default.weight, such as
             "base_model.model.q_proj.lora_A.default.weight". There is at least one of each. | case
             names that look alike; a second adapter; at the root; deep; two layers; one layer; an
             adapter at the end; buffers named A and B; an A without its B; six layers; of other
             shapes; a layer under two paths
names      | In a file, paths lack the part "default", as in
             "base_model.model.q_proj.lora_A.weight". | case one layer; paths as in the model; a
             module named default
file       | Args: file: a dict from such paths to tensors of a floating-point dtype. | case another
             order; layers in another order; float64 in the file; float64 in both; bfloat16 in the
             file; views in the file; zero in float32 only | raised for a file that fits
missing    | Raises ValueError if a path of the adapter is missing in file. | case an A is missing;
             a B is missing; an empty file
others     | Any other path in file also raises ValueError. | case one layer too many; a base weight
             in the file; an unknown path; paths without their prefix
shapes     | A shape that differs raises ValueError. | case a shape that broadcasts; a transposed
             shape; the first shape differs; a B that broadcasts; another rank; one value where
             there are many; an axis too many
zero       | A file in which every lora_B is all zeros also raises ValueError. | case every B zero;
             one of two Bs zero; every A zero; a B of one value; a B with a zero in it; B first in
             the file; minus zero; the first B zero; B sums to zero; B not above zero; a tiny B;
             only the last value of B; zero in float32 only; a fresh model
not half   | In each of these cases, model does not change. | tensors of model that changed
numbers    | Each parameter gets the values of its tensor, in the parameter's dtype. | adapter
             tensor
object     | It stays the same object and keeps its requires_grad. | parameters replaced;
             requires_grad
no sharing | It shares no memory with file. | memory shared
rest       | The rest of model, file and the grad mode do not change. | other tensor of model;
             tensors of file; modes and gradients; grad mode
""")


def letter(path):
    """A or B for a parameter of the adapter, by its path in the model; None for any other."""
    return {"lora_A.default.weight": "A", "lora_B.default.weight": "B"}.get(
        ".".join(path.split(".")[-3:]))


def in_file(path):
    """The path in a file of a parameter of the adapter."""
    return path.removesuffix("default.weight") + "weight"


@ex.cases
def cases(g):
    whole = integers(g)

    def layer(path, d_in, d_out, r, live=True):
        dot = f"{path}." if path else ""
        return [[f"{dot}base_layer.weight", [d_out, d_in], "float32", False],
                [f"{dot}lora_A.default.weight", [r, d_in], "float32", live],
                [f"{dot}lora_B.default.weight", [d_out, r], "float32", live]]

    def saved(params, kind="float32"):
        return [[in_file(path), shape, kind, whole(20, 900)] for path, shape, _, _ in params
                if letter(path)]

    def change(file, path, shape=None, start=None):
        return [[p, shape or s, kind, n if start is None else start] if p == path
                else [p, s, kind, n] for p, s, kind, n in file]

    def without(file, path):
        return [entry for entry in file if entry[0] != path]

    def one(name, params, file):
        fresh = name == "a fresh model"
        starts = [0 if fresh and letter(p[0]) == "B" else 1000 + k for k, p in enumerate(params)]
        return name, {"params": [[*p, start] for p, start in zip(params, starts)], "file": file}

    def both(start, kind="float32"):
        return [[p, s, kind, start if "lora_B" in p else n] for p, s, _, n in doubled]
    d, r = whole(5, 8), whole(2, 4)
    peft = "base_model.model"
    QA, QB, VA, VB = (f"{peft}.{name}_proj.lora_{part}.weight" for name in "qv" for part in "AB")
    single = layer(f"{peft}.q_proj", d, d + 1, r)
    double = single + layer(f"{peft}.v_proj", d + 1, d + 2, r, live=False)
    deep = layer(f"{peft}.a.b.c.d.e", d, d, r) + layer(f"{peft}.a.b.c.f", d, d, r)
    alike = [*double, [f"{peft}.q_proj.my_lora_A.default.weight", [r, d], "float32", True],
             [f"{peft}.lora_A.weight", [d], "float32", True],
             [f"{peft}.q_proj.lora_A.default.bias", [r], "float32", True],
             [f"{peft}.v_proj.lora_C.default.weight", [r], "float32", False],
             ["lora_B.default.weight.scale", [d], "float32", True],
             [f"{peft}.lora_B.default.norm.weight", [d], "float32", True]]
    second = [*double, [f"{peft}.q_proj.lora_A.trained.weight", [r, d], "float32", True],
              [f"{peft}.q_proj.lora_B.trained.weight", [d + 1, r], "float32", True]]
    default = layer(f"{peft}.default.q_proj", d, d, r)
    halves = [[p, s, "bfloat16" if letter(p) == "B" else k, f] for p, s, k, f in double]
    doubled = saved(double)
    many = [part for k in range(6) for part in layer(f"{peft}.layers.{k}", d, d, r)]
    buffers = [*double, [f"{peft}.mean.lora_A.default.weight", [d], "float32", "buffer"],
               [f"{peft}.mean.lora_B.default.weight", [d], "float32", "buffer"]]
    alone = [*double, [f"{peft}.o_proj.lora_A.default.weight", [r, d], "float32", True]]
    odd = [["c.lora_A.default.weight", [d], "float32", True],
           ["c.lora_B.default.weight", [2, 3, r], "float32", True], *single]
    twice = [*double, *([f"z.lora_{part}.default.weight", shape, "float32",
                         f"{peft}.v_proj.lora_{part}.default.weight"]
                        for part, shape in (("A", [r, d + 1]), ("B", [d + 2, r])))]
    wide = [[p, s, "float64", f] for p, s, k, f in double]
    unit = layer("u", 1, 1, 1)
    flat = [["weight", [d, d], "float32", False], *layer("", d, d, r)[1:]]
    return [one("one layer", single, saved(single)), one("two layers", double, doubled),
            one("another order", double, doubled[::-1]),
            one("layers in another order", deep, saved(deep)[2:] + saved(deep)[:2]),
            one("deep", deep, saved(deep)),
            one("at the root", layer("", d, d, r), saved(layer("", d, d, r))),
            one("names that look alike", alike, doubled), one("a second adapter", second, doubled),
            one("a module named default", default, saved(default)),
            one("buffers named A and B", buffers, doubled), one("six layers", many, saved(many)),
            one("an A without its B", alone, saved(alone)), one("of other shapes", odd, saved(odd)),
            one("a layer under two paths", twice, doubled),
            one("float64 in both", wide, saved(wide, "float64")),
            one("views in the file", double, doubled),
            one("the first B zero", double, change(doubled, QB, start=0)),
            one("B sums to zero", double, both(-2)), one("B not above zero", double, both(-3)),
            one("a tiny B", double, both(-4)), one("only the last value of B", double, both(-5)),
            one("zero in float32 only", double, both(-6, "float64")),
            one("a fresh model", double, doubled),
            one("float64 in the file", double, saved(double, "float64")),
            one("bfloat16 in the file", double, saved(double, "bfloat16")),
            one("B in bfloat16 in the model", halves, saved(halves)),
            one("an A is missing", double, without(doubled, VA)),
            one("a B is missing", double, without(doubled, VB)),
            one("an empty file", double, []),
            one("one layer too many", single, doubled),
            one("a base weight in the file", double,
                [*doubled, [f"{peft}.v_proj.base_layer.weight", [d + 2, d + 1], "float32", 77]]),
            one("an unknown path", double, [*doubled, ["note", [3], "float32", 5]]),
            one("paths without their prefix", double,
                [[p.removeprefix(f"{peft}."), *rest] for p, *rest in doubled]),
            one("paths as in the model", double, [[p[:-6] + "default.weight", *rest]
                                                  for p, *rest in doubled]),
            one("a shape that broadcasts", double, change(doubled, VA, [1, d + 1])),
            one("a B that broadcasts", double, change(doubled, VB, [d + 2, 1])),
            one("a transposed shape", double, change(doubled, VB, [r, d + 2])),
            one("another rank", double, change(change(doubled, VB, [d + 2, r + 1]),
                                               VA, [r + 1, d + 1])),
            one("one value where there are many", double, change(doubled, VA, [1])),
            one("an axis too many", double, change(doubled, VA, [1, r, d + 1])),
            one("every B zero", double, change(change(doubled, QB, start=0),
                                               VB, start=0)),
            one("minus zero", single, change(saved(single), QB, start=-1)),
            one("one of two Bs zero", double, change(doubled, VB, start=0)),
            one("every A zero", double, change(change(doubled, QA, start=0),
                                               VA, start=0)),
            one("a B with a zero in it", single, change(saved(single), QB, start=15)),
            one("B first in the file", single, saved(single)[::-1]),
            one("an adapter at the end", flat, saved(flat)),
            one("the first shape differs", double, change(doubled, QA, [1, d])),
            one("a B of one value", unit, change(saved(unit), "u.lora_B.weight", start=31))]


@ex.act
def act(fn, params, file):
    def numbers(shape, start, kind):
        n = math.prod(shape)
        made = ((max(start, 0) + torch.arange(n)) * 37 % 101 - 50).double() / 48
        if start <= 0:
            made = torch.full((n,), {-1: -0.0, -3: -0.5, -4: 1e-30, -6: 1e-60}.get(start, 0.0),
                              dtype=torch.float64)
            ends = {-2: (1.0, -1.0), -3: (0.0, -0.5), -5: (0.0, 0.75)}.get(start, made[[0, -1]])
            made[0], made[-1] = ends[0], ends[1]
        return made.view(shape).to(getattr(torch, kind))

    def holder(path):
        *holders, last = path.split(".")
        at = model
        for part in holders:
            if part not in at._modules:
                at.add_module(part, nn.Module())
            at = at._modules[part]
        return at, last

    model = nn.Module()
    model.register_buffer("steps", torch.tensor([3.0, 4.0]))
    for path, shape, kind, live, start in params:
        at, last = holder(path)
        if live == "buffer":
            at.register_buffer(last, numbers(shape, start, kind))
        elif isinstance(live, str):
            source, name = holder(live)
            at.register_parameter(last, source._parameters[name])
        else:
            at.register_parameter(last, nn.Parameter(numbers(shape, start, kind), live))
    for place, module in enumerate(model.modules()):
        module.training = place % 2 == 0
    for place, p in enumerate(model.parameters()):
        p.grad = torch.ones_like(p) if place % 2 and p.requires_grad else None

    def found():
        every = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        return {path: every[path] for path in [*(p[0] for p in params), "steps"] if path in every}

    def modes():
        return [(path, m.training, sorted(vars(m)), len(m._forward_hooks))
                for path, m in model.named_modules()] + [
                    (path, id(p.grad), None if p.grad is None else p.grad.tolist())
                    for path, p in model.named_parameters()]

    before, how = found(), modes()
    old = {path: p.detach().clone() for path, p in before.items()}
    tensors = {path: numbers(shape, start, kind) for path, shape, kind, start in file}
    tensors = {path: t.mT.contiguous().mT if t.dim() > 1 else t for path, t in tensors.items()}
    given = {path: (t, t.clone()) for path, t in tensors.items()}
    raised = "no error"
    try:
        fn(model, tensors)
    except ValueError:
        raised = "ValueError"
    grads = [int(torch.is_grad_enabled())]
    now = found()
    kept = [path for path, (t, copy) in given.items() if tensors.get(path) is t
            and t.dtype == copy.dtype and not t.requires_grad and torch.equal(t, copy)]
    store = {t.untyped_storage().data_ptr() for t, _ in given.values()}
    out = {"raised": raised, "after": [t.detach().clone() for t in now.values()], "grads": grads,
           "moved": sum(path not in now or not torch.equal(now[path].detach(), t)
                        for path, t in old.items()),
           "replaced": sum(now.get(path) is not p for path, p in before.items()),
           "live": [int(p.requires_grad) for p in now.values()],
           "shared": sum(p.untyped_storage().data_ptr() in store for p in now.values()),
           "file": abs(len(tensors) - len(kept)) + len(given) - len(kept),
           "modes": sum(a != b for a, b in zip(modes(), how)), "again": []}
    if raised == "no error":
        torch.set_grad_enabled(False)
        fn(model, {path: -2 * copy for path, (t, copy) in given.items()})
        out["again"] = [t.detach().clone() for t in found().values()]
        grads.append(int(torch.is_grad_enabled()))
    return out


def numbers_of(shape, start, kind):
    """The numbers that an act makes, one by one."""
    last = math.prod(shape) - 1
    special = {0: lambda k: 0.0, -1: lambda k: -0.0, -2: lambda k: {0: 1.0, last: -1.0}.get(k, 0.0),
               -3: lambda k: -0.5 if k else 0.0, -4: lambda k: 1e-30,
               -5: lambda k: 0.75 if k == last else 0.0, -6: lambda k: 1e-60}
    number = special.get(start, lambda k: ((start + k) * 37 % 101 - 50) / 48)
    flat = torch.tensor([number(k) for k in range(last + 1)], dtype=torch.float64)
    return flat.reshape(shape).to(getattr(torch, kind))


def fault(params, file):
    """What is wrong with a file, in a word; empty where it may be loaded."""
    shapes = {in_file(path): shape for path, shape, _, live, _ in params
              if letter(path) and live != "buffer" and not isinstance(live, str)}
    found = {path: (shape, start) for path, shape, _, start in file}
    for kind, paths in (("a missing path", set(shapes) - set(found)),
                        ("another path", set(found) - set(shapes))):
        if paths:
            return f"{kind}, {min(paths)}"
    for path, shape in shapes.items():
        if found[path][0] != shape:
            return f"a shape that differs, {found[path][0]} for {path} of {shape}"
    live = [start for path, (_, start) in found.items()
            if path.endswith("lora_B.weight") and start not in (0, -1)]
    return "" if live else "every B zero"


@ex.law
def law(out, params, file):
    expect_parts(out, "raised", "moved", "after", "replaced", "live", "shared", "file", "modes",
                 "grads", "again")
    wrong = fault(params, file)
    expect_equal(f"raised for {wrong or 'a file that fits'}", out["raised"],
                 "ValueError" if wrong else "no error")
    expect_equal("tensors of file changed", out["file"], 0)
    if wrong:
        expect_equal("tensors of model that changed although it raised", out["moved"], 0)
    expect_equal("parameters replaced", out["replaced"], 0, "Write into the existing parameters.")
    own = [p for p in params if p[3] == "buffer" or not isinstance(p[3], str)]
    expect_equal("requires_grad of the tensors", out["live"],
                 [*(int(live is True) for *_, live, _ in own), 0])
    expect_equal("memory shared with file", out["shared"], 0)
    saved = {path.removesuffix("weight") + "default.weight": numbers_of(shape, start, kind)
             for path, shape, kind, start in file}
    before = {path: numbers_of(shape, start, kind) for path, shape, kind, _, start in own}
    after = before | ({} if wrong else {p: t.to(before[p].dtype) for p, t in saved.items()})
    expect_tensors(out["after"], after, saved)
    expect_equal("tensors of model that changed", out["moved"],
                 sum(not torch.equal(after[path], t) for path, t in before.items()))
    expect_equal("modes and gradients of model that changed", out["modes"], 0)
    expect_equal("grad mode after the call (made with it on, then off)", out["grads"],
                 [1] if wrong else [1, 0], "Restore it.")
    if wrong:
        expect_length("tensors after a second call", out["again"], 0)
        return
    again = after | {p: (-2 * t).to(before[p].dtype) for p, t in saved.items()}
    expect_tensors(out["again"], again, saved, " after a second call")


def expect_tensors(got, wanted, saved, when=""):
    """Raise Broken unless the tensors of model are these; steps, a buffer, comes last."""
    expect_length(f"tensors of model{when}", got, len(wanted) + 1)
    for path, tensor, right in zip([*wanted, "steps"], got, [*wanted.values(), STEPS]):
        what = "adapter tensor" if path in saved else "other tensor of model"
        expect_close(f"{what} {path}{when}", tensor, right, rtol=0.0, atol=0.0)


STEPS = torch.tensor([3.0, 4.0])


# ---- wrong, by name

@not_an_answer
@torch.no_grad()
def loaded(model, file):
    mine = {in_file(path): p for path, p in model.named_parameters() if letter(path)}
    if mine.keys() - file.keys():
        raise ValueError("missing")
    if file.keys() - mine.keys():
        raise ValueError("others")
    if any(p.shape != file[path].shape for path, p in mine.items()):
        raise ValueError("shapes")
    b = [t for path, t in file.items() if path.endswith("lora_B.weight")]
    if not any(t.any() for t in b):
        raise ValueError("zero")
    for path, p in mine.items():
        p.copy_(file[path])


wrong = ex.edits(loaded)
ADAPTER, SHAPES = "if letter(path)", "p.shape != file[path].shape"
MISSING, ZERO = "mine.keys() - file.keys()", "not any(t.any() for t in b)"
EACH, COPY = "for path, p in mine.items():", "p.copy_(file[path])"
AFTER = COPY + "\n    "


@ex.wrong("calling load_state_dict(strict=False), although no name matches", says="adapter tensor",
          breaks=("whole", "missing", "others", "zero", "names", "numbers"))
def not_strict(model, file):
    model.load_state_dict(file, strict=False)


@ex.wrong("calling load_state_dict(strict=False) after adding .default to the file's paths",
          says="raised for",
          breaks=("whole", "missing", "others", "zero", "not half"))
def with_names(model, file):
    try:
        model.load_state_dict({f"{path[:-6]}default.weight": t.clone() for path, t in file.items()},
                              strict=False)
    except RuntimeError as error:
        raise ValueError(str(error)) from None


@ex.wrong("calling load_state_dict() for the whole model, although the file has no base weights",
          says="raised for",
          breaks="whole")
def strict(model, file):
    try:
        model.load_state_dict(file)
    except RuntimeError as error:
        raise ValueError(str(error)) from None


wrong("not checking for missing paths", "missing",
      ADAPTER, ADAPTER + " and in_file(path) in file", ZERO, f"b and {ZERO}",
      says="raised for a missing path")
wrong("ignoring extra paths in the file", "others",
      "file.keys() - mine.keys()", "False",
      "in file.items() if", "in file.items() if path in mine and",
      says="raised for another path")
wrong("not comparing shapes, and skipping tensors that do not fit", "shapes",
      SHAPES, "False", COPY, f"if p.shape == file[path].shape: {COPY}",
      says="raised for a shape")
wrong("comparing the numbers of values instead of the shapes", "shapes",
      SHAPES, "p.numel() != file[path].numel()", COPY, "p.copy_(file[path].reshape(p.shape))",
      says="raised for a shape")
wrong("broadcasting when the shapes allow it", "shapes",
      SHAPES,
      "file[path].dim() > p.dim() or any(a not in (1, b) for a, b in zip(file[path].shape[::-1], "
      "p.shape[::-1]))", says="raised for a shape")
wrong("accepting an adapter of zeros", "zero", ZERO, "False", says="raised for every B zero")
wrong("refusing a file in which any B is all zeros", "zero", "any(t", "all(t")
wrong("testing only the first B for zero", "zero", "for t in b", "for t in b[:1]")
wrong("treating a B as zero if its sum is zero", "zero", "t.any()", "t.sum() != 0")
wrong("treating a B as zero if its largest value is zero", "zero", "t.any()", "t.max() != 0")
wrong("treating a B as zero if its first row is zero", "zero", "t.any()", "t.flatten()[:2].any()")
wrong("treating a B as zero if it is small", "zero", "t.any()", "t.float().abs().max() >= 1e-8")
wrong("testing B for zero after converting it to float32", "zero", "t.any()", "t.float().any()")
wrong("testing the model's B for zero, not the file's", "zero",
      ZERO, f'{ZERO} or not any(p.any() for path, p in mine.items() if "lora_B" in path)',
      says="raised")
wrong("treating buffers as parts of the adapter", "paths",
      MISSING, f"{MISSING} or any({ADAPTER[3:]} and in_file(path) not in file for path, _ in "
      "model.named_buffers())")
wrong("ignoring an A that has no B next to it", "paths",
      MISSING, f'{MISSING} or any(path.replace("lora_A", "lora_B") not in file for path in mine)')
wrong("treating lora_A.trained.weight as part of the adapter as well", "paths",
      ADAPTER, 'if letter(path.replace("trained", "default"))')
wrong("expecting paths with .default in the file", ("names", "whole"),
      "{in_file(path): p", "{path: p", says="raised for a file that fits")
wrong("removing every .default from a path, not only the one near the end", "names",
      "{in_file(path): p", '{path.replace(".default", ""): p')
wrong("accepting paths with .default in the file as well", ("names", "others", "missing"),
      "mine =", "file = {in_file(path) if letter(path) else path: t for path, t in file.items()}; "
      "mine =", says="raised for a missing path")
wrong("expecting both paths of a shared layer in the file", "paths",
      "parameters()", "parameters(remove_duplicate=False)")
wrong("loading at most eight tensors", "paths",
      EACH, "for path, p in list(mine.items())[:8]:", says="adapter tensor")
wrong("accepting paths in the file that lack base_model.model", ("others", "missing"),
      "mine =", 'own = [in_file(path) for path, _ in model.named_parameters()]; file = {path if '
      'path in own else f"base_model.model.{path}": t for path, t in file.items()}; mine =',
      says="raised for a missing path")
wrong("comparing shapes of A, but not of B", "shapes",
      SHAPES, f'{SHAPES} and (path.endswith("lora_A.weight") or file[path].shape != (len(p), 1))',
      says="raised for a shape")
wrong("converting the values to bfloat16 first",
      ("numbers", "file"), COPY, "p.copy_(file[path].bfloat16())")
wrong("reading tensors in memory order, whatever their strides", ("file", "whole"),
      COPY,
      'p.copy_(torch.as_strided(file[path], p.shape, torch.empty(p.shape, device="meta").stride('
      ')))')
wrong("refusing an A that is all zeros", "zero",
      ZERO, f'{ZERO} or not any(t.any() for path, t in file.items() if "lora_A" in path)')
wrong("comparing the end of a path as text, not part by part", "paths",
      ADAPTER, 'if path.endswith(("lora_A.default.weight", "lora_B.default.weight"))')
wrong("looking for lora_A and lora_B anywhere in the path", "paths",
      ADAPTER, 'if "lora_A" in path or "lora_B" in path')
wrong("overlooking A and B at the root", "paths",
      ADAPTER, 'if path.endswith((".lora_A.default.weight", ".lora_B.default.weight"))',
      says="raised for")


@ex.wrong("writing while checking, so that an error leaves the model half loaded",
          breaks="not half")
@torch.no_grad()
def half(model, file):
    mine = {in_file(path): p for path, p in model.named_parameters() if letter(path)}
    for path, p in mine.items():
        if path not in file or file[path].shape != p.shape:
            raise ValueError(path)
        p.copy_(file[path])
    loaded(model, file)


wrong("changing the base weights as well", "rest",
      COPY, AFTER + "for path, p in model.named_parameters():\n        "
      'if path.endswith("base_layer.weight"): p.mul_(0.5)')
wrong("putting the model into eval mode", "rest", COPY, AFTER + "model.eval()")
wrong("clearing the gradients", "rest", COPY, AFTER + "model.zero_grad()")
ex.wrong("switching gradients off and never back on", breaks="rest",
         fn=lambda model, file: (loaded(model, file), torch.set_grad_enabled(False)))
ex.wrong("switching gradients on at the end, whatever they were before", breaks="rest",
         fn=lambda model, file: (loaded(model, file), torch.set_grad_enabled(True)))
wrong("replacing the file's tensors with converted tensors", "rest",
      COPY, f"{COPY}; file[path] = file[path].to(p.dtype, copy=True)")
wrong("checking everything and writing nothing", ("whole", "numbers"), COPY, "pass")


DONE: list = [None]


@ex.wrong("loading into the same model only once", says="after a second call",
          breaks=("whole", "numbers"))
def once(model, file):
    if DONE[0] is not model:
        loaded(model, file)
    DONE[0] = model


wrong("emptying the file's dict while loading", "rest", COPY, AFTER + "file.clear()")


@ex.wrong("replacing the parameters with new ones", breaks="object")
def new_parameters(model, file):
    loaded(model, file)
    made = {}
    for path, module in model.named_modules():
        for key, p in list(module.named_parameters(recurse=False)):
            if letter(f"{path}.{key}"):
                twin = nn.Parameter(p.detach().clone(), p.requires_grad)
                setattr(module, key, made.setdefault(p, twin))


wrong("setting requires_grad to True for the adapter's parameters",
      "object", COPY, f"{COPY}; p.requires_grad_(True)")
wrong("assigning the file's tensor to p.data", "no sharing",
      COPY, f"if p.dtype == file[path].dtype: p.data = file[path]\n        else: {COPY}")
wrong("giving the parameters the dtype of the file's tensors", "numbers",
      COPY, "p.data = file[path].clone()", says="dtype of the adapter tensor")
wrong("adding the values to the old ones", ("numbers", "whole"),
      COPY, "p.add_(file[path].to(p.dtype))")
wrong("loading only B", ("whole", "numbers"), COPY, f'if "lora_B" in path: {COPY}')
wrong("reading only float32 files", "file",
      SHAPES, f"{SHAPES} or file[path].dtype != torch.float32")
wrong("pairing parameters and tensors by position, not by path", ("file", "whole"),
      EACH, "if all(p.shape == t.shape for p, t in zip(mine.values(), file.values())):\n        "
      f"file = dict(zip(mine, file.values()))\n    {EACH}")
wrong("refusing an adapter of rank one", "zero",
      SHAPES, f'{SHAPES} or ("lora_A" in path and len(p) == 1)', says="raised for")
