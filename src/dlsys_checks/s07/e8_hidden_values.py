"""Exercise 07.8, `hidden_values`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_equal, expect_parts

ex = exercise("07.8", "hidden_values", seen=("kind", "width"))

ex.promise("count", "How many values of parameters a model hides in plain containers.",
           says=("hidden values",))
ex.promise("containers", "Counted are the parameters in the lists, tuples and values of dicts "
           "among its modules' own attributes",
           cases=("a list", "a tuple", "a dict", "a list inside a registered part",
                  "a dict and a tuple of a kind", "a list whose name begins with _",
                  "a set, keys and other objects", "a tuple of the class"))
ex.promise("registered", "that parameters() does not hold:",
           cases=("a list of registered blocks", "a registered block beside a hidden one",
                  "nothing hidden", "a ModuleList", "a hidden norm equal to a registered one"))
ex.promise("bare", "bare ones, and those of modules, frozen ones too,",
           cases=("a list of bare parameters", "tensors that are no parameters",
                  "a hidden ParameterList", "a frozen block"))
ex.promise("depth", "at any depth of containers, and in containers of modules found there; "
           "nothing holds itself.",
           cases=("lists in dicts in tuples", "a hidden module that hides more",
                  "twelve lists, one in another"))
ex.promise("once", "Each counts once, whatever its numbers.",
           cases=("one block in two lists", "two hidden blocks that share a tensor",
                  "two norms of equal numbers"))
ex.promise("left alone", "The model is left as it is.",
           says=("changes in the model", "when asked again"))
ex.promise("example", "Example: self.blocks = [nn.Linear(2, 3)] hides 9.",
           cases=("the example",))


@ex.cases
def cases(g):
    def one(kind):
        return kind, {"kind": kind, "width": 3 + int(torch.randint(40, (), generator=g))}
    return [one(kind) for kind in KINDS]


# What each kind hides: values for each of its blocks' width, and values besides.
KINDS = {
    "a list": (4, 4), "a tuple": (2, 2), "a dict": (2, 2), "a dict and a tuple of a kind": (4, 4),
    "a list whose name begins with _": (2, 2), "nothing hidden": (0, 0), "a ModuleList": (0, 0),
    "a list inside a registered part": (2, 2), "a list of registered blocks": (0, 0),
    "a registered block beside a hidden one": (2, 2), "a list of bare parameters": (1, 3),
    "a hidden ParameterList": (1, 0), "a frozen block": (2, 2),
    "tensors that are no parameters": (2, 0), "lists in dicts in tuples": (4, 4),
    "twelve lists, one in another": (2, 2), "a hidden module that hides more": (2, 8),
    "one block in two lists": (2, 2), "two hidden blocks that share a tensor": (2, 4),
    "two norms of equal numbers": (4, 0), "a hidden norm equal to a registered one": (2, 0),
    "a set, keys and other objects": (0, 0), "a tuple of the class": (0, 0), "the example": (0, 9)}


@ex.act
def act(fn, kind, width):
    class Net(nn.Module):
        def __init__(self, **parts):
            super().__init__()
            self.stem = nn.Linear(2, 2)
            for name, part in parts.items():
                setattr(self, name, part)

    class Classy(Net):
        spare = (nn.Linear(width, 2),)

    class Pair(tuple):
        pass

    class Table(dict):
        pass

    class Plain:
        def __init__(self, part):
            self.part, self.parts = part, [part]

    made = []

    def block():
        made.append(nn.Linear(width, 2))
        return made[-1]

    def shared():
        one, two = block(), block()
        two.weight = one.weight
        return Net(blocks=[one, two])

    def beside():
        one = block()
        return Net(own=one, blocks=[one, block()])

    def twins():
        one, two = nn.LayerNorm(width), nn.LayerNorm(width)
        two.weight.data = one.weight.data  # on one storage even
        return Net(norms=[one, two])

    def deep():
        found = [block()]
        for _ in range(11):
            found = [found]
        return Net(blocks=found)

    known, cold, twice = block(), block().requires_grad_(False), block()
    plain = [torch.ones(width), torch.ones(width, requires_grad=True)]
    model = {
        "a list": lambda: Net(blocks=[block(), block(), "a text", 3]),
        "a tuple": lambda: Net(blocks=(block(), nn.ReLU())),
        "a dict": lambda: Net(blocks={"one": block(), "two": None}),
        "a dict and a tuple of a kind": lambda: Net(a=Pair([block()]), b=Table(one=block())),
        "a list whose name begins with _": lambda: Net(_blocks=[block()]),
        "nothing hidden": lambda: Net(sizes=[1, 2], none=[], text="blocks"),
        "a ModuleList": lambda: Net(a=nn.ModuleList([block(), block()]), b=nn.ParameterList(
            [torch.ones(width)]), c=nn.ModuleDict({"one": block()})),
        "a list inside a registered part": lambda: nn.Sequential(
            nn.ReLU(), nn.Sequential(Net(blocks=[block()]))),
        "a list of registered blocks": lambda: Net(
            one=known, two=cold, order=[known, cold]),
        "a registered block beside a hidden one": beside,
        "a list of bare parameters": lambda: Net(gains=[
            nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(2)),
            nn.Parameter(torch.tensor(3.0)), nn.Parameter(torch.ones(0))]),
        "a hidden ParameterList": lambda: Net(gains=[nn.ParameterList([torch.ones(width)])]),
        "a frozen block": lambda: Net(blocks=[block().requires_grad_(False)]),
        "tensors that are no parameters": lambda: Net(tables=plain, blocks=[
            nn.BatchNorm1d(width)]),
        "lists in dicts in tuples": lambda: Net(blocks=({"deep": [[block()], (block(),)]},)),
        "twelve lists, one in another": deep,
        "a hidden module that hides more": lambda: Net(blocks=[nn.Sequential(
            Net(inner=[block()]))]),
        "one block in two lists": lambda: Net(one=[twice], two=(twice,)),
        "two hidden blocks that share a tensor": shared,
        "two norms of equal numbers": twins,
        "a hidden norm equal to a registered one": lambda: Net(
            norm=nn.LayerNorm(width), norms=[nn.LayerNorm(width)]),
        "a set, keys and other objects": lambda: Net(
            others=[Plain(block())], more={block()}, rates={nn.Parameter(torch.ones(width)): 0.1}),
        "a tuple of the class": Classy,
        "the example": lambda: Net(blocks=[nn.Linear(2, 3)])}[kind]()
    model.train(width % 2 == 0)
    for p in {*model.parameters(), *nn.ModuleList(made).parameters()}:
        p.grad = torch.ones_like(p)

    def facts():
        tensors = [*model.parameters(), *(p for part in made for p in part.parameters())]
        return ([n for n, _ in model.named_parameters()],
                [m.training for m in (*model.modules(), *made)],
                [(p.tolist(), p.requires_grad, p.grad if p.grad is None else p.grad.tolist(),
                  sorted(vars(p))) for p in tensors])

    before = facts()
    found = [fn(model), fn(model)]
    return {"out": found[0], "again": found[1], "changed": int(before != facts())}


@ex.law
def law(out, kind, width):
    expect_parts(out, "out", "again", "changed")
    each, more = KINDS[kind]
    wanted = each * width + more
    expect_equal(f"hidden values, {kind}", out["out"], wanted)
    expect_equal(f"hidden values when asked again, {kind}", out["again"], wanted,
                 "The first call changed the model.")
    expect_equal("changes in the model", out["changed"], 0, "Leave the model as it came.")


# ---- right by another route

def attributes(module):
    registers = ("_parameters", "_buffers", "_modules")
    return [v for k, v in vars(module).items() if k not in registers]


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


@ex.wrong("attributes whose names begin with _ left out", says="hidden values",
          breaks="containers")
def public_only(model):
    private = [vars(model).get("_blocks")]
    return 0 if private != [None] else counted(model)


@ex.wrong("containers known by their exact type", says="hidden values", breaks="containers")
def exact_types(model):
    return 0 if any(type(v) not in (list, tuple, dict) and isinstance(v, (tuple, dict))
                    for k, v in vars(model).items() if k in "ab") else counted(model)


@ex.wrong("frozen parameters left out", says="hidden values", breaks="bare")
def trainable_only(model):
    blocks = vars(model).get("blocks")
    frozen = isinstance(blocks, list) and blocks and isinstance(blocks[0], nn.Module) and not any(
        p.requires_grad for p in blocks[0].parameters())
    return 0 if frozen else counted(model)


@ex.wrong("tensors told apart by their numbers", says="hidden values", breaks="once")
def by_numbers(model):
    norms = vars(model).get("norms", [])
    return counted(model) // (2 if len(norms) == 2 else 1)


@ex.wrong("a model without its lists once it was asked", says="when asked again",
          breaks="left alone")
def emptied(model):
    found = counted(model)
    for value in attributes(model):
        if isinstance(value, list):
            value.clear()
    return found


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
