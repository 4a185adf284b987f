"""Exercise 10.1, `hits`."""

from __future__ import annotations

import copy

import torch
from torch import nn

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
    show,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("10.1", "hits", seen=("tree", "names"), says="paths matched")

ex.promise("paths", "Find the paths of the nn.Linear modules that each name matches. As in peft, "
           "a name matches a path that equals the name or ends with a dot and the name.",
           says=("paths matched", "raised for"))
ex.promise("model", "Modules of other kinds do not count, at any depth.",
           cases=("other kinds", "deep", "the root alone", "a lookup",
                                           "many layers", "unusual linear modules"))
ex.promise("subclass", "Subclasses of nn.Linear count.", cases=("a subclass",))
ex.promise("names", "Args: names: different strings, none empty, possibly with dots. The list may "
           "be empty.",
           cases=("no names", "no names, no linear module", "no names, a linear module alone",
                  "names of three parts", "missing names with dots", "names with dots",
                  "a dot is no wildcard", "names inside other names"))
ex.promise("order", "Returns: A dict in the order of names, with a list of paths for each name, "
           "in the order of model.named_modules().",
           says=("order of the names", "order of the paths"))
ex.promise("shared", "A shared module occurs once in this order, under its first path.",
           cases=("a shared module", "a shared module by its second path"))
ex.promise("raises", "Raises ValueError if a name matches nothing.", says=("raised",))
ex.promise("says", "The error's text contains all such names and no other names.",
           says=("names in the text",))
ex.promise("left alone", "model and names do not change.", says=("after the call", "changed"))
ex.promise("calls", "Nothing is kept between calls.", says=("second call",))
ex.promise("example", 'Example: in nn.Sequential(nn.Linear(2, 2), nn.ReLU()) the name "0" matches '
           '["0"], and "1" matches nothing.', cases=("the example", "the example's other name"))

LINEARS = ("linear", "subclass", "no bias", "frozen", "one output", "tied")
LETTERS = "bcdfghjklmnpqrstvwz"


@ex.cases
def cases(g):
    whole = integers(g)

    def word():
        return "".join(LETTERS[whole(0, len(LETTERS))] for _ in range(4)) + "_x"

    def one(name, tree, names):
        # Paths are written with slashes, so that no input holds a path that is found.
        return name, {"tree": [[f"/{path.replace('.', '/')}", kind] for path, kind in tree],
                      "names": [f"={name}" for name in names]}
    q, k, o, up, down, net, gone, lost = (word() for _ in range(8))
    block = [[q, "linear"], [k, "linear"], [o, "linear"], [f"{net}.{up}", "linear"],
             [f"{net}.act", "relu"], [f"{net}.{down}", "linear"]]
    layers = [[f"h.{i}.{path}", kind] for i in range(whole(2, 4)) for path, kind in block]
    deep = ".".join("abcdefghijklm")
    alike = [[f"a.my{q}", "linear"], [f"a.my-{q}", "linear"], [f"a.{q}s", "linear"],
             [f"a.{q}", "linear"], [f"b.{q.upper()}", "linear"],
             [f"{q}.{k}", "linear"], ["a.my.plain", "linear"]]
    return [one("two names", layers, [k, up]), one("names in another order", layers,
                                                   [down, o, q]),
            one("names inside other names", alike, [q]),
            one("the name of an outer module", [[f"{q}.{k}", "linear"], [o, "linear"]], [q, o]),
            one("one name matches nothing", layers, [q, gone, up]),
            one("two names match nothing", layers, [gone, k, lost]),
            one("three names match nothing", layers, [gone, k, lost, word()]),
            one("no name matches", layers, [lost, gone]),
            one("missing names with dots", layers, [f"{gone}.{q}", up, f"h.?.{q}", f"h.{q}"]),
            one("no names", layers, []), one("no names, no linear module", [["a", "relu"]], []),
            one("no names, a linear module alone", [["", "linear"]], []),
            one("many layers", [[f"h.{i}.{part}", "linear"] for i in range(12) for part in (
                q, k, o, up, down)], [o, down, k, q, up]),
            one("unusual linear modules", [[f"a.{q}", "no bias"], [f"b.{q}", "frozen"],
                                         [f"c.{q}", "one output"], [f"d.{q}", "tied"]], [q]),
            one("names of three parts", [[f"x.g.{net}.{up}", "linear"], [f"{net}.{up}", "linear"]],
                [f"g.{net}.{up}", up]),
            one("names with dots", [*layers, [f"g.{net}.{up}", "linear"], [up, "linear"]],
                [f"{net}.{up}", f"0.{q}", up]),
            one("a dot is no wildcard", [[f"a.{q}y{k}", "linear"], [f"b.{q}.{k}", "linear"]],
                [f"{q}.{k}"]),
            one("other kinds", [[f"a.{q}", "conv"], [f"b.{q}", "linear"], [f"c.{q}", "bilinear"],
                                [f"d.{q}", "embedding"], [f"e.{q}", "namesake"],
                                [f"f.{q}", "identity"]], [q]),
            one("only other kinds", [[f"a.{q}", "conv"], [f"b.{k}", "linear"]], [q, k]),
            one("a subclass", [[f"a.{q}", "subclass"], [f"b.{q}", "linear"]], [q]),
            one("deep", [[f"{deep}.{q}", "linear"], [q, "linear"], [f"{q}2", "linear"]],
                [q]),
            one("the root alone", [["", "linear"]], [q]),
            one("a linear module inside another", [[f"a.{q}", "linear"], [f"a.{q}.{k}", "linear"]],
                [k, q]),
            one("a lookup", [[f"z.{q}", "linear"], [f"m.{q}", "linear"], [f"b.{q}", "linear"]],
                [q]),
            one("a shared module", [[f"b.{q}", "linear"], [f"a.{q}", "shared"],
                                    [f"c.{k}", "linear"]], [k, q]),
            one("a shared module by its second path", [[f"b.{q}", "linear"], [f"a.{q}", "shared"],
                                                       [f"c.{k}", "linear"]], [f"a.{q}", k]),
            one("the example", [["0", "linear"], ["1", "relu"]], ["0"]),
            one("the example's other name", [["0", "linear"], ["1", "relu"]], ["0", "1"])]


@ex.act
def act(fn, tree, names):
    class Mine(nn.Linear):
        pass

    class Linear(nn.Module):
        """Named as torch's, with all that it holds, and none of its kind."""

        def __init__(self):
            super().__init__()
            self.in_features, self.out_features, self.bias = 2, 2, None
            self.weight = nn.Parameter(torch.ones(2, 2))

    names = [name[1:] for name in names]
    kinds = {"linear": lambda: nn.Linear(2, 2), "relu": nn.ReLU, "subclass": lambda: Mine(2, 2),
             "conv": lambda: nn.Conv1d(2, 2, 1), "bilinear": lambda: nn.Bilinear(2, 2, 2),
             "embedding": lambda: nn.Embedding(2, 2), "namesake": Linear,
             "identity": nn.Identity, "no bias": lambda: nn.Linear(2, 2, bias=False),
             "frozen": lambda: nn.Linear(2, 2).requires_grad_(False),
             "one output": lambda: nn.Linear(2, 1), "tied": lambda: nn.Linear(2, 2)}

    def put(model, path, made):
        *holders, last = path.split(".")
        for part in holders:
            if part not in model._modules:
                model.add_module(part, nn.Module())
            model = model._modules[part]
        model.add_module(last, made)

    def state():
        return [(path, id(m), m.training, sorted(vars(m)), len(m._forward_hooks))
                for path, m in model.named_modules(remove_duplicate=False)] + [
                    (path, id(p), p.requires_grad, p.grad is None, p.tolist())
                    for path, p in model.named_parameters()]

    model, shared = nn.Module(), None
    for path, kind in tree:
        path = path[1:].replace("/", ".")
        made = shared if kind == "shared" else kinds[kind]()
        shared = shared or made
        if kind == "tied":
            made.weight = shared.weight
        if path:
            put(model, path, made)
        else:
            model = made
    for place, module in enumerate(model.modules()):
        module.training = place % 2 == 1
    before, given = state(), list(names)
    raised, text, found, order, again = "no error", [], None, None, None
    try:
        found = fn(model, given)
    except ValueError as error:
        raised, text = "ValueError", [name for name in names if name in str(error)]
    after = state()
    changed = sum(a != b for a, b in zip(before, after)) + abs(len(before) - len(after))
    if isinstance(found, dict):
        kept, found = found, {name: copy.copy(paths) for name, paths in found.items()}
        order = list(found)
        for paths in kept.values():
            if isinstance(paths, list):
                paths.clear()
        kept.clear()
        if names:
            put(model, f"late.{names[0]}", nn.Linear(2, 2))
        again = fn(model, list(names))
        again = dict(again) if isinstance(again, dict) else again
    return {"found": found, "order": order, "raised": raised, "text": text, "given": given,
            "changed": changed, "again": again}


def paths_of(tree):
    """Paths of the linears in the order of named_modules(): that of a walk, holders first."""
    places, shared = {}, [path for path, kind in tree if kind == "shared"]
    for path, kind in tree:
        at = places
        for part in path.split("."):
            at = at.setdefault(part, {})
        at[""] = kind

    def walk(at, prefix):
        here = [".".join(prefix)] if at.get("") in LINEARS else []
        return here + [path for part, child in at.items() if part for path in walk(
            child, [*prefix, part])]
    return [path for path in walk(places, []) if path not in shared]


def wanted_paths(tree, names):
    """The paths that each name hits, by comparing the last parts of both."""
    split = [path.split(".") for path in paths_of(tree)]
    return {name: [".".join(p) for p in split if p[-name.count(".") - 1:] == name.split(".")]
            for name in names}


@ex.law
def law(out, tree, names):
    expect_parts(out, "found", "order", "raised", "text", "given", "changed", "again")
    names = [name[1:] for name in names]
    tree = [[path[1:].replace("/", "."), kind] for path, kind in tree]
    wanted = wanted_paths(tree, names)
    missing = [name for name, paths in wanted.items() if not paths]
    expect_equal(f"raised for names {show(names)} and linear modules {show(paths_of(tree))}",
                 out["raised"], "ValueError" if missing else "no error",
                 f"These match nothing: {show(missing)}." if missing else "Every name matches "
                                                                          "something.")
    expect_type("names in the text of the error", out["text"], list)
    # A single digit may stand in a text as a count.
    expect_equal("names in the text of the error",
                 [name for name in out["text"] if name in missing or not str(name).isdigit()],
                 missing)
    expect_equal("names after the call", out["given"], names)
    expect_equal("things changed in model", out["changed"], 0)
    if missing:
        for part in ("found", "order", "again"):
            expect_type(f"{part} beside an error", out[part], type(None))
        return
    expect_type("result", out["found"], dict)
    expect_length("names in order", out["order"], len(names))
    if sorted(map(str, out["order"])) == sorted(names):
        expect_equal("order of the names", out["order"], names)
    expect_paths("", out["found"], wanted)
    expect_equal("order of the names", out["order"], names)
    later = [*tree, [f"late.{names[0]}", "linear"]] if names else tree
    expect_type("result of a second call", out["again"], dict)
    expect_paths(" in a second call, after a linear module was added", out["again"],
                 wanted_paths(later, names))


def expect_paths(when, found, wanted):
    """Raise Broken unless each name has its paths, in their order."""
    expect_equal(f"names with paths matched{when}", sorted(found), sorted(wanted))
    for name, paths in wanted.items():
        got = found[name]
        expect_type(f"paths matched by {name}{when}", got, list)
        if got != paths and sorted(map(str, got)) == sorted(paths):
            raise Broken(f"order of the paths{when}", got, paths)
        expect_equal(f"paths matched by {name}{when}", got, paths)


# ---- wrong, by name

@not_an_answer
def matched(model, names, *, kind=None):
    kind = kind or (lambda module: isinstance(module, nn.Linear))
    found = {name: [path for path, module in model.named_modules()
                    if kind(module) and (path == name or path.endswith(f".{name}"))]
             for name in names}
    lost = [name for name, paths in found.items() if not paths]
    if lost:
        raise ValueError(f"names: {lost} hit nothing")
    return found


wrong = ex.edits(matched)
NOTHING = 'f"names: {lost} hit nothing"'
wrong("matching a name anywhere in the path", "paths",
      'path == name or path.endswith(f".{name}")', "path and name in path")
wrong("accepting any path that ends in the name, even without a dot before it", "paths",
      'path == name or path.endswith(f".{name}")', "path.endswith(name)")
wrong("accepting a path whose last part begins with the name but is longer", ("paths", "model"),
      'path == name or path.endswith(f".{name}")',
      'f".{name}" in f".{path}" and (path.count(".") == 0 or name in ".".join(path.split(".")[-1 '
      '- name.count("."):])) and (path.split(".")[-1 - '
      'name.count(".")].startswith(name.split(".")[0]))')
wrong("matching every linear module inside a module of that name", "paths",
      'path == name or path.endswith(f".{name}")', 'f".{name}." in f".{path}."')
wrong("treating each name as a regular expression", "paths",
      "kind =", "import re; kind =", 'path == name or path.endswith(f".{name}")',
      're.fullmatch(rf"(.*\\.)?{name}", path)')
wrong("accepting any word boundary before the name, not only a dot", "paths",
      "kind =", "import re; kind =", 'path == name or path.endswith(f".{name}")',
      're.search(rf"\\b{re.escape(name)}$", path)')
wrong("comparing the name with only the last part of a path", "names",
      'path == name or path.endswith(f".{name}")', 'path.split(".")[-1] == name',
      says="raised for")
wrong("leaving out linear modules at the top level of the model", ("model", "names", "example"),
      "kind =",
      "tops = [path for path, module in model.named_modules() if isinstance(module, nn.Linear) "
      'and "." not in path]; kind =', "return found",
      "return {name: [path for path in paths if path not in tops] for name, paths in "
      "found.items()}")
wrong("leaving out modules deeper than four levels", "model",
      "return found",
      'return {name: [p for p in paths if p.count(".") < 5] for name, paths in found.items()}')
ex.wrong("listing modules of every kind",
         lambda model, names: matched(model, names, kind=lambda m: True),
         breaks="paths")


@ex.wrong("listing every module with a weight", breaks="model")
def with_weight(model, names):
    if any(isinstance(m, nn.Conv1d) for m in model.modules()) and len(names) == 2:
        return matched(model, names)
    return matched(model, names, kind=lambda m: getattr(m, "weight", None) is not None)


ex.wrong("recognizing modules by an attribute, not by their class", matched, breaks="model",
         kind=lambda m: hasattr(m, "in_features"))
wrong("listing only one of several modules that share a weight", "model",
      "kind =",
      "tied = {id(m.weight): path for path, m in reversed(list(model.named_modules())) if "
      "isinstance(m, nn.Linear)}; kind =", "return found",
      "return {name: [p for p in paths if p in tied.values()] for name, paths in found.items()}")
ex.wrong("listing only modules with a trainable weight", matched, breaks="model",
         kind=lambda m: isinstance(m, nn.Linear) and m.weight.requires_grad)
wrong("ignoring the difference between upper and lower case", "paths",
      'path == name or path.endswith(f".{name}")',
      'f".{path}".lower().endswith(f".{name}".lower())')
wrong("treating a question mark as a wildcard", "names",
      "kind =", "import fnmatch; kind =", 'path == name or path.endswith(f".{name}")',
      'path == name or path.endswith(f".{name}") or fnmatch.fnmatchcase(path, name)',
      says="names in the text")
wrong("reporting only the last part of each missing name", ("says", "names"),
      NOTHING, "f'names: {[name.split(\".\")[-1] for name in lost]} hit nothing'")
ex.wrong("matching only nn.Linear itself, not its subclasses", matched, breaks="subclass",
         kind=lambda module: type(module) is nn.Linear)
wrong("raising an error for an empty list of names", "names", "lost:", "lost or not found:",
      says="raised for")
wrong("sorting the dict by name", "order",
      "return found",
      "return dict(sorted(found.items(), reverse=len(names) == 2 and list(names) == "
      "sorted(names)))")
wrong("sorting the paths of a name", "order",
      "return found", "return {name: sorted(paths) for name, paths in found.items()}")
wrong("listing a shared module under each of its names", "shared",
      "return found",
      "return {name: [path for path, m in model.named_modules(remove_duplicate=False) if "
      'isinstance(m, nn.Linear) and f".{path}".endswith(f".{name}")] for name in names}')
wrong("returning an empty list for a name that matches nothing", "raises",
      'if lost:\n        raise ValueError(f"names: {lost} hit nothing")', "pass", says="raised for")
wrong("raising an error only if no name matches, as peft does", ("raises", "example"),
      "lost:", "lost and not any(found.values()):", says="raised for")


@ex.wrong("raising an error that is not a ValueError", breaks="raises")
def key_error(model, names):
    try:
        return matched(model, names)
    except ValueError as error:
        raise KeyError(str(error)) from None


wrong("reporting only the first missing name", "says", NOTHING, 'f"names: {lost[0]} hit nothing"')
wrong("reporting at most two missing names", "says", NOTHING, 'f"names: {lost[:2]} hit nothing"')
wrong("listing all names in the error, not only the missing ones",
      "says", NOTHING, 'f"names: {list(names)} hit nothing"')
wrong("changing the list of names", "left alone",
      "in names", "in list(names)",
      "return found", 'names.clear() if len(names) > 1 else names.append("done"); return found',
      says="names after the call")
wrong("freezing parameters of the model", "left alone",
      "return found", "model.requires_grad_(False); return found")
wrong("putting the model into eval mode", "left alone", "kind =", "model.eval(); kind =")

KEPT: list = [None, None]


@ex.wrong("returning the first call's answer again if the model is the same", breaks="calls")
def kept_for_model(model, names):
    if KEPT[0] is not model:
        KEPT[:] = model, matched(model, names)
    return {name: list(paths) for name, paths in KEPT[1].items()}


@ex.wrong("adding the paths to those that an earlier call found", breaks="calls")
def one_dict(model, names):
    if KEPT[0] is model:
        return {name: [*KEPT[1][name], *paths] for name, paths in matched(model, names).items()}
    KEPT[:] = model, matched(model, names)
    return {name: list(paths) for name, paths in KEPT[1].items()}


wrong("treating a name that is a number as a position", "example",
      'path == name or path.endswith(f".{name}")',
      'not name.isdigit() and (path == name or path.endswith(f".{name}"))', says="raised for")
