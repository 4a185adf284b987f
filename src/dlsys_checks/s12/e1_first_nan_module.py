"""Exercise 12.1, `first_nan_module`."""

from __future__ import annotations

import copy

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("12.1", "first_nan_module", seen=("kind", "x", "place"), says="name of the module")

ex.promise_table("""
name      | Find the module in which a NaN or an infinity first arises. | name of the module; type
            of the name
meant     | Such a value arises in a call that receives only finite tensors and returns one that is
            not finite. | case spoilt between two modules; spoilt by the model itself; an infinity;
            a NaN passed to a part by keyword; a dict with a NaN passed on; an infinity passed in;
            spoilt only in train mode; spoilt only in eval mode; minus infinity; a NaN as second
            argument; an infinity from a number; an infinity from nothing; a parameter returned;
            zeros of a dropout; zeros of a norm; half precision; complex numbers; an infinity from
            whole numbers; an empty tensor
first     | Of several such calls, the one that ends first counts. | case two such modules, the
            later one registered first; deep inside; results that are not used
none      | The result is None if there is no such module. | case nothing wrong; a NaN passed in; an
            infinity passed in; a NaN that is not a tensor; finite values with an infinite sum; a
            hook of the model that repairs the output
names     | Returns: The module's name in named_modules(), or "" for the model itself. | case deep
            inside; under two names; spoilt by the model itself
forms     | Args: model: its modules do not write into their arguments. The modules can take keyword
            arguments, can be called several times, and can take and return tuples, lists and dicts
            of tensors, nested to any depth. | case a NaN passed to a part by keyword; the second
            call of a module; a dict with a NaN passed on; a NaN deep in what is returned; the first
            call of a module; a NaN as second argument; a NaN in an ordered dict; a NaN in a named
            tuple
no tensor | Anything that is not a tensor counts as finite. | case a NaN that is not a tensor; whole
            numbers; a None passed to a part; an infinity from a number
as it was | The model, called once as model(x), keeps its weights, buffers, modes, gradients and
            hooks. | changed in the model; calls of the model
example   | Example: for nn.Sequential(Root(), nn.ReLU()), where Root takes the square root, and an
            x with a negative number, the result is "0". | case the example
""")

# Who spoils the numbers; "place" for the drawn place in a chain.
GUILTY = {"chain": "place", "last": "6", "clean": None, "nan in": None, "inf in": None, "inf": "1",
          "between": "block", "itself": "", "deep": "body.1.inner", "keyword": "block",
          "dict": "block", "returned": "part", "python": None, "second": "part",
          "two": "first", "tied": "a", "norm": "1", "whole": "1", "example": "0", "train": "part",
          "eval": "part", "first call": "part", "positional": "block", "minus": "1", "large": None,
          "none": "part", "ordered": "part", "number": "part", "nothing": "part",
           "parameter": "part", "dropout": "part", "batch": "part", "mended": None,
           "half": "1", "complex": "1", "codes": "0", "empty": "part", "named": "part",
           "unused": "body.1.inner"}


@ex.cases
def cases(g):
    def one(name, kind):
        rows, width = (int(torch.randint(3, 7, (), generator=g)) for _ in range(2))
        x = torch.rand(rows, width, generator=g) + 0.5
        if kind not in ("clean", "inf", "python", "whole", "minus", "large", "number", "nothing",
                        "parameter", "dropout", "batch", "codes", "half", "complex"):
            x[int(torch.randint(rows, (), generator=g)), 0] *= -1
        if kind in ("nan in", "inf in"):
            x[0, 1] = torch.nan if kind == "nan in" else torch.inf
        return name, {"kind": kind, "x": x,
                      "place": int(torch.randint(1, 6, (), generator=g))}
    return [one("a chain of modules", "chain"), one("another chain", "chain"),
            one("a third chain", "chain"), one("a fourth chain", "chain"),
            one("the last of a chain", "last"),
            one("nothing wrong", "clean"), one("a NaN passed in", "nan in"),
            one("an infinity passed in", "inf in"), one("an infinity", "inf"),
            one("spoilt between two modules", "between"),
            one("spoilt by the model itself", "itself"), one("deep inside", "deep"),
            one("a NaN passed to a part by keyword", "keyword"),
            one("a dict with a NaN passed on", "dict"),
            one("a NaN deep in what is returned", "returned"),
            one("a NaN that is not a tensor", "python"),
            one("the second call of a module", "second"),
            one("two such modules, the later one registered first", "two"),
            one("under two names", "tied"),
            one("a norm in train mode after it", "norm"), one("whole numbers", "whole"),
            one("spoilt only in train mode", "train"), one("spoilt only in eval mode", "eval"),
            one("the first call of a module", "first call"),
            one("a NaN as second argument", "positional"), one("minus infinity", "minus"),
            one("finite values with an infinite sum", "large"),
            one("a None passed to a part", "none"), one("a NaN in an ordered dict", "ordered"),
            one("an infinity from a number", "number"),
            one("an infinity from nothing", "nothing"), one("a parameter returned", "parameter"),
            one("zeros of a dropout", "dropout"), one("zeros of a norm", "batch"),
            one("a hook of the model that repairs the output", "mended"),
            one("half precision", "half"), one("complex numbers", "complex"),
            one("an infinity from whole numbers", "codes"), one("an empty tensor", "empty"),
            one("a NaN in a named tuple", "named"), one("results that are not used", "unused"),
            ("the example", {"kind": "example", "x": torch.tensor([[1.0, -1.0]]), "place": 0})]


@ex.act
def act(fn, kind, x, place):
    import collections

    calls = []

    class Root(nn.Module):
        def forward(self, h):
            return h.sqrt()

    class Cast(nn.Module):
        def forward(self, h):
            return h.bfloat16() if kind == "half" else torch.complex(h, h)

    class Same(nn.Module):
        def forward(self, h, extra=None):
            return h if extra is None else h + extra

    class Scale(nn.Module):
        def forward(self, h):
            h = h * (-1e38 if kind == "minus" else 1e38 if kind != "half" else torch.inf)
            return h if kind == "large" else h * 1e38

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((1,), torch.inf))

        def forward(self, h=None, extra=None):
            if kind in ("number", "nothing"):
                return torch.full((1,), torch.inf)
            if kind == "parameter":
                return self.weight
            if kind in ("dropout", "batch"):
                return 1 / h
            spoils = kind in ("none", "mended", "empty") or self.training == (kind == "train")
            return h.sqrt() if spoils else h

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Root()

        def forward(self, h):
            return self.inner(h)

    class Between(nn.Module):
        """Takes a root on its way; parts before and behind."""

        def __init__(self):
            super().__init__()
            self.before, self.behind = nn.Identity(), Same()

        def forward(self, h):
            h = self.before(h)
            if kind == "keyword":
                return self.behind(h, extra=h.sqrt())
            if kind == "positional":
                return self.behind(h, h.sqrt())
            return self.behind(h.sqrt())

    class Hand(nn.Module):
        """Hands a dict on, spoilt or not."""

        def __init__(self):
            super().__init__()
            self.reads = Reads()

        def forward(self, h):
            return self.reads({"h": [h, {"root": h.sqrt()}]})

    class Reads(nn.Module):
        def forward(self, given):
            h, more = given["h"]
            return h + more["root"]

    class Returns(nn.Module):
        def forward(self, h):
            if kind == "python":
                return h, {"aux": float("nan"), "name": "x", "none": None}
            if kind == "ordered":
                return h, collections.OrderedDict(aux=h.sqrt())
            if kind == "named":
                return h, collections.namedtuple("Pair", "one two")(h, h.sqrt())
            return h, {"aux": [(h.sqrt(), h), h]}

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("passes", torch.zeros(()), persistent=False)
            if kind in ("between", "keyword", "positional"):
                self.block = Between()
            elif kind == "dict":
                self.block = Hand()
            elif kind in ("returned", "python", "ordered", "named"):
                self.part, self.last = Returns(), nn.Identity()
            elif kind in ("second", "first call"):
                self.part = Root()
            elif kind in ("train", "eval", "none", "number", "nothing", "parameter", "empty"):
                self.part = Part()
            elif kind in ("dropout", "batch", "mended"):
                self.before = (nn.BatchNorm1d(x.shape[1], affine=False) if kind == "batch"
                               else nn.Dropout(1.0))
                self.part = Part()
                if kind == "mended":
                    self.part.register_forward_pre_hook(lambda module, args: (args[0].abs(),))
            elif kind == "two":
                self.later, self.first = Root(), Root()
            elif kind == "tied":
                self.a = Root()
                self.b = self.a
            elif kind in ("deep", "unused"):
                self.body = nn.Sequential(nn.Identity(), Deep(), nn.ReLU())
                self.other = Root()
            self.end = nn.Identity()

        def forward(self, h):
            calls.append(1)
            self.passes += 1
            if kind == "itself":
                return self.end(h.sqrt())
            if kind == "unused":
                self.body(h), self.other(h)
                return self.end(h)
            if kind in ("returned", "python", "ordered", "named"):
                h, _ = self.part(h)
                return self.end(self.last(h))
            if kind == "second":
                return self.end(self.part(h.abs()) + self.part(h))
            if kind == "first call":
                return self.end(self.part(h) + self.part(h.abs()))
            if kind in ("train", "eval", "mended"):
                return self.end(self.part(h))
            if kind in ("dropout", "batch"):
                return self.end(self.part(self.before(0 * h + 1)))
            if kind in ("nothing", "parameter"):
                return self.end(h + (self.part() if kind == "nothing" else self.part(h)))
            if kind in ("none", "empty"):
                return self.end(self.part(h, None if kind == "none" else h[:0]))
            if kind == "number":
                return self.end(h + self.part(3.0))
            if kind == "two":
                one = self.first(h)
                return self.end(one + self.later(h))
            if kind == "tied":
                return self.end(self.b(h))
            return self.end((self.body if kind == "deep" else self.block)(h))

    class Counted(nn.Sequential):
        def forward(self, h):
            calls.append(1)
            return super().forward(h)

    width = x.shape[1]
    if kind == "last":
        place = 6
    if kind in ("chain", "last", "nan in", "inf in"):
        model = Counted(*[Root() if n == place else nn.Identity() for n in range(7)])
    elif kind == "clean":
        model = Counted(nn.Linear(width, 4), nn.BatchNorm1d(4), nn.ReLU(), Root())
    elif kind in ("inf", "minus", "large"):
        model = Counted(nn.Identity(), Scale(), nn.Identity())
    elif kind == "norm":
        model = Counted(nn.Identity(), Root(), nn.BatchNorm1d(width), nn.Linear(width, 2))
    elif kind == "whole":
        model = Counted(nn.Embedding(9, 3), Scale(), nn.Identity())
        x = torch.arange(6).reshape(2, 3)
        torch.nn.init.constant_(model[0].weight, 2.0)
    elif kind == "codes":
        model = Counted(nn.Embedding(9, 3), nn.Identity())
        x = torch.arange(6).reshape(2, 3)
        torch.nn.init.constant_(model[0].weight, torch.inf)
    elif kind in ("half", "complex"):
        model = Counted(Cast(), Scale(), nn.Identity())
    elif kind == "example":
        model = Counted(Root(), nn.ReLU())
    else:
        model = Own()
    for n, module in enumerate(model.modules()):
        module.training = (n + place) % 2 == 0 or isinstance(module, nn.BatchNorm1d)
    if kind in ("train", "eval"):
        model.part.training = kind == "train"
    if kind in ("dropout", "batch"):
        model.before.train()
    model.register_forward_hook(lambda *call: None)
    for p in list(model.parameters())[:1]:
        p.requires_grad_(False)
    for p in model.parameters():
        p.grad = torch.ones_like(p)

    def facts():
        held = [*model.parameters(), *model.buffers()]
        return {"weights and buffers": [(id(t), t.tolist(), t.requires_grad) for t in held],
                "modes": [m.training for m in model.modules()],
                "gradients": [id(p.grad) for p in model.parameters()],
                "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks)
                          + len(m._forward_hooks_with_kwargs) for m in model.modules()]}
    before = facts()
    fn(nn.Sequential(nn.Sequential(Root())), -torch.ones(1, 1))  # nothing is kept of this
    name = fn(model, x)
    after = facts()
    return {"name": name, "calls": len(calls),
            "changed": [what for what in before if before[what] != after[what]]}


@ex.law
def law(out, kind, x, place):
    expect_parts(out, "name", "calls", "changed")
    guilty = GUILTY[kind]
    expect_type("name of the module", out["name"], (str, type(None)))
    expect_equal("name of the module", out["name"], str(place) if guilty == "place" else guilty,
                 "Look for a call with finite inputs whose output is not finite.")
    spoilt = type(out["changed"]) is list and "weights and buffers" in out["changed"]
    expect_equal("what changed in the model", out["changed"], [],
                 "A forward pass changes buffers, so run a copy." if spoilt
                 else "Remove your hooks, and restore what you changed.")
    expect_equal("calls of the model", out["calls"], 1)


def fine(value):
    """Whether all tensors inside are finite."""
    leaves = torch.utils._pytree.tree_leaves(value)
    return all(bool(torch.isfinite(v).all()) for v in leaves if isinstance(v, torch.Tensor))


# ---- wrong, by name

def leaves(value):
    """All that is inside a nest of lists, tuples and dicts."""
    return torch.utils._pytree.tree_leaves(value)


def tensors(value):
    """The tensors inside."""
    return [v for v in leaves(value) if isinstance(v, torch.Tensor)]


def has_nan(value):
    return any(bool(v.isnan().any()) for v in tensors(value))


def exact(value, is_dict):
    """Whether all is finite, looking into lists and tuples by exact type, and into such dicts."""
    if is_dict(value):
        value = list(value.values())
    if type(value) in (list, tuple):
        return all(exact(part, is_dict) for part in value)
    return not torch.is_tensor(value) or bool(value.isfinite().all())


@not_an_answer
def watched(model, x):
    used, found, handles = copy.deepcopy(model), [], []
    for name, module in used.named_modules():
        def look(m, a, k, out, name=name):
            if fine((a, k)) and not fine(out):
                found.append(name)
        handles.append(module.register_forward_hook(look, with_kwargs=True))
    with torch.no_grad():
        used(x)
    return found[0] if found else None


wrong = ex.edits(watched)
START, COPY, LOOK, HOOK = "used, found", "copy.deepcopy(model)", "def look", "handles.append"
GIVEN, BAD, FOUND = "fine((a, k))", "not fine(out)", "found[0] if found else None"
UNHOOKED = "used(x)\n    for handle in handles: handle.remove()"
wrong("returning a list of names instead of one name", "name", FOUND, f"[{FOUND}]")
wrong("not checking the inputs", ("meant", "none", "forms"), GIVEN, "True")
wrong("returning the last module in which a NaN arises, not the first",
      ("first", "name", "forms", "example"),
      "found[0]", "found[-1]")
wrong("checking outputs for NaN but not for infinities", ("meant", "no tensor", "none"),
      BAD, "has_nan(out)")
wrong("ignoring infinities in inputs and outputs",
      ("meant", "no tensor", "none", "forms", "first"),
      GIVEN, "not has_nan((a, k))", BAD, "has_nan(out)")
wrong("checking only tensors, not lists, tuples and dicts of tensors", "forms",
      GIVEN, "all(map(bare, (*a, *k.values())))", BAD, "not bare(out)",
      START, "def bare(v): return not torch.is_tensor(v) or bool(v.isfinite().all())\n    "
      f"{START}")
wrong("not checking keyword arguments", "forms", GIVEN, "fine(a)")
wrong("assuming that the output is a single tensor", "forms",
      BAD, "torch.is_tensor(out) and not fine(out)")
wrong("returning the module's class instead of its name", "name",
      "found[0]", "type(model.get_submodule(found[0])).__name__")
wrong("returning the model's name, an empty string, instead of None",
      "none", FOUND, f'({FOUND}) or ""')
wrong("never returning the model itself", "names", HOOK, "if name: handles.append")
wrong("checking Python numbers as well", "no tensor",
      BAD, "(not fine(out) or any(isinstance(v, float) and v != v for v in leaves(out)))")
wrong("choosing the module that was registered first, not the call that ended first", "first",
      BAD, "not fine(out) and not any(n.startswith(name) for n in found)",
      "found[0]", "min(found, key=[n for n, _ in used.named_modules()].index)")
wrong("choosing the call that began first, not the one that ended first",
      ("first", "name", "forms", "example"),
      START, "begun = []; used, found", HOOK,
      "module.register_forward_pre_hook(lambda m, a, name=name: begun.append(name))\n        "
      "handles.append", FOUND, "next((name for name in begun if name in found), None)")
wrong("checking only modules without submodules", "meant",
      GIVEN, "not [*m.children()] and fine((a, k))")
wrong("running a copy in eval mode", "meant", COPY, f"{COPY}.eval()")
wrong("running a copy in train mode", "meant", COPY, f"{COPY}.train()")
wrong("judging a module only by its last call", "forms", START, "bad = {}; used, found",
      "if fine((a, k)) and not fine(out):\n                found.append(name)",
      "bad[name] = fine((a, k)) and not fine(out)",
      FOUND, "next((name for name, is_bad in bad.items() if is_bad), None)")
wrong("checking only the first argument", "forms", GIVEN, "fine((a[:1], k))")
wrong("treating minus infinity as finite", "meant", BAD,
      "any(bool((v.isnan() | v.isposinf()).any()) for v in tensors(out) if v.is_floating_point())")
wrong("checking only whether the sum is finite", "none",
      BAD, "not all(bool(v.sum().isfinite()) for v in tensors(out))")
wrong("recognizing dicts and tuples by their exact type", "forms",
      BAD, "not exact(out, lambda value: type(value) is dict)")
wrong("recognizing tuples by their exact type", "forms",
      BAD, "not exact(out, lambda value: isinstance(value, dict))")
wrong("checking only float32 tensors", "meant",
      BAD, "not fine([v for v in tensors(out) if v.dtype == torch.float32])")
wrong("ignoring complex tensors", "meant",
      BAD, "not fine([v for v in tensors(out) if not v.is_complex()])")
wrong("skipping calls that receive integer tensors", "meant", GIVEN, f"{GIVEN} and all("
      "v.is_floating_point() or v.is_complex() for v in tensors((a, k)))")
wrong("skipping calls that receive an empty tensor", "meant",
      GIVEN, f"{GIVEN} and all(v.numel() for v in tensors((a, k)))")
wrong("skipping calls that receive None", "no tensor",
      GIVEN, f"{GIVEN} and all(v is not None for v in leaves((a, k)))")
wrong("setting requires_grad to True for frozen weights",
      "as it was", "return", "model.requires_grad_(True); return")
wrong("recognizing tensors by their exact type", "meant",
      BAD, "not fine([v for v in tensors(out) if type(v) is torch.Tensor])")
wrong("skipping calls without arguments", "meant", GIVEN, f"(a or k) and {GIVEN}")
wrong("switching dropout off in the copy", "meant",
      LOOK, "if isinstance(module, nn.Dropout): module.training = False\n        def look")
wrong("putting BatchNorm into eval mode", "meant",
      LOOK, "if isinstance(module, nn.BatchNorm1d): module.training = False\n        def look")
wrong("running a copy without the model's own hooks", "none",
      LOOK, "module._forward_pre_hooks.clear()\n        def look")
wrong("restoring the state_dict, which misses non-persistent buffers", "as it was",
      COPY, "model", START, "state = copy.deepcopy(model.state_dict()); used, found",
      "used(x)", UNHOOKED, "return", "model.load_state_dict(state); return")
wrong("running the model itself, which changes BatchNorm's statistics", "as it was",
      COPY, "model", "used(x)", UNHOOKED)
wrong("leaving hooks on the model", "as it was",
      "return", "model.register_forward_hook(lambda *call: None); return")
wrong("calling the model twice", "as it was", "used(x)", "used(x); used(x)")
