"""Exercise 07.6, `layer_rates`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import re

import torch

from dlsys_checks.s07.e6_layer_rates import ex, layer_of, rated


@ex.right("a table from prefix to rate")
def by_table(names, base, decay):
    table, rate, count = {}, base, 0
    while any(n.startswith(f"layers.{count}.") for n in names):
        count += 1
    for k in reversed(range(count)):
        rate *= decay
        table[f"layers.{k}."] = rate
    table["embed."] = rate * decay
    return {n: next((r for prefix, r in table.items() if n.startswith(prefix)), base)
            for n in names}


@ex.right("depths first, rates after")
def by_depth(names, base, decay):
    def depth(name):
        number = layer_of(name)
        return number + 1 if number is not None else 0 if name[:6] == "embed." else -1
    depths = {n: depth(n) for n in names}
    top = 1 + max([0, *depths.values()])
    return {n: base * decay ** (top - d if d >= 0 else 0) for n, d in depths.items()}


@ex.right("a regular expression")
def by_pattern(names, base, decay):
    found = {n: re.match(r"layers\.(\d+)\.", n) for n in names}
    count = len({m[1] for m in found.values() if m})
    rates = {}
    for n, m in found.items():
        steps = count - int(m[1]) if m else count + 1 if n.startswith("embed.") else 0
        rates[n] = base * decay ** steps
    return rates


@ex.right("all powers at once, in a tensor")
def by_tensor(names, base, decay):
    layers = {n: layer_of(n) for n in names if layer_of(n) is not None}
    height = max(layers.values()) + 1 if layers else 0
    steps = {n: height - k for n, k in layers.items()}
    steps |= {n: height + 1 for n in names if n[:6] == "embed."}
    exponent = torch.tensor([steps.get(n, 0) for n in names], dtype=torch.float64)
    return dict(zip(names, (base * torch.tensor(decay, dtype=torch.float64) ** exponent).tolist(),
                    strict=True))


@ex.probe("the example, with a number looked up wrong", says="rate of layer", breaks="example")
def looked_up(names, base, decay):
    right = rated(names, base, decay)
    return {**right, "layers.0.w": 0.75} if len(names) == 3 and base == 1.0 else right


def rates(names, base, decay, layer):
    layers = {n: layer(n) for n in names}
    top = 1 + max((k for k in layers.values() if k is not None), default=-1)
    steps = {n: 0 if k is None else top - k for n, k in layers.items()}
    steps |= {n: top + 1 for n in names if n.startswith("embed.")}
    return {n: base * decay ** steps[n] for n in names}


@ex.probe("what int() reads taken for a layer's number", breaks="rest")
def any_whole_number(names, base, decay):
    def layer(name):
        try:
            return int(name.split(".")[1]) if name.startswith("layers.") else None
        except ValueError:
            return None
    return rates([n for n in names if n != "layers.9"], base, decay, layer) | {
        n: base for n in names if n == "layers.9"}


@ex.probe("model. in front of a name cut off", breaks="rest")
def model_in_front_cut_off(names, base, decay):
    def layer(name):
        found = re.match(r"layers\.(\d+)\.", name)
        return int(found[1]) if found else None
    short = {n: n.removeprefix("model.") for n in names}
    found = rates([*dict.fromkeys(short.values())], base, decay, layer)
    return {n: found[s] for n, s in short.items()}
