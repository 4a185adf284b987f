"""What the hand-written update rules of stage 4 share: torch's own, and a path of weights."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_length, expect_like

TOLERANCE = 2e-5  # of the largest weight so far: 200 steps in float32 are off by a tenth of it


def by_torch(build, start, grads, settings, missing=()):
    """Weights after each step of a torch optimizer, calculated in float64: (T, N) float32.

    settings: what its group holds at each step, as {"lr": 0.1}. Steps in `missing` have grad None.
    """
    w = nn.Parameter(start.double())
    opt, path = build([w]), []
    for k, (grad, now) in enumerate(zip(grads.double(), settings, strict=True)):
        w.grad = None if k in missing else grad
        opt.param_groups[0].update(now)
        opt.step()
        path.append(w.detach().clone())
    return torch.stack(path).float()


def expect_path(got, wanted, after, which="", start=None):
    """Compare weights (T, N) after the steps `after`, counted from 0, one step at a time.

    The feedback names the first step that is off. The tolerance follows the largest weight so far,
    `start` (N,) among them: a step may end near zero.
    """
    expect_like(f"weights after all steps{which}", got, wanted)
    first = torch.zeros(()) if start is None else start.abs().max()
    largest = wanted.abs().amax(1).cummax(0).values.clamp(min=first)
    for row in _rows_off(got, wanted, largest):
        expect_close(f"weights after step {after[row] + 1}{which}", got[row], wanted[row],
                     rtol=0.0, atol=TOLERANCE * float(largest[row]))


def _rows_off(got, wanted, largest):
    """Rows with an entry beyond the tolerance; NaN is beyond any."""
    near = (got - wanted).abs() <= TOLERANCE * largest[:, None]
    return (~near.all(1)).nonzero().flatten().tolist()


def expect_paths(got, wanted, tables):
    """The same for every step of several weights, which took their steps in turn.

    tables: each weight's start is the first column of its own.
    """
    expect_length("weights", got, len(wanted))
    for i, (mine, right, table) in enumerate(zip(got, wanted, tables, strict=True)):
        which = f" of weight {i + 1} of {len(wanted)}" if len(wanted) > 1 else ""
        expect_path(mine, right, range(len(right)), which, table[:, 0])


def expect_manners(out):
    """What an update rule owes its caller beside the weights; counts of calls and of numbers."""
    expect_equal("calls that changed the caller's gradient", out["touched"], 0, "Work on a copy.")
    expect_equal("entries changed next to w, in the tensor that w is a view of", out["beside"], 0)


def expect_by_hand(used):
    """Refuse an answer that lets an optimizer of torch do the step."""
    if used != []:
        raise Broken("optimizers of torch.optim used", used, "none", "Write the rule out yourself.")
