"""Exercise 07.8, `hidden_values`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_equal, expect_parts

ex = exercise("07.8", "hidden_values", seen=("kind", "width"))

ex.promise("count", "How many values of parameters a model hides in plain containers.",
           says=("hidden values", "changes in the model"))
ex.promise("containers", "Counted are the parameters in the lists, tuples and dicts among its "
           "modules' attributes",
           cases=("a list", "a tuple", "a dict", "a list inside a registered part"))
ex.promise("registered", "that parameters() does not hold:",
           cases=("a list of registered blocks", "a registered block beside a hidden one",
                  "nothing hidden", "a ModuleList"))
ex.promise("bare", "bare ones, and those of modules,",
           cases=("a list of bare parameters", "tensors that are no parameters"))
ex.promise("depth", "at any depth of containers, and in containers of modules found there.",
           cases=("lists in dicts in tuples", "a hidden module that hides more"))
ex.promise("once", "Each tensor counts once.",
           cases=("one block in two lists", "two hidden blocks that share a tensor"))
ex.promise("example", "Example: self.blocks = [nn.Linear(2, 3)] hides 9.",
           cases=("the example",))


@ex.cases
def cases(g):
    def one(name, kind):
        return name, {"kind": kind, "width": 3 + int(torch.randint(40, (), generator=g))}
    return [one("a list", "list"), one("a tuple", "tuple"), one("a dict", "dict"),
            one("nothing hidden", "nothing"), one("a ModuleList", "ModuleList"),
            one("a list inside a registered part", "inside"),
            one("a list of registered blocks", "registered"),
            one("a registered block beside a hidden one", "beside"),
            one("a list of bare parameters", "bare"),
            one("tensors that are no parameters", "tensors"),
            one("lists in dicts in tuples", "nested"),
            one("a hidden module that hides more", "more"),
            one("one block in two lists", "twice"),
            one("two hidden blocks that share a tensor", "shared"), one("the example", "example")]


@ex.act
def act(fn, kind, width):
    class Net(nn.Module):
        def __init__(self, **parts):
            super().__init__()
            self.stem = nn.Linear(2, 2)
            for name, part in parts.items():
                setattr(self, name, part)

    def block():
        return nn.Linear(width, 2)

    def shared():
        one, two = block(), block()
        two.weight = one.weight
        return Net(blocks=[one, two])

    def beside():
        one = block()
        return Net(own=one, blocks=[one, block()])

    known, twice = block(), block()
    model = {
        "list": lambda: Net(blocks=[block(), block(), "a text", 3]),
        "tuple": lambda: Net(blocks=(block(), nn.ReLU())),
        "dict": lambda: Net(blocks={"one": block(), "two": None}),
        "nothing": lambda: Net(sizes=[1, 2]),
        "ModuleList": lambda: Net(blocks=nn.ModuleList([block(), block()])),
        "inside": lambda: nn.Sequential(nn.ReLU(), nn.Sequential(Net(blocks=[block()]))),
        "registered": lambda: Net(one=known, order=[known]), "beside": beside,
        "bare": lambda: Net(gains=[nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(2))]),
        "tensors": lambda: Net(tables=[torch.ones(width)], blocks=[nn.BatchNorm1d(width)]),
        "nested": lambda: Net(blocks=({"deep": [[block()], (block(),)]},)),
        "more": lambda: Net(blocks=[nn.Sequential(Net(inner=[block()]))]),
        "twice": lambda: Net(one=[twice], two=(twice,)), "shared": shared,
        "example": lambda: Net(blocks=[nn.Linear(2, 3)])}[kind]()
    before = [n for n, _ in model.named_parameters()]
    out = fn(model)
    return {"out": out, "changed": int(before != [n for n, _ in model.named_parameters()])}


def expected(kind, width):
    block = 2 * width + 2
    return {"list": 2 * block, "tuple": block, "dict": block, "nothing": 0, "ModuleList": 0,
            "inside": block, "registered": 0, "beside": block, "bare": width + 2,
            "tensors": 2 * width, "nested": 2 * block, "more": block + 6,
            "twice": block, "shared": block + 2, "example": 9}[kind]


@ex.law
def law(out, kind, width):
    expect_parts(out, "out", "changed")
    expect_equal("hidden values", out["out"], expected(kind, width))
    expect_equal("changes in the model", out["changed"], 0, "Leave the model as it came.")


# ---- right by another route

def attributes(module):
    return [v for k, v in module.__dict__.items() if not k.startswith("_")]


@ex.right("by recursion, tensors by id")
def recursive(model):
    seen, found = set(), {}

    def visit(thing):
        if id(thing) in seen:
            return
        seen.add(id(thing))
        if isinstance(thing, nn.Parameter):
            found[id(thing)] = thing.numel()
        elif isinstance(thing, nn.Module):
            for part in [*thing.parameters(recurse=False), *thing.children(),
                         *attributes(thing)]:
                visit(part)
        elif isinstance(thing, (list, tuple, dict)):
            for part in thing.values() if isinstance(thing, dict) else thing:
                visit(part)
    visit(model)
    for p in model.parameters():
        found.pop(id(p), None)
    return sum(found.values())


@ex.right("what everything reaches, less what is registered")
def by_difference(model):
    reached, tensors, todo = {}, set(), [model]
    while todo:
        thing = todo.pop()
        if id(thing) not in reached:
            reached[id(thing)] = thing
            if isinstance(thing, nn.Parameter):
                tensors.add(thing)
            elif isinstance(thing, nn.Module):
                todo.extend(thing.__dict__.values())
            elif isinstance(thing, dict):
                todo.extend(thing.values())
            elif isinstance(thing, (list, tuple)):
                todo.extend(thing)
    return sum(p.numel() for p in tensors) - sum(p.numel() for p in model.parameters())


@ex.right("layer after layer of containers")
def by_levels(model):
    level, seen, hidden = [model], [], {}
    while level:
        below = []
        for thing in level:
            if any(thing is old for old in seen):
                continue
            seen.append(thing)
            if isinstance(thing, nn.Module):
                below += [*thing.parameters(), *(v for m in thing.modules()
                                                 for v in attributes(m))]
            elif isinstance(thing, nn.Parameter):
                hidden[thing] = thing.numel()
            elif isinstance(thing, dict):
                below += thing.values()
            elif isinstance(thing, (list, tuple)):
                below += thing
        level = below
    return sum(n for p, n in hidden.items() if not any(p is q for q in model.parameters()))


@ex.right("an iterator that yields tensors")
def by_iterator(model):
    def tensors(thing, seen):
        if id(thing) in seen:
            return
        seen.add(id(thing))
        if isinstance(thing, nn.Parameter):
            yield thing
        parts = (attributes(thing) + list(thing.children()) + list(thing.parameters())
                 if isinstance(thing, nn.Module) else
                 list(thing.values()) if isinstance(thing, dict) else
                 list(thing) if isinstance(thing, (list, tuple)) else [])
        for part in parts:
            yield from tensors(part, seen)
    return sum(p.numel() for p in {*tensors(model, set())} - {*model.parameters()})


ex.equivalent("if isinstance(thing, list | tuple): -> if isinstance(thing, tuple | list):",
              "either type, in either order")


# ---- wrong, by name

def counted(model, *, kinds=(list, tuple, dict), bare=True, inner=True, known=True, depth=99,
            modules=True, tensor=nn.Parameter, parts=True):
    """The right answer with its pieces as options."""
    seen, found = set(), []

    def visit(thing, level):
        if id(thing) in seen or level > depth:
            return
        seen.add(id(thing))
        if isinstance(thing, tensor):
            found.extend([thing] if bare else [])
        elif isinstance(thing, nn.Module):
            if modules:
                found.extend(thing.parameters())
            for module in thing.modules() if inner else []:
                for value in attributes(module):
                    visit(value, level)
        elif isinstance(thing, kinds):
            for part in thing.values() if isinstance(thing, dict) else thing:
                visit(part, level + 1)
    own = set(model.parameters())
    for module in model.modules() if parts else [model]:
        for value in attributes(module):
            visit(value, 0)
    chosen = {id(p): p for p in found if not known or p not in own}
    return sum(p.numel() for p in chosen.values())


@ex.wrong("always zero, as state_dict and parameters() agree", says="hidden values",
          breaks=("count", "containers", "registered", "bare", "depth", "once", "example"))
def none(model):
    return len(model.state_dict().keys() - {
        n for n, _ in (*model.named_parameters(), *model.named_buffers())})


@ex.wrong("tensors counted, not their values", says="hidden values", breaks="count")
def tensors(model):
    total, each = counted(model), set()
    for value in [v for m in model.modules() for v in attributes(m)]:
        if isinstance(value, (list, tuple)):
            each |= {id(p) for m in value if isinstance(m, nn.Module) for p in m.parameters()}
    return len(each) if each else total


@ex.wrong("lists only", says="hidden values", breaks=("containers", "depth", "once"))
def lists_only(model):
    return counted(model, kinds=list)


@ex.wrong("lists and dicts, no tuples", says="hidden values", breaks=("containers", "depth"))
def no_tuples(model):
    return counted(model, kinds=(list, dict))


@ex.wrong("lists and tuples, no dicts", says="hidden values", breaks=("containers", "depth"))
def no_dicts(model):
    return counted(model, kinds=(list, tuple))


@ex.wrong("the model's own attributes only", says="hidden values", breaks="containers")
def root_only(model):
    return counted(model, parts=False)


@ex.wrong("registered blocks counted too", says="hidden values", breaks="registered")
def with_registered(model):
    return counted(model, known=False)


@ex.wrong("modules only, no bare parameters", says="hidden values", breaks="bare")
def modules_only(model):
    return counted(model, bare=False)


@ex.wrong("every tensor, parameter or not", says="hidden values", breaks="bare")
def any_tensor(model):
    return counted(model, tensor=torch.Tensor)


@ex.wrong("no containers within containers", says="hidden values", breaks="depth")
def one_level(model):
    return counted(model, depth=1)


@ex.wrong("hidden modules not searched", says="hidden values", breaks="depth")
def not_inside(model):
    return counted(model, inner=False)


@ex.wrong("a block once for each container that holds it", says="hidden values", breaks="once")
def for_each(model):
    total = counted(model)
    lists = [v for v in attributes(model) if isinstance(v, (list, tuple))]
    blocks = [m for v in lists for m in v if isinstance(m, nn.Linear)]
    again = {id(m): m for m in blocks if sum(m is other for other in blocks) > 1}
    return total + sum(p.numel() for m in again.values() for p in m.parameters())


@ex.wrong("a shared tensor once for each module", says="hidden values", breaks="once")
def each_module(model):
    total = counted(model)
    blocks = {id(m): m for v in attributes(model) if isinstance(v, list)
              for m in v if isinstance(m, nn.Linear)}
    weights = [m.weight for m in blocks.values()]
    double = len(weights) - len({id(w) for w in weights})
    return total + (double * weights[0].numel() if double else 0)


@ex.wrong("the example, without the biases", says="hidden values", breaks="example")
def without_bias(model):
    total = counted(model)
    return 6 if total == 9 else total
