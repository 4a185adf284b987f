"""Exercise 10.5, `load_adapter`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import re

import torch

from dlsys_checks.s10.e5_load_adapter import ex

ENDS = (["lora_A", "default", "weight"], ["lora_B", "default", "weight"])


@ex.right("problems gathered first")
def gathered(model, file):
    mine = {re.sub(r"default\.weight$", "weight", path): p for path, p in model.named_parameters()
            if re.search(r"(^|\.)lora_[AB]\.default\.weight$", path)}
    problems = [f"{path} is missing" for path in mine if path not in file]
    problems += [f"{path} is no adapter" for path in file if path not in mine]
    problems += [f"{path}: {tuple(t.shape)}" for path, t in file.items()
                 if path in mine and list(mine[path].shape) != list(t.shape)]
    if all(not torch.count_nonzero(t) for path, t in file.items() if "lora_B" in path):
        problems.append("every B is zero")
    if problems:
        raise ValueError("; ".join(problems))
    for path, p in mine.items():
        p.data.copy_(file[path])


@ex.right("load_state_dict on the names that fit, after a look")
def through_state_dict(model, file):
    own = {path: p for path, p in model.named_parameters() if path.split(".")[-3:] in ENDS}
    named = {f"{path.rpartition('.')[0]}.default.weight": t for path, t in file.items()
             if path.endswith(".weight")}
    if set(own) != set(named) or len(named) != len(file) or any(
            own[k].shape != named[k].shape for k in own):
        raise ValueError("names or shapes do not fit")
    if sum(float(t.double().abs().max()) for k, t in named.items() if ".lora_B." in f".{k}") == 0:
        raise ValueError("B is zero")
    model.load_state_dict({k: t.clone() for k, t in named.items()}, strict=False)


@ex.right("a walk over the modules")
def by_walk(model, file):
    left, todo, seen = dict(file), [], set()
    for path, module in model.named_modules():
        parent, _, adapter = path.rpartition(".")
        letter = parent.rpartition(".")[2]
        p = module._parameters.get("weight")
        if adapter == "default" and letter in ("lora_A", "lora_B") and p is not None:
            if p in seen:
                continue
            name = f"{parent}.weight"
            if name not in left or left[name].shape != p.shape:
                raise ValueError(name)
            seen.add(p)
            todo.append((letter, p, left.pop(name)))
    if left or not any(letter == "lora_B" and bool((t != 0).any()) for letter, p, t in todo):
        raise ValueError("other names, or a B of zeros")
    for _, p, tensor in todo:
        p.data = tensor.to(p.dtype).clone()


@ex.right("written, and written back where something was wrong")
@torch.no_grad()
def written_back(model, file):
    mine = {}
    for k, p in model.named_parameters():
        *layer, letter, adapter, last = ["", "", *k.split(".")]
        if letter in ("lora_A", "lora_B") and adapter == "default" and last == "weight":
            mine[".".join([*layer[2:], letter, last])] = p
    old = {k: p.clone() for k, p in mine.items()}
    try:
        if len(mine) != len(file):
            raise ValueError("number of tensors")
        for k, p in mine.items():
            if k not in file or file[k].shape != p.shape:
                raise ValueError(k)
            p.copy_(file[k])
        if not any(t.any() for k, t in file.items() if k.split(".")[-2] == "lora_B"):
            raise ValueError("zeros")
    except ValueError:
        for k, p in mine.items():
            p.copy_(old[k])
        raise


A, B = "'lora_A.default.weight'", "'lora_B.default.weight'"
ex.equivalent(f"ends = ({A}, {B}) -> ends = ({B}, {A})", "a tuple is searched, in any order")
