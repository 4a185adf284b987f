"""Exercise 10.5, `load_adapter`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s10.e5_load_adapter import ex


@ex.right("problems gathered first")
def gathered(model, file):
    mine = {path: p for path, p in model.named_parameters() if path in ("A", "B")
            or path.endswith((".A", ".B"))}
    problems = [f"{path} is missing" for path in mine if path not in file]
    problems += [f"{path} is no adapter" for path in file if path not in mine]
    problems += [f"{path}: {tuple(t.shape)}" for path, t in file.items()
                 if path in mine and list(mine[path].shape) != list(t.shape)]
    if all(not torch.count_nonzero(t) for path, t in file.items() if path[-1:] == "B"):
        problems.append("every B is zero")
    if problems:
        raise ValueError("; ".join(problems))
    for path, p in mine.items():
        p.data.copy_(file[path])


@ex.right("load_state_dict on the names that fit, after a look")
def through_state_dict(model, file):
    own = {path: p for path, p in model.named_parameters()
           if path.split(".")[-1] == "A" or path.split(".")[-1] == "B"}
    if set(own) != set(file) or any(own[k].shape != file[k].shape for k in own):
        raise ValueError("names or shapes do not fit")
    if sum(float(t.double().abs().max()) for k, t in file.items() if k.split(".")[-1] == "B") == 0:
        raise ValueError("B is zero")
    model.load_state_dict({k: t.clone() for k, t in file.items()}, strict=False)


@ex.right("a walk over the modules")
def by_walk(model, file):
    left, todo, seen = dict(file), [], set()
    for path, module in model.named_modules():
        for key, p in module.named_parameters(recurse=False):
            if key in ("A", "B") and p not in seen:
                name = f"{path}.{key}" if path else key
                if name not in left or left[name].shape != p.shape:
                    raise ValueError(name)
                seen.add(p)
                todo.append((key, p, left.pop(name)))
    if left or not any(key == "B" and bool((t != 0).any()) for key, p, t in todo):
        raise ValueError("other names, or a B of zeros")
    for _, p, tensor in todo:
        p.data = tensor.to(p.dtype).clone()


@ex.right("written, and written back where something was wrong")
@torch.no_grad()
def written_back(model, file):
    mine = {k: p for k, p in model.named_parameters() if k.split(".")[-1] in {"A", "B"}}
    old = {k: p.clone() for k, p in mine.items()}
    try:
        if len(mine) != len(file):
            raise ValueError("number of tensors")
        for k, p in mine.items():
            if k not in file or file[k].shape != p.shape:
                raise ValueError(k)
            p.copy_(file[k])
        if not any(t.any() for k, t in file.items() if k.split(".")[-1] == "B"):
            raise ValueError("zeros")
    except ValueError:
        for k, p in mine.items():
            p.copy_(old[k])
        raise


PART = "path.split('.')[-1] == 'B'"
MINE = "mine = {path: p for path, p in model.named_parameters() if path.split('.')[-1] in "
ex.equivalent(f"{MINE}('A', 'B')}} -> {MINE}('B', 'A')}}", "a tuple is searched, in any order")
LAST = "if not any((tensor.any() for path, tensor in file.items() if {})):"


for other in ("path.split('.')[-1] >= 'B'", "path[-1] == 'B'"):
    ex.equivalent(f"{LAST.format(PART)} -> {LAST.format(other)}",
                  "Here the last part is A or B, and nothing else.")
