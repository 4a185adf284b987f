"""Exercise 07.8, `hidden_values`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("07.8", "hidden_values", seen=("kind", "width"), says="hidden values")

ex.promise_table("""
count         | Count the parameter values that a model hides in plain containers. | hidden values
containers    | torch finds no parameters inside plain lists, tuples and dicts. Go through each
                module's own attributes and open each such container (in a dict, the values). | case
                a list; a tuple; a dict; a list inside a registered part; subclasses of dict and
                tuple; a list whose name begins with _; a set, keys and other objects; a tuple on
                the class
depth         | Also open every container inside such a container. | case lists in dicts in tuples;
                twelve nested lists
bare          | Count the values of every nn.Parameter that you find, frozen or not, whether it is
                alone or in a module. | case a list of bare parameters; tensors that are not
                parameters; a hidden ParameterList; a frozen block
found modules | Also search the attributes of every module that you find. | case a hidden module
                that hides more
registered    | Skip the parameters that model.parameters() returns. | case a list of registered
                blocks; a registered block next to a hidden one; nothing hidden; a ModuleList; a
                hidden norm equal to a registered one
once          | A parameter that you find twice counts once; two parameters with equal values count
                as two. There are no cycles. | case one block in two lists; two hidden blocks that
                share a tensor; two norms with equal values
left alone    | The model is unchanged. | changes in the model; when asked again
example       | Example: self.blocks = [nn.Linear(2, 3)] hides 9 parameter values. | case the
                example
""")


@ex.cases
def cases(g):
    def one(kind):
        return kind, {"kind": kind, "width": 3 + int(torch.randint(40, (), generator=g))}
    return [one(kind) for kind in KINDS]


# What each kind hides: values for each of its blocks' width, and values besides.
KINDS = {
    "a list": (4, 4), "a tuple": (2, 2), "a dict": (2, 2), "subclasses of dict and tuple": (4, 4),
    "a list whose name begins with _": (2, 2), "nothing hidden": (0, 0), "a ModuleList": (0, 0),
    "a list inside a registered part": (2, 2), "a list of registered blocks": (0, 0),
    "a registered block next to a hidden one": (2, 2), "a list of bare parameters": (1, 3),
    "a hidden ParameterList": (1, 0), "a frozen block": (2, 2),
    "tensors that are not parameters": (2, 0), "lists in dicts in tuples": (4, 4),
    "twelve nested lists": (2, 2), "a hidden module that hides more": (2, 8),
    "one block in two lists": (2, 2), "two hidden blocks that share a tensor": (2, 4),
    "two norms with equal values": (4, 0), "a hidden norm equal to a registered one": (2, 0),
    "a set, keys and other objects": (0, 0), "a tuple on the class": (0, 0), "the example": (0, 9)}


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
        "subclasses of dict and tuple": lambda: Net(a=Pair([block()]), b=Table(one=block())),
        "a list whose name begins with _": lambda: Net(_blocks=[block()]),
        "nothing hidden": lambda: Net(sizes=[1, 2], none=[], text="blocks"),
        "a ModuleList": lambda: Net(a=nn.ModuleList([block(), block()]), b=nn.ParameterList(
            [torch.ones(width)]), c=nn.ModuleDict({"one": block()})),
        "a list inside a registered part": lambda: nn.Sequential(
            nn.ReLU(), nn.Sequential(Net(blocks=[block()]))),
        "a list of registered blocks": lambda: Net(
            one=known, two=cold, order=[known, cold]),
        "a registered block next to a hidden one": beside,
        "a list of bare parameters": lambda: Net(gains=[
            nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(2)),
            nn.Parameter(torch.tensor(3.0)), nn.Parameter(torch.ones(0))]),
        "a hidden ParameterList": lambda: Net(gains=[nn.ParameterList([torch.ones(width)])]),
        "a frozen block": lambda: Net(blocks=[block().requires_grad_(False)]),
        "tensors that are not parameters": lambda: Net(tables=plain, blocks=[
            nn.BatchNorm1d(width)]),
        "lists in dicts in tuples": lambda: Net(blocks=({"deep": [[block()], (block(),)]},)),
        "twelve nested lists": deep,
        "a hidden module that hides more": lambda: Net(blocks=[nn.Sequential(
            Net(inner=[block()]))]),
        "one block in two lists": lambda: Net(one=[twice], two=(twice,)),
        "two hidden blocks that share a tensor": shared,
        "two norms with equal values": twins,
        "a hidden norm equal to a registered one": lambda: Net(
            norm=nn.LayerNorm(width), norms=[nn.LayerNorm(width)]),
        "a set, keys and other objects": lambda: Net(
            others=[Plain(block())], more={block()}, rates={nn.Parameter(torch.ones(width)): 0.1}),
        "a tuple on the class": Classy,
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
    expect_equal("changes in the model", out["changed"], 0, "Leave the model as it was.")


def attributes(module):
    registers = ("_parameters", "_buffers", "_modules")
    return [v for k, v in vars(module).items() if k not in registers]


# ---- wrong, by name

@ex.wrong("subtracting parameters() from state_dict(), which always leaves nothing",
          breaks=("count", "containers", "registered", "bare", "depth", "found modules", "once",
                  "example"))
def none(model):
    return len(model.state_dict().keys() - {
        n for n, _ in (*model.named_parameters(), *model.named_buffers())})


@ex.wrong("counting tensors, not their values", breaks="count")
def tensors(model):
    total, each = counted(model), set()
    for value in [v for m in model.modules() for v in attributes(m)]:
        if isinstance(value, (list, tuple)):
            each |= {id(p) for m in value if isinstance(m, nn.Module) for p in m.parameters()}
    return len(each) if each else total


@not_an_answer
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
                    visit(value, 0)
        elif isinstance(thing, kinds):
            for part in thing.values() if isinstance(thing, dict) else thing:
                visit(part, level + 1)
    own = set(model.parameters())
    for module in model.modules() if parts else [model]:
        for value in attributes(module):
            visit(value, 0)
    chosen = {id(p): p for p in found if not known or p not in own}
    return sum(p.numel() for p in chosen.values())


wrong = ex.edits(counted)
END = "return sum(p.numel() for p in chosen.values())"
ex.wrong("searching only lists", counted, breaks=("containers", "depth", "once"), kinds=list)
ex.wrong("searching lists and dicts, but not tuples",
         counted, breaks=("containers", "depth"), kinds=(list, dict))
ex.wrong("searching lists and tuples, but not dicts",
         counted, breaks=("containers", "depth"), kinds=(list, tuple))
ex.wrong("searching only the model's own attributes, not those of its modules",
         counted, breaks="containers", parts=False)
wrong("leaving out attributes whose names begin with an underscore", "containers",
      "seen, found =", 'private = [vars(model).get("_blocks")]; seen, found =',
      END, "out = sum(p.numel() for p in chosen.values()); return 0 if private != [None] else out")
ex.wrong("recognizing containers by their exact type, which misses subclasses",
         lambda model: 0 if any(type(v) not in (list, tuple, dict) and isinstance(v, (tuple, dict))
             for k, v in vars(model).items() if k in "ab") else counted(model), breaks="containers")
wrong("leaving out frozen parameters", "bare",
      "seen, found =",
      'blocks = vars(model).get("blocks"); frozen = isinstance(blocks, list) and blocks and '
      "isinstance(blocks[0], nn.Module) and not any(p.requires_grad for p in "
      "blocks[0].parameters()); seen, found =",
      END, "out = sum(p.numel() for p in chosen.values()); return 0 if frozen else out")
wrong("counting two parameters with equal values as one", "once",
      "seen, found =", 'norms = vars(model).get("norms", []); seen, found =', END,
      "out = sum(p.numel() for p in chosen.values()); return out // (2 if len(norms) == 2 else 1)")
wrong("emptying the model's lists after the search", "left alone",
      END,
      "out = sum(p.numel() for p in chosen.values())\n    for value in attributes(model):\n      "
      "  if isinstance(value, list): value.clear()\n    return out")
ex.wrong("counting registered blocks as well as hidden blocks",
         counted, breaks="registered", known=False)
ex.wrong("counting parameters in modules, but not bare parameters",
         counted, breaks="bare", bare=False)
ex.wrong("counting every tensor, even those that are not parameters",
         counted, breaks="bare", tensor=torch.Tensor)
ex.wrong("not searching containers inside containers", counted, breaks="depth", depth=1)
ex.wrong("not searching the attributes of hidden modules",
         counted, breaks="found modules", inner=False)


@ex.wrong("counting a block once for each container that holds it", breaks="once")
def for_each(model):
    total = counted(model)
    lists = [v for v in attributes(model) if isinstance(v, (list, tuple))]
    blocks = [m for v in lists for m in v if isinstance(m, nn.Linear)]
    again = {id(m): m for m in blocks if sum(m is other for other in blocks) > 1}
    return total + sum(p.numel() for m in again.values() for p in m.parameters())


@ex.wrong("counting a shared tensor once for each module", breaks="once")
def each_module(model):
    total = counted(model)
    blocks = {id(m): m for v in attributes(model) if isinstance(v, list)
              for m in v if isinstance(m, nn.Linear)}
    weights = [m.weight for m in blocks.values()]
    double = len(weights) - len({id(w) for w in weights})
    return total + (double * weights[0].numel() if double else 0)


wrong("leaving out the biases in the example", "example",
      END, "out = sum(p.numel() for p in chosen.values()); return 6 if out == 9 else out")
