"""Exercise 05.2, `pre_norm`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s05.e2_pre_norm import ex, stack


@ex.right("all branches' results kept and summed")
def by_sums(x, branches, norms):
    parts = [x]
    for k, branch in enumerate(branches):
        parts.append(branch(norms[k](sum(parts) + 0)))
    return norms[len(branches)](sum(parts) + 0)


@ex.right("by recursion")
def by_recursion(x, branches, norms):
    if not branches:
        return norms[0](x.clone())
    return by_recursion(x + branches[0](norms[0](x * 1)), branches[1:], norms[1:])


@ex.right("the last norm taken off first")
def by_index(x, branches, norms):
    *inner, last = norms
    stream = x.clone()
    for k in range(len(inner)):
        stream = torch.add(stream, branches[k](inner[k](stream.clone())))
    return last(stream.clone())


@ex.right("an iterator over the norms")
def by_iterator(x, branches, norms):
    left = iter(norms)
    for branch in branches:
        normed = next(left)(x.view_as(x).clone())
        x = x + branch(normed.clone())
    return next(left)(x + torch.zeros_like(x))


@ex.probe("the example, looked up wrong", says="result", breaks="example")
def placeholder(x, branches, norms):
    out = stack(x, branches, norms)
    return out + 1 if x.dim() == 0 else out
