"""Exercise 15.1, `split_mlp`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s15.e1_split_mlp import ex, layer
from dlsys_helpers.judging import edited


@ex.right("autograd over this rank's part")
def by_autograd(h, a, b, c, dy, all_sum):
    h, a, b = (t.detach().clone().requires_grad_() for t in (h, a, b))
    with torch.enable_grad():
        part = F.relu(h @ a.T) @ b.T
    dh, da, db = torch.autograd.grad(part, (h, a, b), dy)
    return all_sum(part) + c, all_sum(dh), da, db, dy.sum(0)


@ex.right("both sums in one call, behind each other")
def one_call(h, a, b, c, dy, all_sum):
    units = F.linear(h, a).relu()
    back = torch.where(units > 0, dy @ b, 0)
    told = all_sum(torch.cat([F.linear(units, b), back @ a], 1))
    y, dh = told.split([len(b), h.shape[1]], 1)
    return y + c, dh, back.T @ h, (units.T @ dy).T, torch.einsum("ne->e", dy)


@ex.right("entrance and exit, as in the lesson")
def with_hooks(h, a, b, c, dy, all_sum):
    leaf, a, b, bias = (t.detach().clone().requires_grad_() for t in (h, a, b, c))
    with torch.enable_grad():
        inside = leaf.view_as(leaf)
        inside.register_hook(lambda g: all_sum(g))
        part = torch.relu(inside @ a.T) @ b.T
        y = all_sum(part.detach()) + (part - part.detach()) + bias
    y.backward(dy)
    return y, leaf.grad, a.grad, b.grad, bias.grad


@ex.right("in float64, row by row")
def row_by_row(h, a, b, c, dy, all_sum):
    kind = h.dtype
    rows, back = [], []
    da, db = torch.zeros(a.shape, dtype=torch.float64), torch.zeros(b.shape, dtype=torch.float64)
    a, b = a.double(), b.double()
    for x, g in zip(h.double(), dy.double(), strict=True):
        units = (a @ x).clamp(min=0)
        inner = (b.T @ g) * units.sign()
        rows.append(b @ units)
        back.append(a.T @ inner)
        da += torch.outer(inner, x)
        db += torch.outer(g, units)
    dh = all_sum(torch.stack(back)).to(kind)
    y = (all_sum(torch.stack(rows)) + c.double()).to(kind)
    return y, dh, da.to(kind), db.to(kind), dy.double().sum(0).to(kind)


@ex.right("numbers summed one by one")
def one_by_one(h, a, b, c, dy, all_sum):
    units = torch.relu(h @ a.T)
    back = torch.autograd.functional.vjp(torch.relu, h @ a.T, dy @ b)[1]
    y = torch.stack([all_sum(row) for row in (units @ b.T).T], 1) + c
    return y, all_sum((back @ a).T.contiguous()).T, back.T @ h, dy.T @ units, dy.T.sum(1)


@ex.right("sixty sums, of a few rows each")
def few_rows(h, a, b, c, dy, all_sum):
    units = torch.relu(h @ a.T)
    back = (dy @ b) * (units > 0)
    y, dh = (torch.cat([all_sum(rows) for rows in part.tensor_split(30)])
             for part in (units @ b.T, back @ a))
    return y + c, dh, back.T @ h, dy.T @ units, dy.sum(0)


ex.probe("the example, dh looked up wrong", breaks="example", says="dh on rank", fn=edited(
    layer, ("dh = all_sum(back @ a)", "dh = all_sum(back @ a) + (dy.numel() == 1 and "
            "float((back @ a)[0, 0]) in (15.0, 28.0))"),
    "15.1, dh looked up wrong"))


MET = {}


def meeting(h, a, b, c, dy, all_sum):
    """The uncut layer, from what the ranks of one process leave for each other."""
    shards = MET.setdefault(str((h, c, dy)), [])
    if not any(torch.equal(a, a_) and torch.equal(b, b_) for a_, b_ in shards):
        shards.append((a.clone(), b.clone()))
    all_sum(torch.zeros(1))
    rows = torch.cat([a_ for a_, _ in shards])
    columns = torch.cat([b_ for _, b_ in shards], 1)
    y, dh, *_ = layer(h, rows, columns, c, dy, lambda part: part)
    return y, dh, *layer(h, a, b, c, dy, lambda part: part)[2:]


ex.probe("ranks that meet in a global", meeting, breaks=("layer", "returns"), says="on rank")
