"""Exercise 10.4, `passport`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s10.e4_passport import by_modules, ex

ex.right("one walk over the modules")(by_modules)


@ex.right("by the paths alone")
def by_paths(model):
    params = dict(model.named_parameters(remove_duplicate=False))
    name = lambda path, key: f"{path}.{key}" if path else key  # noqa: E731
    lora = [h for h, _ in model.named_modules() if name(h, "A") in params
            and name(h, "B") in params]
    inside = [name(h, key) for h in lora for key in "AB"]
    order = [path for path, _ in model.named_parameters()]
    return {"idle": [h for h in lora if float(params[name(h, "B")].detach().abs().max()) == 0],
            "frozen": [k for k in order if k in inside and not params[k].requires_grad],
            "other": [k for k in order if k not in inside and params[k].requires_grad],
            "trainable": sum(params[k].numel() for k in order if params[k].requires_grad),
            "layers": lora}


@ex.right("with _parameters")
def by_private(model):
    lora = {path: m for path, m in model.named_modules()
            if m._parameters.get("A") is not None and m._parameters.get("B") is not None}
    mine = [p for m in lora.values() for p in (m.A, m.B)]
    found = {"layers": list(lora), "trainable": 0, "other": [], "frozen": [], "idle": [
        path for path, m in lora.items() if torch.count_nonzero(m.B).item() == 0]}
    for path, p in model.named_parameters():
        ours = any(p is q for q in mine)
        if p.requires_grad:
            found["trainable"] += p.numel()
        if p.requires_grad != ours:
            found["other" if p.requires_grad else "frozen"].append(path)
    return found


@ex.right("in two passes, with sets")
def in_two_passes(model):
    ends = {}
    for path, p in model.named_parameters(remove_duplicate=False):
        holder, _, key = path.rpartition(".")
        ends.setdefault(holder, {})[key] = p
    lora = [path for path, _ in model.named_modules() if {"A", "B"} <= set(ends.get(path, ()))]
    own = {f"{h}.{k}".lstrip(".") for h in lora for k in ("A", "B")}
    live = {k for k, p in model.named_parameters() if p.requires_grad}
    order = [k for k, _ in model.named_parameters()]
    return {"layers": lora, "other": [k for k in order if k in live - own],
            "frozen": [k for k in order if k in own - live],
            "trainable": sum(len(p.reshape(-1)) for p in model.parameters() if p.requires_grad),
            "idle": [h for h in lora if torch.equal(ends[h]["B"], torch.zeros_like(ends[h]["B"]))]}


@ex.probe("counting its calls in the model's buffers", breaks="left alone")
def counting(model):
    for buffer in model.buffers():
        buffer += 1
    return by_private(model)


OWN = ("own = dict(module.named_parameters(recurse=False)) -> "
       "own = dict(module.named_parameters({}))")
ex.equivalent(OWN.format(""), "A name without a dot is the module's own.")
ex.equivalent(OWN.format("recurse=True"), "A name without a dot is the module's own.")
ex.equivalent("inside.update((id(own['A']), id(own['B']))) -> "
              "inside.update((id(own['B']), id(own['A'])))", "a set has no order")
