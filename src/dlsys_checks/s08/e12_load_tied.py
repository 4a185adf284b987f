"""Exercise 08.12, `load_tied`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("08.12", "load_tied", kept=("groups", "values", "frozen", "copied", "added"),
              seen=("values", "ties", "modules", "state", "frozen", "buffers", "meta"))

ex.promise_table("""
assign   | Load a state with assign=True. | the memory of a tensor
ties     | Keep every tie. Names that share a parameter before the call share one afterwards. |
           names of one parameter
some     | state may have only some of a parameter's names. | case one name of two; the last name of
           three; a tie at the end; one name on the meta device
equal    | If state has several names of a parameter, their values have to be equal. | case two
           values; a third value; a second value of three
model    | Args: model: any module. A parameter can have several names. | case three names; two
           ties; deep in the model; one module twice; no tie; a tied bias
state    | state: tensors by name. It has at least one name of every parameter, and all buffers. |
           value of; case with a buffer
left     | state is left unchanged. | the state
error    | Raises: ValueError: names of one parameter have different values in state. | the error;
           raised KeyError
as_was   | The model is then left as it was. | the model after the error
memory   | Every parameter uses the memory of a tensor in state. | the memory of a tensor
frozen   | Every parameter keeps its requires_grad. | requires_grad of
meta     | The model may be on the meta device. | case on the meta device; one name on the meta
           device
""")


@ex.cases
def cases(g):
    def one(name, shapes, ties, *, leave=(), other=(), alike=(), frozen=(), buffers=(), meta=False,
            modules=()):
        # ties: (name, the name that it shares with); modules: the same of whole modules.
        values = {key: torch.randn(shape, generator=g) for key, shape in shapes.items()}
        state = {key: value.clone() for key, value in values.items()}
        for key, like in alike:
            state[key] = state[like].clone()
        pairs = [*ties] + [(f"{new}.{key.removeprefix(old + '.')}", key) for new, old in modules
                           for key in values if key.startswith(old + ".")]
        for key, shared in pairs:
            state[key] = values[shared].clone()
        for key in leave:
            del state[key]
        for key in other:
            state[key] = state[key] + 0.5
        return name, {"values": values, "ties": [list(pair) for pair in ties],
                      "modules": [list(pair) for pair in modules], "state": state,
                      "frozen": list(frozen), "buffers": list(buffers), "meta": meta}

    two = {"token.weight": (5, 3), "head.bias": (5,), "place.weight": (4, 3)}
    tie = [("head.weight", "token.weight")]
    both = two | {"norm.weight": (3,)}
    return [one("two names", two, tie), one("no tie", two, []),
            one("three names", two, [*tie, ("other.weight", "token.weight")]),
            one("two ties", both, [*tie, ("last.weight", "norm.weight")]),
            one("a tie at the end", both, [("last.weight", "norm.weight")],
                leave=["norm.weight"]),
            one("equal values, no tie", both | {"last.weight": (3,)}, [],
                alike=[("last.weight", "norm.weight")]),
            one("deep in the model", {"body.first.token.weight": (5, 3), "body.bias": (2,)},
                [("out.head.linear.weight", "body.first.token.weight")]),
            one("a tied bias", both, [("norm.bias", "norm.weight"), ("last.bias", "head.bias")]),
            one("one module twice", {"a.weight": (3, 3), "a.bias": (3,)}, [],
                modules=[("b", "a")]),
            one("one name of two", two, tie, leave=["token.weight"]),
            one("the last name of three", two, [*tie, ("other.weight", "token.weight")],
                leave=["token.weight", "head.weight"]),
            one("two values", two, tie, other=["head.weight"]),
            one("a second value of three", two, [*tie, ("other.weight", "token.weight")],
                other=["head.weight"]),
            one("a third value", two, [*tie, ("other.weight", "token.weight")],
                other=["other.weight"]),
            one("a frozen tie", both, tie, frozen=["token.weight", "norm.weight"]),
            one("with a buffer", two | {"norm.mean": (3,)}, tie, buffers=["norm.mean"]),
            one("on the meta device", two, tie, meta=True),
            one("one name on the meta device", two, tie, leave=["head.weight"], meta=True)]


@ex.act
def act(fn, values, ties, modules, state, frozen, buffers, meta):
    model = nn.Module()

    def owner(name):
        module = model
        for part in name.split(".")[:-1]:
            if part not in dict(module.named_children()):
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        return module, name.split(".")[-1]

    for name, value in values.items():
        module, last = owner(name)
        empty = torch.zeros_like(value, device="meta" if meta else "cpu")
        if name in buffers:
            module.register_buffer(last, empty)
        else:
            module.register_parameter(last, nn.Parameter(empty, name not in frozen))
    for name, shared in ties:
        module, last = owner(name)
        module.register_parameter(last, model.get_parameter(shared))
    for name, shared in modules:
        model.add_module(name, model.get_submodule(shared))

    given = {name: value.clone() for name, value in state.items()}
    kept = dict(given)
    error = ""
    try:
        fn(model, given)
    except ValueError:
        error = "ValueError"
    named = dict(model.named_parameters(remove_duplicate=False))
    groups = {}
    for name, p in named.items():
        groups.setdefault(id(p), []).append(name)
    pointers = [value.data_ptr() for value in given.values()]
    every = {**named, **dict(model.named_buffers(remove_duplicate=False))}
    return {"error": error, "groups": sorted(sorted(group) for group in groups.values()),
            "values": {name: value.detach().clone() if value.device.type == "cpu" else "meta"
                       for name, value in every.items()},
            "frozen": sorted(name for name, p in named.items() if not p.requires_grad),
            "copied": sorted(name for name, p in named.items() if p.data_ptr() not in pointers),
            "added": sorted(set(given) ^ set(kept)),
            "moved": sum(int((given[name] != state[name]).sum()) for name in kept
                         if name in given) + sum(given.get(name) is not value
                                                 for name, value in kept.items())}


@ex.law
def law(out, values, ties, modules, state, frozen, buffers, meta):
    expect_parts(out, "error", "groups", "values", "frozen", "copied", "added", "moved")
    pairs = [*map(tuple, ties)] + [(f"{new}.{key.removeprefix(old + '.')}", key)
                                   for new, old in modules for key in values
                                   if key.startswith(old + ".")]
    names = {key: [key] + [new for new, shared in pairs if shared == key] for key in values}
    differ = any(not torch.equal(state[one], state[other]) for group in names.values()
                 for one in group for other in group if one in state and other in state)
    expect_equal("names in the state that came or went", out["added"], [], "Work on a copy of it.")
    expect_equal("values changed in the state", out["moved"], 0, "Work on a copy of it.")
    expect_equal("the error", out["error"], "ValueError" if differ else "",
                 "Compare the values of all names of one parameter.")
    for name, group in names.items():
        given = next(key for key in group if key in state)
        for key in group:
            if differ:
                expected = torch.zeros_like(values[name])
                expect_equal(f"the model after the error: {key}", out["values"][key], expected)
            else:
                expect_equal(f"value of {key}", out["values"].get(key), state[given])
    wanted = sorted(sorted(group) for name, group in names.items() if name not in buffers)
    expect_equal("names of one parameter", out["groups"], wanted,
                 "Each inner list has the names of one parameter.")
    expect_equal("requires_grad of the model: names of the parameters without it", out["frozen"],
                 sorted(key for name in frozen for key in names[name]))
    if not differ:
        expect_equal("parameters that do not use the memory of a tensor in state", out["copied"],
                     [], "assign=True takes the tensors as they are.")


# ---- wrong, by name

@not_an_answer
def made(model, state):
    names = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(p, []).append(name)
    full = dict(state)
    for group in names.values():
        given = [name for name in group if name in state]
        first = state[given[0]]
        if not all(torch.equal(state[name], first) for name in given):
            raise ValueError(f"{group} have different values.")
        for name in group:
            full[name] = first
    model.load_state_dict(full, assign=True)
    for first, *others in names.values():
        for name in others:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, model.get_parameter(first))


wrong = ex.edits(made)
LOAD = "model.load_state_dict(full, assign=True)"
TIE = "setattr(model.get_submodule(owner), last, model.get_parameter(first))"
TEST = "not all(torch.equal(state[name], first) for name in given)"
# https://github.com/pytorch/pytorch/issues/188346
wrong("loading with assign=True and doing nothing else", ("ties", "some"), TIE, "pass",
      says="names of one parameter")
wrong("calling to_empty() and then loading copies, without assign=True", ("ties", "assign"),
      LOAD, "model.to_empty(device='cpu'); model.load_state_dict(full)", TIE, "pass",
      says="memory")
wrong("loading without assign=True", ("assign", "meta"), LOAD,
      "[p.data.copy_(full[name]) for name, p in model.named_parameters()]; "
      "[b.copy_(full[name]) for name, b in model.named_buffers()]", says="memory")
wrong("using assign=True only for a model on the meta device", "assign", LOAD,
      "model.load_state_dict(full, assign=next(model.parameters()).is_meta)", says="memory")
wrong("leaving a model on the meta device as it is", "meta", LOAD,
      LOAD + " if not next(model.parameters()).is_meta else None", says="value of")
wrong("tying only the second of several names",
      "ties", "for name in others:", "for name in others[:1]:",
      says="names of one parameter")
wrong("tying only names at the top of the model", "model", "            setattr(",
      "            if owner.count('.') == 0: setattr(", says="names of one parameter")
wrong("tying only attributes named 'weight'", "model", "            setattr(",
      "            if last == 'weight': setattr(", says="names of one parameter")
wrong("tying only the first parameter", "ties", "for first, *others in names.values():",
      "for first, *others in list(names.values())[:1]:", says="names of one parameter")
wrong("requiring every name in the state",
      "some", "given = [name for name in group if name in state]",
      "given = group", says="raised KeyError")
wrong("never comparing the values", "equal", TEST, "False", says="the error")
wrong("comparing the values of only the first two names", "equal", TEST,
      "not all(torch.equal(state[name], first) for name in given[:2])", says="the error")
wrong("raising a KeyError instead of a ValueError", "error", "raise ValueError(", "raise KeyError(",
      says="raised KeyError")
wrong("comparing the values only after loading them", "as_was", "        first = state[given[0]]",
      "        first = state[given[0]]\n        model.load_state_dict(full, strict=False, "
      "assign=True)", says="the model after the error")
wrong("adding the missing names to the given state", "left", "full = dict(state)", "full = state",
      says="the state")
wrong("emptying the given state", "left", LOAD, LOAD + "; state.clear()", says="came or went")
wrong("making every parameter trainable", "frozen", LOAD,
      LOAD + "; model.requires_grad_(True)", says="requires_grad of")
wrong("freezing every parameter", "frozen", LOAD, LOAD + "; model.requires_grad_(False)",
      says="requires_grad of")
wrong("loading clones of the tensors in state",
      "memory", "full[name] = first", "full[name] = first.clone()",
      says="memory")
wrong("loading the model's own buffers instead of those in state", "state", "full = dict(state)",
      "full = dict(state) | dict(model.named_buffers())", says="value of")
wrong("setting the given state to zeros",
      "left", LOAD, LOAD + "; [v.zero_() for v in state.values()]",
      says="the state")
wrong("dividing tied values by their number of names", ("state", "memory"), "full[name] = first",
      "full[name] = first / len(group)", says="value of")


@ex.wrong("tying all names with equal values", breaks="ties", says="names of one parameter")
def by_value(model, state):
    made(model, state)
    named = [*model.named_parameters(remove_duplicate=False)]
    for index, (name, p) in enumerate(named):
        for first, other in named[:index]:
            if torch.equal(p, other):
                owner, _, last = name.rpartition(".")
                setattr(model.get_submodule(owner), last, model.get_parameter(first))
