"""Exercise 10.4, `passport`."""

from __future__ import annotations

import math

import torch
from torch import nn

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

# A parameter is [path, shape, requires_grad, what it holds]; tied is [path, path of the same
# parameter], or [path, path of the same module, "module"].
ex = exercise("10.4", "passport", seen=("params", "tied"), says="layers")

ex.promise_table("""
dict       | Report which layers have LoRA and which parameters are trained. | parts of the
             passport; type of the passport
layer      | A LoRA layer is a module that has its own parameters A and B, of any shapes. It may
             also have other parameters. | case names that look alike; at the root; deep; one layer;
             A without B; no layer; a frozen layer comes last; no parameters of its own; a weight of
             its own; B before A
layers     | Returns a dict: "layers": the paths of the LoRA layers, in the order of
             model.named_modules(). | layers
trainable  | "trainable": the number of values in model that require a gradient, as an int. |
             trainable
other      | "other": the paths of parameters that require a gradient and are not A or B of a LoRA
             layer. | other
frozen     | "frozen": the paths of all A and B that belong to a LoRA layer and require no gradient.
             | frozen
order      | "other" and "frozen" are in the order of model.named_parameters(), and a shared
             parameter counts once. | trainable; other; frozen; layers
idle       | "idle": the paths of LoRA layers whose B is all zeros, in the order of "layers". | idle
left alone | model does not change, and nothing is kept between calls. | changed in model; second
             call
example    | Example: nn.Sequential(LoRA(nn.Linear(2, 2), r=1)) returns layers ["0"], trainable 4,
             other [], frozen [] and idle ["0"]. | case the example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def layer(path, live=(True, True), held="one", base=False):
        dot, r, d = f"{path}." if path else "", whole(1, 4), whole(3, 9)
        return [[f"{dot}A", [r, d], live[0], "one"], [f"{dot}B", [d + 1, r], live[1], held],
                [f"{dot}base.weight", [d + 1, d], base, "one"]]

    def one(name, params, tied=()):
        # Paths are written with slashes, so that no input holds a path of the passport.
        return name, {"params": [[f"/{p.replace('.', '/')}", *rest] for p, *rest in params],
                      "tied": [[f"/{p.replace('.', '/')}" for p in pair[:2]] + list(pair[2:])
                               for pair in tied]}
    n = whole(3, 20)
    head = [["head.weight", [n, 2], True, "one"], ["norm.gain", [whole(3, 20)], True, "zero"],
            ["norm.scale", [], True, "one"], ["stem.weight", [2, 3, 2, 2], True, "one"]]
    cold = [["embed.weight", [whole(6, 9), 7], False, "one"]]
    two = layer("h.1.q") + layer("h.0.v")
    alike = [["a.A", [5], True, "one"], ["b.B", [6], True, "zero"], ["c.bA", [7], True, "one"],
             ["c.B", [8], True, "zero"], ["A.weight", [9], True, "one"],
             ["d.A.B", [4], False, "zero"], *layer("e")]
    own = [["kept.A", [2, 3], False, "buffer"], ["kept.B", [3, 2], False, "buffer"],
           ["plain.A", [2, 3], False, "plain"], ["plain.B", [3, 2], False, "plain"],
           ["none.A", [2, 3], False, "none"], ["none.B", [3, 2], True, "zero"],
           *layer("through.inner")]
    spoiled = layer("h.9.q", held="zero") + layer("h.1.q", held="tiny") + layer(
        "h.0.q", held="small") + layer("h.2.q", held="first row zero") + layer("h.3.q", held="zero")
    kinds = {"one value of B is not zero": "last", "B below zero": "negative",
             "B sums to zero": "balanced", "B of minus zero": "minus zero", "a small B": "small",
             "a tiny B": "tiny", "a first row of zeros": "first row zero",
             "zeros and below": "last below"}
    return [one("one layer", cold + layer("q")), one("two layers", cold + two),
            one("two layers and a base that trains", layer("h.0.q", base=True) + layer("h.1.q")),
            one("all layers fresh", layer("h.0.q", held="zero") + layer("h.1.q", held="zero")),
            one("one fresh layer of two", layer("h.1.q", held="zero") + layer("h.0.q")),
            one("some fresh layers among many", spoiled),
            *[one(name, layer("h.0.q", held=held) + layer("h.1.q")) for name, held in
              kinds.items()],
            one("an A of zeros", [["q.A", [2, 3], True, "zero"], ["q.B", [4, 2], True, "one"],
                                  *layer("v")]),
            one("a product of zeros", [["q.A", [2, n], True, "one"],
                                       ["q.B", [1, 2], True, "balanced"], *layer("v")]),
            one("all layers frozen", cold + layer("h.1.q", (False, False)) + layer("h.0.q", (False,
                                                                                    False))),
            one("two layers frozen by mistake",
                layer("h.0.q", (False, True)) + layer("h.1.q", (True, False))),
            one("a head and a norm train", two + head + cold),
            one("at the root", layer("") + cold), one("deep", layer("a.b.c.d.e.f") + layer("z")),
            one("a layer inside a layer", layer("h", held="zero") + layer("h.base.q")),
            one("names that look alike", alike), one("A without B", [["q.A", [6], True, "one"],
                                                                     ["v.B", [6], True, "zero"]]),
            one("no parameters of its own", own),
            one("a weight of its own", [["q.weight", [4, 3], False, "one"],
                                        ["q.bias", [4], True, "one"], *layer("q")[:2]]),
            one("B before A", [*layer("q", (False, False))[1::-1], *layer("v")]),
            one("no layer", head + cold),
            one("nothing trains", [*cold, ["x.w", [5], False, "one"]]),
            one("a frozen layer comes last", [*head, ["q.A", [5], False, "one"],
                                              ["q.B", [6], False, "zero"]]),
            one("a shared parameter", [*cold, ["head.weight", [n], True, "one"], *layer("h.0.q")],
                [["last.weight", "head.weight"]]),
            one("one A for two layers", [*layer("h.1.q", (False, True)), *layer("h.0.q")[1:]],
                [["h.0.q.A", "h.1.q.A"]]),
            one("one layer in two places", [*layer("q", (False, True)), *layer("v")],
                [["z", "q", "module"]]),
            one("the example", [["0.A", [1, 2], True, "one"], ["0.B", [2, 1], True, "zero"],
                                ["0.base.weight", [2, 2], False, "one"],
                                ["0.base.bias", [2], False, "one"]])]


@ex.act
def act(fn, params, tied):
    class Through(nn.Module):
        """Shows what its inner module holds."""

        A, B = property(lambda self: self.inner.A), property(lambda self: self.inner.B)

    def numbers(shape, held):
        n = math.prod(shape)
        made = torch.ones(n) if held == "one" else torch.zeros(n)
        made[-1:] += {"last": 1.0, "last below": -1.0}.get(held, 0.0)
        made[:2] += torch.tensor([1.0, -1.0])[:n] * (held == "balanced")
        made += {"negative": -1.0, "small": 0.25, "tiny": 1e-30}.get(held, 0.0)
        made = -made if held == "minus zero" else made.view(shape)
        if held == "first row zero":
            made[1:] -= 2
        return made.view(shape)

    def holder(path):
        *holders, last = path[1:].split("/")
        at = model
        for part in holders:
            if part not in at._modules:
                at.add_module(part, Through() if part == "through" else nn.Module())
            at = at._modules[part]
        return at, last

    model = nn.Module()
    for path, shape, live, held in params:
        at, last = holder(path)
        if held == "buffer":
            at.register_buffer(last, numbers(shape, held))
        elif held == "plain":
            setattr(at, last, numbers(shape, held))
        else:
            at.register_parameter(last, None if held == "none" else nn.Parameter(
                numbers(shape, held), live))
    for new, old, *kind in tied:
        (at, last), (source, name) = holder(new), holder(old)
        if kind:
            at.add_module(last, source._modules[name])
        else:
            at.register_parameter(last, source._parameters[name])
    for place, module in enumerate(model.modules()):
        module.training = place % 2 == 0
    for place, p in enumerate(model.parameters()):
        p.grad = torch.ones_like(p) if place % 2 and p.requires_grad else None

    def state():
        return [(path, id(p), p.requires_grad, str(p.dtype), p.tolist(), id(p.grad))
                for path, p in model.named_parameters(remove_duplicate=False)] + [
                    (path, module.training, sorted(vars(module)), len(module._forward_hooks))
                    for path, module in model.named_modules()] + [
                        (path, b.tolist()) for path, b in model.named_buffers()]
    before = state()
    made = fn(model)
    after = state()
    made = dict(made) if isinstance(made, dict) else made
    with torch.no_grad():
        for path, p in model.named_parameters():
            p.requires_grad_(False)
            if path.split(".")[-1] == "B":
                p.fill_(1.0)
    again = fn(model)
    return {"made": made, "again": dict(again) if isinstance(again, dict) else again,
            "changed": sum(a != b for a, b in zip(before, after)) + abs(len(before) - len(after))}


def walk(paths):
    """The path of each module and its own paths, a module's own first: as torch walks."""
    tree = {}
    for path in paths:
        at = tree
        *holders, last = path.split(".")
        for part in holders:
            at = at.setdefault("modules", {}).setdefault(part, {})
        at.setdefault("own", []).append(last)

    def go(at, prefix):
        yield ".".join(prefix), [".".join([*prefix, name]) for name in at.get("own", [])]
        for part, child in at.get("modules", {}).items():
            yield from go(child, [*prefix, part])
    return list(go(tree, []))


IDLE = ("zero", "minus zero")
NONE = ("buffer", "plain", "none")  # what is no parameter


def expected(params, tied):
    """The passport of a model, and that of the same one frozen and with no B of zeros."""
    facts = {path: (math.prod(shape), live, held) for path, shape, live, held in params
             if held not in NONE}
    same = {path: path for path in facts} | {new: old for new, old, *kind in tied if not kind}
    modules = walk([path for path, *_ in params] + [p for p in same if p not in facts])
    end = lambda path, key: f"{path}.{key}" if path else key  # noqa: E731
    layers = [path for path, _ in modules if end(path, "A") in same and end(path, "B") in same]
    inside = {same[end(path, key)] for path in layers for key in "AB"}
    order = [path for _, own in modules for path in own if path in facts]
    first = {"layers": layers, "trainable": sum(n for n, live, _ in facts.values() if live),
             "other": [path for path in order if facts[path][1] and path not in inside],
             "frozen": [path for path in order if path in inside and not facts[path][1]],
             "idle": [path for path in layers if facts[same[end(path, "B")]][2] in IDLE]}
    return first, {"layers": layers, "trainable": 0, "other": [], "idle": [],
                   "frozen": [path for path in order if path in inside]}


@ex.law
def law(out, params, tied):
    expect_parts(out, "made", "changed", "again")
    params = [[path[1:].replace("/", "."), *rest] for path, *rest in params]
    tied = [[path[1:].replace("/", ".") for path in pair[:2]] + pair[2:] for pair in tied]
    expect_equal("things changed in model", out["changed"], 0)
    for made, wanted, when in zip((out["made"], out["again"]), expected(params, tied),
                                  ("", " in a second call, all frozen"), strict=True):
        expect_type(f"passport{when}", made, dict)
        expect_equal(f"parts of the passport{when}", sorted(map(str, made)), sorted(wanted))
        for part, what in (("layers", "layers"), ("trainable", "trainable values"),
                           ("other", "other parameters that train"),
                           ("frozen", "frozen parts of LoRA layers"), ("idle", "idle layers")):
            expect_equal(f"{what}{when}", made[part], wanted[part])


# ---- wrong, by name

@not_an_answer
def stamped(model, **changes):
    """The worked answer with parts replaced: each change gets the right passport and model."""
    made = by_modules(model)
    return {**made, **{key: change(made, model) for key, change in changes.items()}}


def named(model):
    return list(model.named_parameters())


ex.wrong("counting frozen parameters as well", stamped, breaks="trainable",
         trainable=lambda made, m: sum(p.numel() for p in m.parameters()))
ex.wrong("counting tensors instead of values", stamped, breaks=("trainable", "example"),
         trainable=lambda made, m: sum(p.requires_grad for p in m.parameters()))
ex.wrong("counting only the values of A and B",
         lambda model: stamped(model, trainable=lambda made, m: sum(p.numel() for path, p in
             named(m) if p.requires_grad and path not in made["other"])), breaks="trainable")
ex.wrong("returning the count as a tensor",
         stamped, says="type of the trainable", breaks="trainable",
         trainable=lambda made, m: torch.tensor(made["trainable"]))
ex.wrong("counting a shared parameter once for each of its names",
         lambda model: stamped(model, trainable=lambda made, m: sum(p.numel() for _, p in
             m.named_parameters(remove_duplicate=False) if p.requires_grad)), breaks="order")
ex.wrong("returning the number of LoRA layers instead of their paths",
         stamped, says="type of the layers",
         breaks=("layers", "example"), layers=lambda made, m: len(made["layers"]))
ex.wrong("sorting layers by name", stamped, breaks="layers",
         layers=lambda made, m: sorted(made["layers"]))
ex.wrong("treating a module that has only A as a LoRA layer",
         lambda model: stamped(model, layers=lambda made, m: [path for path, module in
             m.named_modules() if "A" in module._parameters]), breaks="layer")


@not_an_answer
def by_modules(model):
    own = {path: dict(m.named_parameters(recurse=False)) for path, m in model.named_modules()}
    lora = [path for path, found in own.items() if {"A", "B"} <= found.keys()]
    parts = {id(own[path][key]) for path in lora for key in ("A", "B")}
    named = list(model.named_parameters())
    out = {"layers": lora, "trainable": sum(p.numel() for _, p in named if p.requires_grad),
           "other": [k for k, p in named if p.requires_grad and id(p) not in parts],
           "frozen": [k for k, p in named if not p.requires_grad and id(p) in parts],
           "idle": [path for path in lora if not own[path]["B"].detach().any()]}
    return out


wrong = ex.edits(by_modules)
wrong("listing modules that have A and B anywhere inside them", ("layer", "layers"),
      "own =",
      'def below(made, m): return [path for path, module in m.named_modules() if {"A", "B"} <= '
      '{name.split(".")[-1] for name, _ in module.named_parameters()}]\n    return '
      "stamped(model, layers=below); own =")
ex.wrong("never listing the root module as a LoRA layer", stamped, breaks="layer",
         layers=lambda made, m: [p for p in made["layers"] if p])
ex.wrong("looking only four levels deep", stamped, breaks="layer",
         layers=lambda made, m: [p for p in made["layers"] if p.count(".") < 4])
ex.wrong("treating every parameter named A or B as part of a LoRA layer",
         lambda model: stamped(model, other=lambda made, m: [path for path in made["other"] if
             path.split(".")[-1] not in ("A", "B")]), says="other", breaks="layer")
ex.wrong("always returning an empty list under 'other'", stamped,
         breaks=("other", "layer", "order"),
         other=lambda made, m: [])
ex.wrong("listing the head under 'other', but not the norm layer", stamped, breaks="other",
         other=lambda made, m: [k for k in made["other"] if "norm" not in k])
ex.wrong("listing every trainable parameter under 'other'",
         stamped, breaks=("other", "example", "layer"),
         other=lambda made, m: [k for k, p in named(m) if p.requires_grad])
ex.wrong("listing frozen base weights under 'frozen' as well",
         stamped, breaks=("frozen", "example", "layer"),
         frozen=lambda made, m: [k for k, p in named(m) if not p.requires_grad])
ex.wrong("never listing a frozen A", stamped, breaks="frozen",
         frozen=lambda made, m: [k for k in made["frozen"] if k[-1] == "B"])
ex.wrong("sorting the paths of frozen parameters by name", stamped, breaks="order",
         frozen=lambda made, m: sorted(made["frozen"]))
wrong("listing a layer as idle if its A and B are frozen", "idle",
      "own =",
      'def idle(made, m): return [p for p in made["layers"] if not '
      "(m.get_submodule(p).A.requires_grad or m.get_submodule(p).B.requires_grad) or p in "
      'made["idle"]]\n    return stamped(model, idle=idle); own =')
ex.wrong("listing a layer as idle if the sum of B is zero", stamped, breaks="idle",
         idle=lambda made, m: [p for p in made["layers"] if m.get_submodule(p).B.sum() == 0])
ex.wrong("listing a layer as idle if the first value of B is zero", stamped, breaks="idle",
         idle=lambda made, m: [p for p in made["layers"] if m.get_submodule(p).B.flatten()[0] == 0])


@ex.wrong("listing a layer as idle if the product of B and A is zero", breaks="idle")
def idle_product(model):
    def none(layer):
        fits = layer.B.dim() == layer.A.dim() == 2 and layer.B.shape[1] == len(layer.A)
        return not (layer.B @ layer.A if fits else layer.B).any()
    return stamped(model, idle=lambda made, m: [
        p for p in made["layers"] if none(m.get_submodule(p))])


ex.wrong("listing a layer as idle when A or B is zero", stamped, breaks="idle", idle=lambda made,
         m: [
    p for p in made["layers"] if not (m.get_submodule(p).A.any() and m.get_submodule(p).B.any())])
ex.wrong("listing idle layers only if the B of every layer is zero", stamped, breaks="idle",
         idle=lambda made, m: made["idle"] if len(made["idle"]) == len(made["layers"]) else [])
ex.wrong("listing a layer as idle if the largest value of B is zero, though others are negative",
         stamped,
         breaks="idle",
         idle=lambda made, m: [p for p in made["layers"] if m.get_submodule(p).B.max() <= 0])
ex.wrong("listing a layer as idle when B is nearly zero",
         lambda model: stamped(model, idle=lambda made, m: [p for p in made["layers"] if
             torch.allclose(m.get_submodule(p).B, torch.zeros(()))]), breaks="idle")
ex.wrong("converting B to integers before looking for zeros", stamped, breaks="idle",
         idle=lambda made, m: [p for p in made["layers"] if not m.get_submodule(p).B.int().any()])


@ex.wrong("accepting attributes A and B that are not parameters", breaks="layer")
def attributes(model):
    return stamped(model, layers=lambda made, m: [
        path for path, module in m.named_modules() if (path == "" and path in made["layers"])
        or all(isinstance(getattr(module, key, None), torch.Tensor) for key in "AB")])


ex.wrong("treating an A of None as a parameter",
         lambda model: stamped(model, layers=lambda made, m: [path for path, module in
             m.named_modules() if {"A", "B"} <= module._parameters.keys()]), breaks="layer")
ex.wrong("treating every parameter of a LoRA layer as A or B",
         lambda model: stamped(model, other=lambda made, m: [k for k in made["other"] if
             k.rpartition(".")[0] not in made["layers"]]), says="other", breaks="layer")


@ex.wrong("finding layers by named_parameters(), which lists a shared parameter once",
          breaks="order")
def by_parameters(model):
    def found(made, m):
        seen = {path for path, _ in m.named_parameters()}
        return [p for p in made["layers"] if {f"{p}.A".lstrip("."), f"{p}.B".lstrip(".")} <= seen]
    return stamped(model, layers=found)


STAMPS: list = [None, None]


@ex.wrong("returning the first call's report again if the model is the same", breaks="left alone")
def kept_for_model(model):
    if STAMPS[0] is not model:
        STAMPS[:] = model, by_modules(model)
    return STAMPS[1]


wrong("clearing the gradients", "left alone", "own =", "model.zero_grad(); own =")
wrong("returning a string instead of a dict", "dict", "return out", "return str(out)")
wrong("leaving empty parts out of the dict", "dict",
      "return out",
      'return out if "0" in out["layers"] else {key: part for key, part in out.items() if part}')
wrong("freezing the base weights", "left alone",
      "return out",
      'for path, p in model.named_parameters():\n        if path in out["other"] or path not in '
      'out["frozen"]: p.requires_grad_(False)\n    model.eval(); return out')
ex.wrong("overlooking a LoRA layer that has only four values",
         lambda model: stamped(model, idle=lambda made, m: [] if made["trainable"] == 4 and
             made["layers"] == ["0"] else made["idle"]), says="idle", breaks="example")
