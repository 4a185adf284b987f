"""Exercise 12.1, `first_nan_module`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy

import torch

from dlsys_checks.s12.e1_first_nan_module import ex, fine, watched


@ex.right("hooks before and after each call, on a copy")
@torch.no_grad()
def both_hooks(model, x):
    twin, found, stack = copy.deepcopy(model), [], []
    names = {module: name for name, module in reversed(list(twin.named_modules()))}
    for module in names:
        module.register_forward_pre_hook(lambda m, a, k: stack.append(fine((a, k))),
                                         with_kwargs=True)
        module.register_forward_hook(
            lambda m, a, out: found.append(names[m]) if stack.pop() and not fine(out) else None)
    twin(x)
    return found[0] if found else None


@ex.right("the model itself, its buffers put back and the hooks taken away")
def put_back(model, x):
    held = {n: b.clone() for n, b in model.named_buffers()}
    found, handles = [], []
    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(
            lambda m, a, k, out, name=name:
                found.append(name) if fine((a, k)) and not fine(out) else None,
            with_kwargs=True))
    try:
        with torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
        for n, b in model.named_buffers():
            b.copy_(held[n])
    return next(iter(found), None)


@ex.right("forward replaced in each module of a copy")
def replaced(model, x):
    twin, found = copy.deepcopy(model), []

    def wrapped(name, forward):
        def call(*args, **kwargs):
            clean = fine((args, kwargs))
            out = forward(*args, **kwargs)
            if clean and not fine(out):
                found.append(name)
            return out
        return call
    for name, module in twin.named_modules():
        module.forward = wrapped(name, module.forward)
    with torch.no_grad():
        twin(x)
    found.append(None)
    return found[0]


@ex.right("a hook for all modules of torch")
def for_all(model, x):
    twin, found = copy.deepcopy(model), []
    names = {id(m): n for n, m in twin.named_modules()}

    def look(module, args, kwargs, out):
        if id(module) in names and not fine(out) and fine([args, kwargs]):
            found.append(names[id(module)])
    handle = torch.nn.modules.module.register_module_forward_hook(look, with_kwargs=True)
    with torch.no_grad():
        twin(x)
    handle.remove()
    return (found or [None])[0]


ex.equivalent("if isinstance(value, list | tuple): -> if isinstance(value, tuple | list):",
              "the same two types")
ex.equivalent("return not torch.is_tensor(value) or bool(value.isfinite().all()) -> "
              "return not torch.is_tensor(value) or value.isfinite().all()",
              "a tensor of one truth value is asked for its truth")
ex.equivalent("with torch.no_grad(): -> twin(x)", "only memory: no gradient is asked of the copy")
ex.probe("the example looked up, as a number",
         lambda model, x: 0 if x.tolist() == [[1.0, -1.0]] else watched(model, x),
         says="type of the name", breaks="example")
