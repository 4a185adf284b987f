"""Exercise 07.8, `hidden_values`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

from torch import nn

from dlsys_checks.s07.e8_hidden_values import attributes, ex


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


def reached(thing):
    if isinstance(thing, nn.Parameter):
        return {thing}
    parts = vars(thing) if isinstance(thing, nn.Module) else thing
    parts = parts.values() if isinstance(parts, dict) else parts
    return set().union(*map(reached, parts)) if isinstance(
        thing, (nn.Module, dict, list, tuple)) else set()


def hidden(model):
    return reached(model) - set(model.parameters())


@ex.probe("gradients of the hidden dropped", breaks="left alone")
def hidden_gradients_dropped(model):
    for p in hidden(model):
        p.grad = None
    return sum(p.numel() for p in hidden(model))


@ex.probe("all gradients dropped", breaks="left alone")
def all_gradients_dropped(model):
    model.zero_grad()
    return sum(p.numel() for p in hidden(model))


@ex.probe("the hidden thawed", breaks="left alone")
def hidden_thawed(model):
    for p in hidden(model):
        p.requires_grad_(True)
    return sum(p.numel() for p in hidden(model))


@ex.probe("the hidden frozen", breaks="left alone")
def hidden_frozen(model):
    for p in hidden(model):
        p.requires_grad_(False)
    return sum(p.numel() for p in hidden(model))


@ex.probe("a mark left on each tensor", breaks="left alone")
def all_tensors_marked(model):
    for p in reached(model):
        p.counted = True
    return sum(p.numel() for p in hidden(model))


@ex.probe("frozen ones counted as hidden", breaks="registered")
def frozen_ones_never_registered(model):
    held = {v for m in model.modules() for k, v in vars(m).items() if k[0] != "_"
            for v in reached(v if isinstance(v, (list, tuple, dict)) else [])}
    frozen = {p for p in model.parameters() if not p.requires_grad}
    return sum(p.numel() for p in hidden(model) | (held & frozen))
