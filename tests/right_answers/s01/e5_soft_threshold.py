"""Exercise 01.5, `soft_threshold`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s01.e5_soft_threshold import ex, shrink


@ex.right("what lies within the cut, subtracted")
def minus_clamped(x, cut):
    return x - x.clamp(-cut, cut)


@ex.right("two one-sided thresholds")
def two_sides(x, cut):
    return F.relu(x - cut) - F.relu(-x - cut)


@ex.right("torch's own function")
def softshrink(x, cut):
    return F.softshrink(x, cut)


@ex.right("a choice among three")
def by_where(x, cut):
    zero = torch.zeros_like(x)
    return torch.where(x > cut, x - cut, torch.where(x < -cut, x + cut, zero))


@ex.right("the size with the sign of x")
def copied_sign(x, cut):
    return torch.copysign((x.abs() - cut).clamp(min=0), x)


@ex.right("many operations, whatever the size")
def many_operations(x, cut):
    for _ in range(10):
        x = x.view_as(x) * 1.0
    return x.sign() * torch.maximum(x.abs() - cut, torch.zeros_like(x))


@ex.right("a backward pass of its own")
def own_backward(x, cut):
    class Shrink(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sign() * (x.abs() - cut).clamp(min=0)

        @staticmethod
        def backward(ctx, upstream):
            return upstream * (ctx.saved_tensors[0].abs() > cut)
    return Shrink.apply(x)


ex.probe("the answer of the example, looked up",
         lambda x, cut: shrink(x, cut) + (cut == 0.5 and len(x) == 2), says="result",
         breaks="example")


@ex.right("many operations, as many at any size")
def many_operations_at_any_size(x, cut):
    above = (x - cut) * (x > cut).to(x.dtype)
    below = (x + cut) * (x < -cut).to(x.dtype)
    rest = x * (x.abs() <= cut).to(x.dtype) * 0
    return (above + below + rest) * 1.0 + 0.0
