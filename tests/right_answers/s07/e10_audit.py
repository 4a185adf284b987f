"""Exercise 07.10, `audit`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

from torch import nn

from dlsys_checks.s07.e10_audit import audited, ex, held_by


@ex.right("sets of tensors")
def by_sets(model, optimizer):
    held, own = set(held_by(optimizer)), set(model.parameters())
    names = {p: n for n, p in reversed(list(model.named_parameters()))}
    return {"missing": sorted(names[p] for p in own - held if p.requires_grad),
            "ghosts": len(held - own),
            "frozen": sorted(names[p] for p in own & held if not p.requires_grad)}


@ex.right("identity asked tensor by tensor")
def by_identity(model, optimizer):
    report = {"missing": [], "ghosts": 0, "frozen": []}
    held = held_by(optimizer)
    for name, p in sorted(model.named_parameters()):
        inside = any(p is q for q in held)
        if p.requires_grad and not inside:
            report["missing"].append(name)
        elif inside and not p.requires_grad:
            report["frozen"].append(name)
    report["ghosts"] = len([q for q in held if not any(q is p for p in model.parameters())])
    return report


@ex.right("names crossed off a list")
def crossed_off(model, optimizer):
    left = {id(p): (n, p.requires_grad) for n, p in model.named_parameters()}
    ghosts, frozen = 0, []
    for p in held_by(optimizer):
        name, live = left.pop(id(p), ("", True))
        ghosts += not name
        frozen += [] if live else [name]
    return {"ghosts": ghosts, "frozen": sorted(frozen),
            "missing": sorted(n for n, live in left.values() if live)}


@ex.right("a walk over modules")
def by_modules(model, optimizer):
    held, seen = {id(p) for p in held_by(optimizer)}, {}
    for path, module in model.named_modules():
        for name, p in module.named_parameters(recurse=False):
            seen.setdefault(id(p), (f"{path}.{name}".lstrip("."), p.requires_grad))
    return {"missing": sorted(n for k, (n, live) in seen.items() if live and k not in held),
            "ghosts": len(held - seen.keys()),
            "frozen": sorted(n for k, (n, live) in seen.items() if k in held and not live)}


@ex.probe("the example, with one of its numbers looked up wrong", says="ghosts", breaks="example")
def looked_up(model, optimizer):
    report = audited(model, optimizer)
    wide = isinstance(model, nn.Sequential) and getattr(model[-1], "in_features", 0) == 16
    return {**report, "ghosts": report["ghosts"] - 1} if wide else report


def ghosts(model, optimizer):
    return {p for g in optimizer.param_groups for p in g["params"]} - set(model.parameters())


@ex.probe("the ghosts frozen", breaks="left alone")
def ghosts_frozen(model, optimizer):
    for p in ghosts(model, optimizer):
        p.requires_grad_(False)
    return audited(model, optimizer)


@ex.probe("gradients of the ghosts dropped", breaks="left alone")
def gradients_of_ghosts_dropped(model, optimizer):
    for p in ghosts(model, optimizer):
        p.grad = None
    return audited(model, optimizer)


@ex.probe("buffers taken for parameters", breaks="ghosts")
def buffers_taken_for_parameters(model, optimizer):
    own = {*model.parameters(), *model.buffers()}
    return {**audited(model, optimizer), "ghosts": len(ghosts(model, optimizer) - own)}
