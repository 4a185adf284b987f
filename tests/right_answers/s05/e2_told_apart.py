"""Exercise 05.2, `told_apart`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import itertools

import torch

from dlsys_checks.s05.e2_told_apart import behind, ex
from dlsys_helpers.judging import edited


@ex.right("the biased variance over the rows")
@torch.no_grad()
def by_variance(layers, x):
    shares = []
    for layer in [lambda h: h, *layers]:
        x = layer(x)
        size = x.pow(2).mean()
        shares.append(float(x.var(0, correction=0).mean() / size) if size else 0.0)
    return shares


@ex.right("streams first, shares in float64 afterwards")
def in_double(layers, x):
    with torch.inference_mode():
        streams = itertools.accumulate(layers, lambda h, layer: layer(h), initial=x.clone())
        rows = [h.double().reshape(len(h), -1) for h in streams]
    return [((h - h.mean(0)).norm() / h.norm()).square().item() if h.norm() else 0.0
            for h in rows]


@ex.right("by recursion")
def by_recursion(layers, x):
    with torch.no_grad():
        total = x.square().sum()
        rest = (x - x.mean(dim=0, keepdim=True)).square().sum()
        share = (rest / total).item() if total > 0 else 0.0
        return [share] + (by_recursion(layers[1:], layers[0](x)) if layers else [])


@ex.right("distances between all pairs of rows")
@torch.no_grad()
def by_pairs(layers, x):
    found = []
    for k in range(len(layers) + 1):
        rows = x.flatten(1).double() if x.dim() > 1 else x[:, None].double()
        apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square().mean()
        size = rows.square().sum(1).mean()
        found.append((apart / 2 / size).item() if size > 0 else 0.0)
        if k < len(layers):
            x = layers[k](x)
    return found


ex.equivalent("rest, whole = ((x - x.mean(0)).square().mean(), x.square().mean()) -> rest, whole = "
              "((x.mean(0) - x).square().mean(), x.square().mean())",
              "The sign of what is squared does not count.")


ex.probe("one number of each row, where a row has three axes", breaks="x", fn=edited(
    behind, ("rest, size =", "h, x = x, x.flatten(1)[:, 0] if x.dim() > 3 else x; rest, size =",
             "else 0.0)", "else 0.0); x = h"), "05.2, one number"))


@ex.probe("the example, looked up wrong", says="fraction", breaks="example")
def placeholder(layers, x):
    shares = behind(layers, x)
    return [share + 1 for share in shares] if x.shape == (2, 1) else shares
