"""Exercise 08.12, `load_tied`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.s08.e12_load_tied import ex

for mutant in (
        "full |= dict.fromkeys(group, values[0]) -> full |= dict.fromkeys(group, values[-1])",
        "if not all((torch.equal(value, values[0]) for value in values)): -> if not all("
        "(torch.equal(value, values[-1]) for value in values)):",
        "if not all((torch.equal(value, values[0]) for value in values)): -> if not all("
        "(torch.equal(value, values[0]) for value in list(values)[1:])):",
        "if not all((torch.equal(value, values[0]) for value in values)): -> if not all("
        "(torch.equal(values[0], value) for value in values)):"):
    ex.equivalent(mutant, "If all values are equal, it does not matter which one the others are "
                  "compared with, or which one is used.")


@ex.right("module by module, in a dict of what was there")
def by_modules(model, state):
    seen = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for last, p in module._parameters.items():
            if p is not None:
                name = f"{prefix}.{last}" if prefix else last
                seen.setdefault(id(p), (p, [], []))[1].append(name)
                seen[id(p)][2].append((module, last))
    new = {}
    for key, (p, names, _) in seen.items():
        given = [state[name] for name in names if name in state]
        if any(not torch.equal(given[0], value) for value in given[1:]):
            raise ValueError(names)
        new[key] = nn.Parameter(given[0], requires_grad=p.requires_grad)
    for key, (_, _, places) in seen.items():
        for module, last in places:
            module._parameters[last] = new[key]
    for name, _ in list(model.named_buffers(remove_duplicate=False)):
        prefix, _, last = name.rpartition(".")
        model.get_submodule(prefix)._buffers[last] = state[name]


@ex.right("one name of each is loaded, the others follow")
def by_first(model, state):
    every = list(model.named_parameters(remove_duplicate=False))
    first = {}
    for name, p in every:
        first.setdefault(id(p), name)
    full = {}
    for name, p in every:
        if name in state:
            mine = full.setdefault(first[id(p)], state[name])
            if not torch.equal(mine, state[name]):
                raise ValueError(name)
    kept = [(name, first[id(p)]) for name, p in every]
    full |= {name: state[name] for name, _ in model.named_buffers(remove_duplicate=False)}
    model.load_state_dict(full, strict=False, assign=True)
    for name, owner in kept:
        prefix, _, last = name.rpartition(".")
        setattr(model.get_submodule(prefix), last, model.get_parameter(owner))


@ex.right("by pairs of names")
def by_pairs(model, state):
    named = dict(model.named_parameters(remove_duplicate=False))
    same = {a: [b for b in named if named[a] is named[b]] for a in named}
    for a in named:
        for b in same[a]:
            if a in state and b in state and not bool((state[a] == state[b]).all()):
                raise ValueError(f"{a} and {b}")
    value = {a: next(state[b] for b in same[a] if b in state) for a in named}
    model.load_state_dict({**state, **value}, assign=True)
    for a in named:
        owner = model
        *path, last = same[a][0].split(".")
        for part in path:
            owner = getattr(owner, part)
        p = getattr(owner, last)
        for b in same[a][1:]:
            other = model
            *path, name = b.split(".")
            for part in path:
                other = getattr(other, part)
            setattr(other, name, p)


@ex.right("with the parameters' own assign")
def by_register(model, state):
    groups = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(p), [p]).append(name)
    ready = []
    for p, *names in groups.values():
        given = [name for name in names if name in state]
        for name in given:
            if (state[name] != state[given[0]]).any():
                raise ValueError(names)
        ready.append((nn.Parameter(state[given[0]].detach(), p.requires_grad), names))
    for p, names in ready:
        for name in names:
            prefix, _, last = name.rpartition(".")
            model.get_submodule(prefix).register_parameter(last, p)
    for name, _ in [*model.named_buffers(remove_duplicate=False)]:
        prefix, _, last = name.rpartition(".")
        model.get_submodule(prefix).register_buffer(last, state[name])
