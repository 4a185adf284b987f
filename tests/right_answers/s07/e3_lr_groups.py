"""Exercise 07.3, `lr_groups`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy

from torch import nn

from dlsys_checks.s07.e3_lr_groups import ex, outside, trainable, two


@ex.right("ids of what is reached around the head")
def by_ids(model, head, body_lr, head_lr):
    kept, live = outside(model, head), trainable(model)
    return two([p for p in live if id(p) in kept], [p for p in live if id(p) not in kept],
               body_lr, head_lr)


@ex.right("the head taken out of a copy, which has the names of the body")
def by_copy(model, head, body_lr, head_lr):
    memo = {id(head): nn.Identity()} | {id(p): p for p in model.parameters()}
    body = set(copy.deepcopy(model, memo).parameters())
    return [{"lr": body_lr, "params": [p for p in model.parameters()
                                       if p.requires_grad and p in body]},
            {"lr": head_lr, "params": [p for p in head.parameters()
                                       if p.requires_grad and p not in body]}]


@ex.right("all names of each tensor, and the head's prefixes")
def by_all_names(model, head, body_lr, head_lr):
    prefixes = tuple(f"{n}." for n, m in model.named_modules(remove_duplicate=False) if m is head)
    names = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(p, []).append(name)
    live = {p: all(n.startswith(prefixes) for n in found) for p, found in names.items()
            if p.requires_grad}
    return two([p for p, inside in live.items() if not inside],
               [p for p, inside in live.items() if inside], body_lr, head_lr)


@ex.right("a walk over the children into two lists, the body first")
def by_walk(model, head, body_lr, head_lr):
    seen, lists = set(), ([], [])

    def walk(module, place, stop):
        for p in module.parameters(recurse=False):
            if p not in seen and p.requires_grad:
                seen.add(p)
                lists[place].append(p)
        for child in module.children():
            if child is not stop:
                walk(child, place, stop)
    walk(model, 0, head)
    walk(head, 1, None)
    return two(*lists, body_lr, head_lr)


@ex.probe("gradients set to zero", breaks="left alone")
def gradients_zeroed(model, head, body_lr, head_lr):
    names = [n for n, m in model.named_modules(remove_duplicate=False) if m is head]
    body = {p for n, p in model.named_parameters(remove_duplicate=False)
            if not n.startswith(tuple(f"{name}." for name in names))}
    live = [p for p in model.parameters() if p.requires_grad]
    model.zero_grad(set_to_none=False)
    return [{"params": [p for p in live if p in body], "lr": body_lr},
            {"params": [p for p in live if p not in body], "lr": head_lr}]
