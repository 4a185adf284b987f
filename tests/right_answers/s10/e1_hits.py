"""Exercise 10.1, `hits`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

from torch import nn

from dlsys_checks.s10.e1_hits import ex


def refuse(found):
    missing = [name for name, paths in found.items() if not paths]
    if missing:
        raise ValueError(f"names: {missing} hit nothing")
    return found


@ex.right("last parts compared as lists")
def by_parts(model, names):
    found = {name: [] for name in names}
    for path, module in model.named_modules():
        for name in names:
            parts = name.split(".")
            if isinstance(module, nn.Linear) and path.split(".")[-len(parts):] == parts:
                found[name].append(path)
    return refuse(found)


@ex.right("a dot put in front of both")
def with_dots(model, names):
    linears = [path for path, m in model.named_modules() if isinstance(m, nn.Linear)]
    return refuse({name: [p for p in linears if f".{p}".endswith(f".{name}")] for name in names})


@ex.right("a regular expression, escaped")
def by_regex(model, names):
    import re
    found = {}
    for name in names:
        pattern = re.compile(rf"(?:.*\.)?{re.escape(name)}")
        found[name] = [path for path, module in model.named_modules()
                       if isinstance(module, nn.Linear) and pattern.fullmatch(path)]
    return refuse(found)


@ex.right("a walk over the children")
def by_walk(model, names):
    seen, linears = set(), []

    def walk(module, path):
        if id(module) in seen:
            return
        seen.add(id(module))
        if issubclass(type(module), nn.Linear):
            linears.append(path)
        for key, child in module._modules.items():
            walk(child, f"{path}.{key}" if path else key)
    walk(model, "")
    return refuse({name: [p for p in linears if p == name or p.removesuffix(f".{name}") != p]
                   for name in names})


@ex.right("a dict that makes its lists itself")
def by_default(model, names):
    from collections import defaultdict
    found = defaultdict(list)
    for name in names:
        for path, module in model.named_modules():
            if isinstance(module, nn.Linear) and path.rpartition(name)[1:] == (name, "") and (
                    path.rpartition(name)[0][-1:] in ("", ".")):
                found[name].append(path)
    missing = set(names) - set(found)
    if missing:
        raise ValueError(f"{len(missing)} of {len(names)} hit nothing: {', '.join(missing)}")
    return found


ex.equivalent("for path, module in model.named_modules(): -> "
              "for path, module in list(model.named_modules())[1:]:",
              "The path of the root is empty, and no name is.")
