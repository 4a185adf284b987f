"""Exercise 03.3, `clipped_step`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch
from torch import nn

from dlsys_checks.s03.e3_clipped_step import all_of, divided, ex, gradients, total

ex.right("gradients divided, then clipped")(divided)


@ex.right("a factor by hand")
def by_factor(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)

    def norm():
        return torch.cat([p.grad.flatten() for p in params]).double().norm().item()
    pre = norm()
    if pre > max_norm:
        for p in params:
            p.grad.mul_(max_norm / pre)
    post = norm()
    optimizer.step()
    return pre, post


@ex.right("autograd.grad instead of backward")
def by_autograd(optimizer, loss, scale, max_norm):
    params = all_of(optimizer)
    for p, grad in zip(params, torch.autograd.grad(loss / scale, params, allow_unused=True),
                       strict=True):
        p.grad = grad
    live = [p for p in params if p.grad is not None]
    pre = float(nn.utils.clip_grad_norm_(live, max_norm))
    post = sum(float(p.grad.square().sum()) for p in live) ** 0.5
    optimizer.step()
    return pre, post


@ex.right("the limit scaled instead of the gradient")
def scaled_limit(optimizer, loss, scale, max_norm):
    for p in all_of(optimizer):
        p.grad = None
    loss.backward()
    pre = nn.utils.clip_grad_norm_(all_of(optimizer), max_norm * scale).item() / scale
    for p in all_of(optimizer):
        if p.grad is not None:
            p.grad /= scale
    post = total(all_of(optimizer))
    optimizer.step()
    return pre, post


@ex.right("the norm of norms")
def norm_of_norms(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)

    def norm():
        return math.hypot(*[p.grad.norm().item() for p in params])
    pre = norm()
    with torch.no_grad():
        for p in params:
            p.grad *= min(1.0, max_norm / (pre + 1e-12))
    post = norm()
    optimizer.step()
    return pre, post
