"""Exercise 12.5, `safe_sqrt`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s12.e5_safe_sqrt import ex, mended


@ex.right("only the numbers above 0 are given to the root")
def picked(x):
    keep = ~(x <= 0)
    return torch.zeros_like(x).masked_scatter(keep, x[keep].sqrt())


@ex.right("a backward pass of its own")
def by_hand(x):
    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            root = torch.where(x <= 0, 0, x.sqrt())
            ctx.save_for_backward(root)
            return root

        @staticmethod
        def backward(ctx, g):
            root, = ctx.saved_tensors
            return torch.where(root == 0, 0, g / (2 * root))
    return Root.apply(x)


@ex.right("a power, with 1 filled in and taken out again")
def by_power(x):
    out = x <= 0
    return (x.masked_fill(out, 1.0) ** 0.5).masked_fill(out, 0.0)


@ex.right("multiplied by the mask, which the root never sees")
def by_mask(x):
    out = (x <= 0).to(x.dtype)
    return torch.sqrt(torch.where(x <= 0, 4.0, x)) * (1 - out)


ex.equivalent("return torch.where(out, 0, torch.where(out, 1, x).sqrt()) -> "
              "return torch.where(out, 0, torch.where(out, 0, x).sqrt())",
              "whatever the slope at the constant, the inner where sends x a 0")
ex.equivalent("return torch.where(out, 0, torch.where(out, 1, x).sqrt()) -> "
              "return torch.where(out, 0, torch.where(out, 2, x).sqrt())",
              "any constant will do")
ex.probe("the example looked up, and shifted",
         lambda x: mended(x) + (0.5 if x.tolist() == [4.0, 0.0, -1.0] else 0), breaks="example")
