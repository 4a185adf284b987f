"""Exercise 11.2, `masked_step`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s11.e2_masked_step import ex, zero


@ex.right("by index, on the data")
def by_index(optimizer, masks):
    optimizer.step()
    for parameter, mask in masks.items():
        parameter.data[~mask] = 0


@ex.right("where, copied back")
def copied(optimizer, masks):
    optimizer.step()
    with torch.no_grad():
        for parameter, mask in masks.items():
            parameter.copy_(torch.where(mask, parameter, torch.zeros_like(parameter)))


@ex.right("a hook behind the step, taken off again")
def hooked(optimizer, masks):
    def zero(*_):
        with torch.no_grad():
            for parameter, mask in masks.items():
                parameter.masked_fill_(mask.logical_not(), 0.0)
    handle = optimizer.register_step_post_hook(zero)
    try:
        optimizer.step()
    finally:
        handle.remove()


@ex.right("what the optimizer holds, then the rest")
def by_group(optimizer, masks):
    optimizer.step()
    inside = [p for group in optimizer.param_groups for p in group["params"] if p in masks]
    for parameter in {*inside, *masks}:
        parameter.detach().masked_fill_(masks[parameter] == False, 0)  # noqa: E712


@ex.probe("the example, with a number looked up wrong", says="weights", breaks="example")
def looked_up(optimizer, masks):
    optimizer.step()
    zero(masks)
    if sum(p.numel() for p in masks) == 2:
        next(iter(masks)).data.clamp_(min=0)
