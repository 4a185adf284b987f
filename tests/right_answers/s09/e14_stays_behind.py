"""Exercise 09.14, `stays_behind`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s09.e14_stays_behind import REGISTERS, ex


@ex.right("by recursion")
def recursive(model):
    own, found = {id(p) for p in model.parameters()}, []

    def visit(path, value):
        if isinstance(value, torch.Tensor):
            if id(value) not in own:
                found.append(path)
        elif isinstance(value, dict):
            for key, item in value.items():
                visit(f"{path}.{key}", item)
        elif isinstance(value, (list, tuple)):
            for k, item in enumerate(value):
                visit(f"{path}.{k}", item)
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key not in REGISTERS:
                visit(f"{name}.{key}" if name else key, value)
    return sorted(found)


@ex.right("level after level of containers")
def by_levels(model):
    own = {id(p) for p in model.parameters()}
    level = {f"{name}.{key}" if name else key: value for name, module in model.named_modules()
             for key, value in module.__dict__.items() if key not in REGISTERS}
    found = []
    while level:
        found += [path for path, value in level.items()
                  if isinstance(value, torch.Tensor) and id(value) not in own]
        tables = {path: value if isinstance(value, dict) else dict(enumerate(value))
                  for path, value in level.items() if isinstance(value, (dict, list, tuple))}
        level = {f"{path}.{key}": item for path, table in tables.items()
                 for key, item in table.items()}
    return sorted(found)


@ex.right("a list of things to look at")
def by_stack(model):
    own = list(model.parameters())
    todo = [(f"{name}.{key}".lstrip(".") if name else key, value)
            for name, module in model.named_modules() for key, value in vars(module).items()
            if key not in REGISTERS]
    found = []
    while todo:
        path, value = todo.pop()
        if torch.is_tensor(value):
            found += [path] if not any(value is p for p in own) else []
        elif isinstance(value, dict):
            todo += [(f"{path}.{k}", v) for k, v in value.items()]
        elif isinstance(value, (tuple, list)):
            todo += [(f"{path}.{k}", v) for k, v in enumerate(value)]
    return sorted(found)


@ex.right("module after module, through children")
def by_children(model):
    seen, own, found = set(), set(model.parameters()), []

    def inside(value):
        if isinstance(value, torch.Tensor):
            return [] if value in own else [""]
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(
            value, (list, tuple)) else []
        return [f".{key}{rest}" for key, item in pairs for rest in inside(item)]

    def walk(module, prefix):
        if module in seen:
            return
        seen.add(module)
        for key in set(vars(module)) - {*REGISTERS}:
            found.extend(prefix + key + rest for rest in inside(vars(module)[key]))
        for name, child in module.named_children():
            walk(child, f"{prefix}{name}.")
    walk(model, "")
    return sorted(found)


@ex.probe("counting its calls in the model's buffers", breaks="left alone")
def counting(model):
    for buffer in model.buffers():
        buffer += 1
    return by_children(model)


ex.equivalent("if isinstance(value, list | tuple): -> if isinstance(value, tuple | list):",
              "either type, in either order")
ex.equivalent("for key, value in vars(module).items(): -> "
              "for key, value in list(vars(module).items())[1:]:",
              "a module's first attribute is its mode, training")
