"""Exercise 09.11, `average_grads`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s09.e11_average_grads import averaged, ex

ex.equivalent("return (all_sum(total.detach()) / rows).item() -> "
              "return (all_sum(total) / rows).item()",
              "the sum over the ranks is a new tensor and belongs to no graph")


@ex.right("one flat sum of everything")
def flat(losses_of, params, batch, all_sum):
    losses = losses_of(batch)
    grads = torch.autograd.grad(losses.sum(), params, allow_unused=True, materialize_grads=True)
    parts = [losses.sum().detach().reshape(1), losses.new_tensor([len(losses)]),
             *[g.flatten() for g in grads]]
    told = all_sum(torch.cat(parts))
    told = told / told[1]
    for p, g in zip(params, told[2:].split([p.numel() for p in params]), strict=True):
        p.grad = g.view_as(p).clone()
    return told[0].item()


@ex.right("backward, then sum what .grad holds")
def by_backward(losses_of, params, batch, all_sum):
    for p in params:
        p.grad = torch.zeros_like(p)
    losses = losses_of(batch)
    losses.sum().backward()
    rows = all_sum(torch.tensor(float(len(losses))))
    for p in params:
        p.grad.copy_(all_sum(p.grad) / rows)
    return (all_sum(losses.sum().detach()) / rows).item()


@ex.right("the number of examples first, the loss scaled by it")
def rows_first(losses_of, params, batch, all_sum):
    rows = all_sum(torch.tensor(len(batch[0])))
    share = losses_of(batch).sum() / rows
    grads = torch.autograd.grad(share, params, allow_unused=True)
    for p, g in zip(params, grads, strict=True):
        p.grad = all_sum(torch.zeros_like(p) if g is None else g)
    return float(all_sum(share.detach()))


@ex.right("the parameters from the last to the first")
def backwards(losses_of, params, batch, all_sum):
    total = losses_of(batch).sum()
    grads = torch.autograd.grad(total, params, allow_unused=True, materialize_grads=True)
    told = all_sum(torch.stack([total.detach().double(),
                                torch.tensor(float(len(batch[1])), dtype=torch.float64)]))
    for p, g in reversed(list(zip(params, grads, strict=True))):
        p.grad = (all_sum(g.double()) / told[1]).to(p.dtype)
    return (told[0] / told[1]).item()


@ex.probe("the example, with its mean looked up wrong", says="mean loss", breaks="example")
def looked_up(losses_of, params, batch, all_sum):
    found = averaged(losses_of, params, batch, all_sum)
    return 5.5 if abs(found - 4) < 1e-4 and params[0].sum() == 0 else found
