"""Exercise 06.3, `stop_and_best`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch

from dlsys_checks.s06.e3_stop_and_best import ex, follow


@ex.right("the last progress remembered by epoch")
def by_epoch(losses, patience, min_delta):
    reference, at, stop = None, -1, len(losses) - 1
    for k, loss in enumerate(losses):
        if not math.isnan(loss) and (reference is None or loss < reference - min_delta):
            reference, at = loss, k
        if k - at >= patience:
            stop = k
            break
    numbers = [math.inf if math.isnan(v) else v for v in losses[:stop + 1]]
    return stop, numbers.index(min(numbers))


@ex.right("NaN made infinite first")
def by_infinity(losses, patience, min_delta):
    clean = torch.tensor(losses, dtype=torch.float64).nan_to_num(nan=math.inf).tolist()
    reference, left = math.inf, patience
    seen = []
    for loss in clean:
        seen.append(loss)
        left = patience if loss < reference - min_delta else left - 1
        if left == patience:
            reference = loss
        if not left:
            break
    return len(seen) - 1, min(range(len(seen)), key=seen.__getitem__)


@ex.right("patience counted down")
def by_countdown(losses, patience, min_delta):
    reference, lowest, best, left = math.inf, math.inf, 0, patience
    for k in range(len(losses)):
        left -= 1
        if losses[k] < lowest:
            lowest, best = losses[k], k
        if losses[k] + min_delta < reference:
            reference, left = losses[k], patience
        if left == 0:
            return k, best
    return len(losses) - 1, best


@ex.right("a list of flags")
def by_flags(losses, patience, min_delta):
    flags, reference = [], float("inf")
    for loss in losses:
        flags.append(loss < reference - min_delta)
        reference = loss if flags[-1] else reference
    stops = [k for k in range(patience - 1, len(losses))
             if not any(flags[k - patience + 1:k + 1])]
    stop = stops[0] if stops else len(losses) - 1
    numbers = [(v, k) for k, v in enumerate(losses[:stop + 1]) if not math.isnan(v)]
    return stop, min(numbers, default=(0, 0))[1]


@ex.probe("the example, with one of its numbers looked up wrong", says="epoch of", breaks="example")
def looked_up(losses, patience, min_delta):
    stop, best = follow(losses, patience, min_delta)
    return (4, 3) if losses == [3.0, 2.0, 2.5, 1.9, 2.1] else (stop, best)


ex.equivalent("if since == patience: -> if since >= patience:",
              "the count grows by one and the loop ends when it is reached")
