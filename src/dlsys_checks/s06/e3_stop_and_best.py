"""Exercise 06.3, `stop_and_best`."""

from __future__ import annotations

import math

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("06.3", "stop_and_best", seen=("runs",))

EDGES = ("a loss of exactly 0", "losses that hardly differ", "patience 1")
NANS = ("NaN among the losses", "NaN at the start", "nothing but NaN", "NaN until the stop")

ex.promise("pair", "Return (epoch when training stops, epoch whose weights to restore).",
           says=("stop and best", "number of results"))
ex.promise("counting", "Args: losses: the validation losses of epochs 0, 1, 2 and so on.",
           says=("epoch of",))
ex.promise("left", "Do not change the list.", says=("losses after the call",))
ex.promise("range", "A loss can be NaN. patience, min_delta: patience >= 1, min_delta >= 0.",
           cases=NANS + EDGES)
ex.promise_table("""
progress | A later loss is progress if it is more than min_delta below the loss at the last
           progress. | epoch of the stop
first    | The first loss that is not NaN is progress. | epoch of the stop
patience | Training stops at the patience-th epoch in a row without progress. | epoch of the stop
last     | Otherwise, it stops at the last epoch. | epoch of the stop
restored | Restore the first epoch with the lowest loss up to the stop, whether that loss was
           progress or not. | epoch of the best
""")
ex.promise("nan", "A NaN is neither progress nor the lowest loss.", cases=NANS)
ex.promise("all nan", "If all losses up to the stop are NaN, restore epoch 0.",
           cases=("nothing but NaN", "NaN until the stop"), says=("epoch of the best",))
ex.promise("example", "Example: [3., 2., 2.5, 1.9, 2.1] with patience 2 and min_delta 0.5 gives "
                      "(3, 3).",
           cases=("the example",))


@ex.cases
def cases(g):
    number = integers(g)

    def noise(n):
        return (0.02 * torch.rand(n, generator=g)).tolist()

    def one(name, losses, patience, min_delta=0.0):
        return name, {"runs": [{"losses": losses, "patience": patience, "min_delta": min_delta}]}

    n, p, nan = number(5, 9), number(3, 6), math.nan
    down = [9.0 - 0.5 * k + e for k, e in enumerate(noise(n))]
    low = down[-1]
    rising = [low + 0.1 + 0.1 * k for k in range(p + 4)]
    zigzag = [5.0 - 0.25 * k + (0.9 if k % 2 else 0.0) + e for k, e in enumerate(noise(n + 6))]
    steady = [4.0 - 0.03 * k for k in range(p)] + [3.9] * (p + 2)
    creep = [3.0 - 0.3 * k for k in range(9)]
    rough = [2.25, 1.25, 1.0, 0.5, 0.5, 2.5, nan, 1.25]
    close = [1.0 - 1e-11 * k for k in range(n)]
    # From a reference of 1 a share and a difference of 0.5 end at one loss.
    halves = [1.0, 0.8, 0.6, 0.4, 0.7, 0.7, 0.7, 0.7, 0.7]
    wanderer = [3.0, 2.0, 1.875, 2.5, 1.75, 2.5, 2.25, 2.5]
    # No case ends by chance where another rule ends as well: the tails are long.
    return [one("down, then up", down + rising, p),
            one("down, up and lower after the stop", [*down, *rising[:p], 0.1, 0.05], p),
            one("up and down", zigzag, 2), one("patience 1", [*down, low + 1, low - 3], 1),
            one("ties", [3.0, 2.0, 2.0, 2.0, 2.5, 2.0, 1.5], 3),
            one("the lowest loss again at the end", [5.0, 4.0, 4.5, 4.0, 4.25], 4),
            one("small steady gains", steady, p, 0.1 * p),
            one("steps that add up to progress", creep, 3, 0.5),
            one("lower losses before the next progress", rough, 3, 1.0),
            one("progress down from 1", halves, 3, 0.5),
            one("a loss of exactly 0", [0.5, 0.0, 1.0, 0.75, 0.8, -1.0], 3),
            one("losses that hardly differ", close, 2),
            one("gains of exactly min_delta", [4.0] + [3.75] * (p + 3), p, 0.25),
            one("a lower loss that is no progress", wanderer, len(wanderer), 0.5),
            one("far below zero", [-v for v in reversed(down)] + [-low + 9.0] * (p + 1), p, 0.1),
            one("a huge first loss", [1e30, 2e30, 3e30, 0.5], 2),
            one("progress until the end", down, 2), one("one epoch", [down[0]], number(2, 5)),
            one("NaN among the losses", [3.0, nan, 2.0, 2.5, nan, 2.25, 2.75, nan, 2.6], 3),
            one("NaN at the start", [nan, nan, 3.0, 2.0, 2.5, 2.25, 2.75, 1.0], 3),
            one("nothing but NaN", [nan] * (p + 2), p),
            one("NaN until the stop", [nan, nan, nan, 1.0], 2),
            ("two runs in turn", {"runs": [
                {"losses": down + rising, "patience": p, "min_delta": 0.0},
                {"losses": rising + rising, "patience": 2, "min_delta": 0.05}]}),
            one("the example", [3.0, 2.0, 2.5, 1.9, 2.1], 2, 0.5)]


@ex.act
def act(fn, runs):
    found = {"results": [], "changed": 0}
    for r in runs:
        given = list(r["losses"])
        found["results"].append(fn(given, r["patience"], r["min_delta"]))
        found["changed"] += repr(given) != repr(r["losses"])
    return found


def stop_epoch(losses, patience, min_delta):
    """The epoch of the stop: progress is listed first, then the gaps between."""
    steps, reference = [-1], math.nan
    for epoch, loss in enumerate(losses):
        if loss == loss and not reference - loss <= min_delta:
            steps.append(epoch)
            reference = loss
    for here, following in zip(steps, [*steps[1:], math.inf], strict=True):
        if here + patience < following and here + patience < len(losses):
            return here + patience
    return len(losses) - 1


def replay(losses, patience, min_delta):
    """The call in words, so that it can be tried again; the losses as far as there is room."""
    shown = [f"{loss:.4g}" for loss in losses]
    more = ", ..." if len(shown) > 11 else ""
    return (f"Called with losses [{', '.join(shown[:11])}{more}], patience {patience}, "
            f"min_delta {min_delta:.3g}.")


@ex.law
def law(out, runs):
    expect_parts(out, "results", "changed")
    expect_length("results", out["results"], len(runs))
    for run, result in zip(runs, out["results"], strict=True):
        expect_type("stop and best", result, tuple)
        expect_equal("number of results", len(result), 2)
        stop = stop_epoch(**run)
        expect_equal("epoch of the stop", result[0], stop, replay(**run))
        numbers = [(v, k) for k, v in enumerate(run["losses"][:stop + 1]) if v == v]
        expect_equal("epoch of the best", result[1], min(numbers)[1] if numbers else 0,
                     replay(**run))
    expect_equal("losses after the call: number of runs that changed them", out["changed"], 0,
                 "Work on a copy.")


# ---- wrong, by name

@not_an_answer
def follow(losses, patience, min_delta):
    reference, lowest, best, since, epoch = math.inf, math.inf, 0, 0, 0
    for epoch, loss in enumerate(losses):
        if loss < lowest:
            lowest, best = loss, epoch
        good = loss < reference - min_delta
        since = 0 if good else since + 1
        if good:
            reference = loss
        if since >= patience:
            break
    out = epoch, best
    return out


wrong = ex.edits(follow)
REFERENCE = "loss < reference - min_delta"
wrong("comparing each loss with the previous loss, not with the loss at the last progress",
      "progress",
      "good:", "good or loss == loss:")


@ex.wrong("comparing each loss with the lowest so far, not with the loss at the last progress",
          breaks="progress")
def any_lower(losses, patience, min_delta):
    reference, since, seen = math.inf, 0, []
    for loss in losses:
        seen.append(loss)
        since = 0 if loss < reference - min_delta else since + 1
        reference = loss if loss < reference else reference
        if since == patience:
            break
    return len(seen) - 1, follow(seen, len(seen) + 1, min_delta)[1]


wrong("treating a loss of 0 at the last progress as missing", "range",
      REFERENCE, f"loss == loss and (not reference or {REFERENCE})", says="epoch of the stop")
wrong("comparing losses with a tolerance, or in float32", "range",
      "(losses)", "(torch.tensor(losses, dtype=torch.float32).tolist())", says="epoch of the stop")
wrong("replacing NaN with infinity in the caller's list of losses", "left",
      "reference,",
      "losses[:] = [loss if loss == loss else math.inf for loss in losses]; reference,")
wrong("using argmin, which treats a NaN as the lowest loss", "nan",
      "return out",
      "stop = out[0]; return stop, int(torch.tensor(losses[:stop + 1], "
      "dtype=torch.float64).argmin())", says="epoch of the best")
wrong("using min(), which returns a NaN that comes first", "nan",
      "return out", "stop = out[0]; return stop, losses.index(min(losses[:stop + 1]))",
      says="epoch of the best")


@ex.wrong("not counting epochs whose loss is NaN",
          says="epoch of the stop", breaks=("nan", "all nan"))
def nan_not_counted(losses, patience, min_delta):
    kept = [k for k, loss in enumerate(losses) if loss == loss]
    stop, best = follow([losses[k] for k in kept], patience, min_delta)
    # Without a stop the last epoch ends it, and a NaN may be there.
    stopped = follow([losses[k] for k in kept] + [math.inf], patience, min_delta)[0] < len(kept)
    return (kept[stop] if stopped else len(losses) - 1), (kept[best] if kept else 0)


wrong("counting a gain of exactly min_delta as progress", "progress",
      REFERENCE, "loss < reference if min_delta == 0 else loss <= reference - min_delta")
ex.wrong("ignoring min_delta", lambda losses, patience, min_delta: follow(losses, patience, 0.0),
         breaks="progress")
wrong("adding min_delta instead of subtracting it", "progress",
      "reference,", "min_delta = -min_delta; reference,")
wrong("counting an equal loss as progress", "progress",
      REFERENCE, f"loss <= reference - min_delta and (min_delta == 0 or {REFERENCE})")
wrong("waiting one epoch longer than patience", ("patience", "nan"), "patience:", "patience + 1:")


@ex.wrong("counting all epochs without progress, even if they are not in a row", breaks="patience")
def in_all(losses, patience, min_delta):
    reference, lowest, best, bad, epoch = math.inf, math.inf, 0, 0, 0
    for epoch, loss in enumerate(losses):
        if loss < lowest:
            lowest, best = loss, epoch
        if loss < reference - min_delta:
            reference = loss
        else:
            bad += 1
        if bad == patience:
            break
    return epoch, best


wrong("starting from the first loss, which may be NaN", ("nan", "first"),
      "math.inf, math.inf, 0, 0", "losses[0], losses[0], 0, -1", says="epoch of the stop")
wrong("comparing the first loss with a number such as 1000",
      "first", "math.inf, math", "1000.0, math")


@ex.wrong("returning the number of epochs as the stop if the patience never runs out",
          breaks="last")
def past_the_end(losses, patience, min_delta):
    # With one epoch more, and no progress in it, a stop of its own comes where it came.
    stop = follow([*losses, math.inf], patience, min_delta)[0]
    return stop, follow(losses, patience, min_delta)[1]


wrong("restoring the epoch of the stop, not the best epoch", ("restored", "all nan"),
      "return out", "stop, _ = out; return stop, stop")
wrong("restoring the epoch of the last progress instead of the epoch of the lowest loss",
      "restored",
      "return out",
      "stop, _ = out; reference, best = math.inf, 0\n    for epoch, loss in "
      "enumerate(losses[:stop + 1]):\n        if loss < reference - min_delta: reference, best = "
      "loss, epoch\n    return stop, best")
wrong("taking the last of several equal losses", "restored", "loss < lowest", "loss <= lowest")
wrong("taking the lowest of all losses, even those after the stop", "restored",
      "return out",
      "stop, best = out\n    if any(v != v for v in losses): return stop, best\n    return stop, "
      "losses.index(min(losses))")
wrong("counting NaN as progress", "nan",
      REFERENCE, "not loss >= reference - min_delta", says="epoch of")
wrong("counting epochs from 1", ("counting", "last", "nan", "all nan", "example"),
      "return out", "return tuple(k + 1 for k in out)")
wrong("counting only the epoch of the stop from 1", "counting",
      "return out", "stop, best = out; return stop + 1, best", says="epoch of the stop")
wrong("returning the two epochs in the wrong order", ("pair", "counting"),
      "return out", "return out[::-1]", says="epoch of the stop")
wrong("returning a list instead of a tuple", "pair", "return out", "return list(out)")
wrong("restoring the epoch of the stop when every loss is NaN", "all nan",
      "return out",
      "stop, best = out; return stop, stop if all(v != v for v in losses[:stop + 1]) else best")
