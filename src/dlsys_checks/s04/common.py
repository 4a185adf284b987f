"""What several exercises of stage 4 share: a path of weights, and torch's own."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_helpers.expect import expect_close, expect_like

# What the hand-written update rules share ------------------------------------------------------
STEPS, AT = 200, (0, 1, 11, 99, 199)


def expect_path(got, wanted, after):
    """Compare weights step by step, so that the feedback names the first step that is off."""
    expect_like(f"weights after {len(after)} of {STEPS} steps", got, wanted)
    for row, step in enumerate(after):
        expect_close(f"weights after {step + 1} of {STEPS} steps", got[row], wanted[row],
                     rtol=1e-4, atol=1e-4)


def snapshots(step, weights, grads):
    """Weights after the steps AT, for step(w, grad, k) applied in place to a copy."""
    w, shown = weights.clone(), []
    for k, grad in enumerate(grads):
        step(w, grad, k)
        if k in AT:
            shown.append(w.clone())
    return torch.stack(shown)


def by_torch(build, weights, grads, rate_at=None, missing=()):
    """The same from a torch optimizer; steps in `missing` have grad None."""
    w = nn.Parameter(weights.clone())
    opt = build([w])

    def step(kept, grad, k):
        w.grad = None if k in missing else grad.clone()
        if rate_at:
            opt.param_groups[0]["lr"] = rate_at(k)
        opt.step()
        kept.copy_(w.detach())
    return snapshots(step, weights, grads)
