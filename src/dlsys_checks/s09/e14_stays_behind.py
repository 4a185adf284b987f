"""Exercise 09.14, `stays_behind`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("09.14", "stays_behind", seen=("kind", "width"), says="number of paths")

ex.promise_table("""
paths      | List the tensors that model.to(...) leaves behind, as sorted paths. | path; number of
             paths; type of the paths
where      | The tensor has to be reachable from a module's own attributes, directly or through
             lists, tuples and dict values. | case two attributes; a tensor hung on a layer; a list;
             a tuple; a dict; inside a block; subclasses of dict and tuple; a name that begins with
             _; a set and other objects; on the class, not the model; keys that are numbers; a list
             of twelve
depth      | Containers can be nested at any depth. | case lists in dicts in tuples
kinds      | List every tensor, of any type and shape. | case integers, one value, no value; two
             other types; views and sparse
registered | Skip the model's parameters wherever they are, and buffers where they are registered. |
             case registered; the parameters once more; a frozen parameter once more; a parameter of
             another part; a parameter that is not registered; the memory of a parameter; equal to a
             parameter; nothing; a tensor that takes gradients
twin       | If a registered buffer is also a second attribute, that attribute is listed. | case a
             buffer once more in a list; a buffer under a second attribute
names      | A path consists of the module's name, the attribute, positions and keys, with dots in
             between. | case inside a block; a list; a tuple; a dict; lists in dicts in tuples;
             subclasses of dict and tuple; a list of twelve; the example; keys that are numbers; a
             block in a block; a tensor in two places; a buffer once more in a list; a parameter
             that is not registered; a module under two names; a tensor hung on a layer; a list in
             two places
first      | A module that is used twice is listed under its first name, and a tensor held twice
             under both paths. | case a module under two names; a tensor in two places; a list in
             two places
modules    | Modules in lists are not searched. | case a module in a list
left alone | The model is unchanged. | changes in the model; when asked again
example    | Example: plain tensors self.mean and self.tables = [sin, cos] in a part "body" give
             ["body.mean", "body.tables.0", "body.tables.1"]. | case the example
""")

WANTED = {
    "two attributes": ["mean", "std"], "nothing": [], "registered": [],
    "a list": ["tables.0", "tables.2"], "a tuple": ["pair.1"], "a dict": ["t.cos", "t.sin"],
    "subclasses of dict and tuple": ["a.one", "b.0"], "a name that begins with _": ["_cache"],
    "inside a block": ["1.mean"], "a block in a block": ["1.0.mean", "1.1.std"],
    "a list of twelve": [f"t.{k}" for k in (0, 1, 10, 11, *range(2, 10))],
    "keys that are numbers": ["t.-1", "t.3"], "lists in dicts in tuples": ["deep.1.a.0.0"],
    "the parameters once more": [], "a buffer once more in a list": ["kept.0"],
    "a buffer under a second attribute": ["kept"],
    "a frozen parameter once more": [], "a parameter of another part": [],
    "views and sparse": ["part", "thin"], "a list in two places": ["a.0", "b.0"],
    "a parameter that is not registered": ["gains.0"], "the memory of a parameter": ["view"],
    "equal to a parameter": ["same"], "a tensor that takes gradients": ["scale"],
    "integers, one value, no value": ["empty", "flags", "ids", "one"],
    "two other types": ["small", "wide"],
    "a set and other objects": [], "on the class, not the model": [],
    "a module under two names": ["a.mean"], "a tensor in two places": ["a", "b.0"],
    "a module in a list": [], "a tensor hung on a layer": ["lin.table"],
    "the example": ["body.mean", "body.tables.0", "body.tables.1"]}


ANY = "any of "  # then a letter for each attribute of a drawn model: T, a tensor; N, a number


def wanted(kind):
    """What stays behind in the model of a case."""
    if kind in WANTED:
        return WANTED[kind]
    return [f"part{n:02}" for n, letter in enumerate(kind.removeprefix(ANY)) if letter == "T"]


@ex.cases
def cases(g):
    def one(name, kind):
        return name, {"kind": kind, "width": 2 + int(torch.randint(60, (), generator=g))}
    some = "".join("TN"[int(torch.randint(2, (), generator=g))] for _ in range(16))
    return [*[one(kind, kind) for kind in WANTED], one("any attributes", ANY + some)]


@ex.act
def act(fn, kind, width):
    from collections import deque

    class Net(nn.Module):
        def __init__(self, **parts):
            super().__init__()
            self.lin = nn.Linear(2, width)
            self.register_buffer("held", torch.ones(width))
            for name, part in parts.items():
                setattr(self, name, part)

    class Classy(Net):
        table = torch.ones(width)

    class Pair(tuple):
        pass

    class Table(dict):
        pass

    class Plain:
        def __init__(self):
            self.tensor = torch.ones(width)

    def t():
        return torch.rand(width)

    def again(what):
        net = Net()
        if what == "parameters":
            net.order, net.first = [net.lin.weight, (net.lin.bias,)], {"w": net.lin.weight}
        if what == "frozen":
            net.first = [net.lin.weight.requires_grad_(False)]
        if what == "another part":
            return nn.Sequential(net, Net(tied=[net.lin.weight]))
        if what == "buffer":
            net.kept = [net.held]
        if what == "twin":
            net.kept = net.held
        if what == "memory":
            net.view = net.lin.weight.data
        if what == "layer":
            net.lin.table = t()
        if what == "equal":
            net.same = net.lin.bias.detach().clone()
        return net

    def registered():
        net = Net(norm=nn.BatchNorm1d(width), more=nn.ParameterList([t()]))
        net.register_buffer("fleeting", t(), persistent=False)
        net.register_parameter("free", nn.Parameter(t()))
        return net
    def drawn():
        return Net(**{f"part{n:02}": t() if letter == "T" else n
                      for n, letter in enumerate(kind.removeprefix("any of "))})
    twice, block, shared = t(), Net(mean=t()), [t()]
    model = drawn() if kind.startswith("any of ") else {
        "two attributes": lambda: Net(std=t(), mean=t()),
        "nothing": lambda: Net(rate=0.1, name="mean", sizes=[1, 2], none=None),
        "registered": registered,
        "a list": lambda: Net(tables=[t(), 3, t()]),
        "a tuple": lambda: Net(pair=("text", t())),
        "a dict": lambda: Net(t={"sin": t(), "cos": t(), "n": 7}),
        "subclasses of dict and tuple": lambda: Net(a=Table(one=t()), b=Pair([t()])),
        "a name that begins with _": lambda: Net(_cache=t()),
        "inside a block": lambda: nn.Sequential(nn.ReLU(), Net(mean=t())),
        "a block in a block": lambda: nn.Sequential(nn.ReLU(), nn.Sequential(
            Net(mean=t()), Net(std=t()))),
        "a list of twelve": lambda: Net(t=[t() for _ in range(12)]),
        "keys that are numbers": lambda: Net(t={3: t(), -1: t()}),
        "lists in dicts in tuples": lambda: Net(deep=(0, {"a": [(t(),)], "b": []})),
        "the parameters once more": lambda: again("parameters"),
        "a frozen parameter once more": lambda: again("frozen"),
        "a parameter of another part": lambda: again("another part"),
        "views and sparse": lambda: Net(part=t()[1:], thin=torch.eye(3).to_sparse()),
        "a list in two places": lambda: Net(a=shared, b=shared),
        "a buffer once more in a list": lambda: again("buffer"),
        "a buffer under a second attribute": lambda: again("twin"),
        "a parameter that is not registered": lambda: Net(gains=[nn.Parameter(t())]),
        "the memory of a parameter": lambda: again("memory"),
        "equal to a parameter": lambda: again("equal"),
        "a tensor hung on a layer": lambda: again("layer"),
        "a tensor that takes gradients": lambda: Net(scale=t().requires_grad_()),
        "integers, one value, no value": lambda: Net(
            ids=torch.arange(width), one=torch.tensor(2.0), empty=torch.ones(0),
            flags=torch.ones(width, dtype=torch.bool)),
        "two other types": lambda: Net(small=t().half(), wide=t().double()),
        "a set and other objects": lambda: Net(others={t()}, plain=Plain(), call=t,
                                               queue=deque([t()]),
                                               keys={t(): 1}),
        "on the class, not the model": Classy,
        "a module under two names": lambda: Net(a=block, b=block),
        "a tensor in two places": lambda: Net(a=twice, b=[twice]),
        "a module in a list": lambda: Net(blocks=[Net(mean=t())]),
        "the example": lambda: nn.ModuleDict({"body": Net(mean=t(), tables=[t(), t()])}),
    }[kind]()
    model.train(width % 2 == 0)

    def state():
        held = [(n, id(p)) for n, p in (*model.named_parameters(), *model.named_buffers())]
        plain = [sorted((k, id(v)) for k, v in vars(m).items()) for m in model.modules()]
        sizes = [len(v) for m in model.modules() for v in vars(m).values()
                 if isinstance(v, (list, dict, tuple))]
        return held, plain, sizes, [m.training for m in model.modules()]
    before = state()
    held = [*model.parameters(), *model.buffers()]
    values = [(p.detach().clone(), p.requires_grad) for p in held]
    out = [fn(model), fn(model)]
    changed = {"attributes": before != state(), "values": not all(
        torch.equal(p, v) for p, (v, _) in zip(held, values)), "gradients": not all(
        p.requires_grad == free and p.grad is None for p, (_, free) in zip(held, values))}
    return {"out": out[0], "again": out[1], "changed": [k for k, was in changed.items() if was]}


@ex.law
def law(out, kind, width):
    expect_parts(out, "out", "again", "changed")
    paths = wanted(kind)
    expect_equal("type of the paths", type(out["out"]).__name__, "list", f"Case: {kind}.")
    expect_length("paths", out["out"], len(paths))
    for place, (mine, right) in enumerate(zip(out["out"], paths, strict=True)):
        expect_equal(f"path {place}", mine, right)
    expect_equal("paths when asked again", out["again"], out["out"],
                 "The first call changed the model.")
    expect_equal("changes in the model", out["changed"], [], "Leave the model as it was.")


REGISTERS = ("_parameters", "_buffers", "_modules")


# ---- wrong, by name

@not_an_answer
def paths(model, *, kinds=(list, tuple, dict), private=True, modules=False, index=True):
    own = {"parameters": list(model.parameters()), "none": [], "trained": [p for p in
        model.parameters() if p.requires_grad], "buffers": [*model.parameters(),
        *model.buffers()]}["parameters"]
    found, seen = [], []
    def visit(path, value, level):
        if isinstance(value, torch.Tensor):
            plain = True
            if plain and (not any(value is p for p in (*own, *seen))):
                found.append(path)
            seen.extend([])
        elif isinstance(value, nn.Module) and modules and level:
            for key, item in vars(value).items():
                if key not in REGISTERS:
                    visit(f"{path}.{key}", item, level + 1)
        elif isinstance(value, kinds) and level < 99:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                visit(f"{path}.{key}" if index else path, item, level + 1)
    for name, module in model.named_modules(remove_duplicate=True):
        for key, value in vars(module).items():
            if key not in REGISTERS and (private or key[0] != "_"):
                visit(f"{name}.{key}" if name else key, value, 0)
    out = sorted(found)
    return out


wrong = ex.edits(paths)
PLAIN = "plain and (not any(value is p for p in (*own, *seen)))"
wrong("searching only the model's own attributes, not those of its modules", ("where", "names"),
      "vars(module).items()", 'vars(module).items() if name == "" else ()')


@ex.wrong("looking for buffers that state_dict() leaves out", breaks="paths")
def by_state_dict(model):
    kept = model.state_dict()
    return sorted(name for name, _ in model.named_buffers() if name not in kept)


ex.wrong("listing non-persistent buffers",
         lambda model: sorted([*paths(model), *by_state_dict(model)]), breaks="registered")


@ex.wrong("not searching lists and tuples", breaks="where")
def dicts_only(model):
    return paths(model, kinds=dict) if not any(isinstance(v, tuple) and any(isinstance(
        i, dict) for i in v) for v in vars(model).values()) and "gains" not in vars(
            model) and "kept" not in vars(model) and "b" not in vars(model) and not isinstance(
                model, nn.ModuleDict) else paths(model)


ex.wrong("not searching dicts", paths, breaks=("where", "depth", "names"), kinds=(list, tuple))
ex.wrong("not searching lists, tuples and dicts", paths, kinds=(),
         breaks=("where", "depth", "names", "kinds", "twin", "registered", "first", "example"))
wrong("recognizing containers by their exact type, which misses subclasses", "where",
      "isinstance(value, kinds)", "type(value) in kinds")
ex.wrong("leaving out attributes whose names begin with an underscore",
         paths, breaks="where", private=False)
wrong("not searching containers inside containers", "depth", "99", "1")
wrong("listing only float tensors", "kinds",
      PLAIN,
      "plain and torch.is_floating_point(value) and (not any(value is p for p in (*own, *seen)))")
wrong("leaving out tensors with one value or none", "kinds",
      PLAIN, "plain and value.numel() > 1 and (not any(value is p for p in (*own, *seen)))")
wrong("listing only float32 tensors", "kinds",
      PLAIN,
      "plain and value.dtype == torch.float32 and (not any(value is p for p in (*own, *seen)))")
wrong("listing the model's parameters under a second name", "registered",
      '["parameters"]', '["none"]')
wrong("leaving out buffers wherever they are", "twin", '["parameters"]', '["buffers"]')
wrong("leaving out parameters that are not registered", "registered",
      "plain = True", "plain = not isinstance(value, nn.Parameter)")
wrong("leaving out tensors that require a gradient", "registered",
      PLAIN, "plain and (not value.requires_grad) and (not any(value is p for p in (*own, *seen)))")
wrong("comparing tensors by memory address, not by identity", "registered",
      "own =", "known = {p.data_ptr() for p in model.parameters()}; own =", PLAIN,
      "plain and (value.is_sparse or value.data_ptr() not in known or (not value.numel())) and "
      "(not any(value is p for p in (*own, *seen)))")
wrong("comparing tensors by value, not by identity", "registered",
      PLAIN,
      "plain and (value.is_sparse or not any(torch.equal(value, p) for p in model.parameters() "
      "if p.dim() == 1)) and (not any(value is p for p in (*own, *seen)))")
wrong("leaving the module's name out of the path", "names", 'f"{name}.{key}" if name else key',
      "key", says="path")
ex.wrong("naming only the container, without the position or key in it",
         paths, says="path", breaks="names",
         index=False)
wrong("not sorting the paths", ("paths", "where"), "sorted", "list")
wrong("listing a module under each of its names", "first",
      "remove_duplicate=True", "remove_duplicate=False")
wrong("listing only one path of a tensor that is held twice", "first", "([])", "([value])")
ex.wrong("searching the modules inside lists", paths, breaks="modules", modules=True)
wrong("returning a set instead of a list", "paths", "return out", "return {*out}")
wrong("registering the tensors as buffers", "left alone",
      "return out",
      'for name in out:\n        if "." not in name: value = vars(model).pop(name); '
      "model.register_buffer(name, value.detach())\n    return out")
wrong("freezing the model's parameters", "left alone",
      "return out", "for p in model.parameters(): p.requires_grad_(False)\n    return out")
wrong("leaving out the list in the example", "example",
      "return out",
      'return out[:1] if out == ["body.mean", "body.tables.0", "body.tables.1"] else out')
wrong("listing frozen parameters that a second attribute holds",
      "registered", '["parameters"]', '["trained"]')


@ex.wrong("searching a list only once, under its first name", breaks="first")
def lists_once(model):
    seen, found = set(), []
    for path in paths(model):
        name, _, place = path.rpartition(".")
        held = getattr(model, name, None)
        if type(held) is list and name in vars(model):
            if (id(held), place) in seen:
                continue
            seen.add((id(held), place))
        found.append(path)
    return found
