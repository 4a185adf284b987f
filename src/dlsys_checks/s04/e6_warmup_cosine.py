"""Exercise 04.6, `warmup_cosine`."""

from __future__ import annotations

import math

import torch

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_length
from dlsys_helpers.judging import not_an_answer

ex = exercise("04.6", "warmup_cosine", seen=("schedules", "calls"), says="on the cosine")

ex.promise_table("""
rates      | Return the learning rate of a step. | case a schedule; tiny rates; a large peak; no
             warm-up; a single step of warm-up; a single step of cosine; a long schedule; floor
             equal to peak; steps in any order; two schedules in turn
warm-up    | In steps 0 to warm - 1, the rate rises in a straight line, from peak / warm to peak. |
             in the warm-up
cosine     | From step warm on, the rate follows half a cosine, from peak at step warm to floor at
             step total. | on the cosine
end        | Later steps run at floor. | past the end
no warm-up | warm, total: 0 <= warm < total. | case no warm-up; a single step of cosine; a single
             step of warm-up
no floor   | peak, floor: rates, 0 <= floor <= peak. | case a floor of zero; floor equal to peak
any order  | Args: step: the steps may come in any order. | case steps in any order; two schedules
             in turn
example    | Example: for warm 2, total 4, peak 1 and floor 0.2, the rates are 0.5, 1, 1, 0.6, 0.2.
             | case the example
""")


@ex.cases
def cases(g):
    between = floats(g)
    whole = integers(g)

    def schedule(warm=None, falling=None, peak=None, floor=None):
        """A schedule and the steps to ask for: all, and some far past the end."""
        warm = whole(3, 7) if warm is None else warm
        total = warm + (falling or whole(6, 20))
        peak = peak or 2 ** between(-9, -1)
        floor = between(0.05, 0.4) * peak if floor is None else floor
        steps = [*range(total + 4), 2 * total - warm, whole(3, 9) * total]
        return {"warm": warm, "total": total, "peak": peak, "floor": floor}, steps

    def one(name, **given):
        plan, steps = schedule(**given)
        return name, {"schedules": [plan], "calls": [[0, step] for step in steps]}

    shuffled, same = one("steps in any order"), 2 ** between(-9, -1)
    order = [0, *(1 + torch.randperm(len(shuffled[1]["calls"]) - 1, generator=g)).tolist()]
    shuffled[1]["calls"] = [shuffled[1]["calls"][i] for i in order]
    (first, steps), (second, more) = schedule(), schedule(falling=9)
    turns = [pair for a, b in zip(steps, more, strict=False) for pair in ([0, a], [1, b])]
    return [one("a schedule"), one("a peak of 1", peak=1.0), shuffled,
            one("tiny rates", peak=between(1, 9) * 1e-9), one("a large peak",
                                                               peak=between(20, 900)),
            one("no warm-up", warm=0), one("a single step of warm-up", warm=1),
            one("a single step of cosine", falling=1),
            one("a long schedule", warm=whole(20, 40), falling=whole(150, 300)),
            one("a floor of zero", floor=0.0), one("floor equal to peak", peak=same, floor=same),
            ("two schedules in turn", {"schedules": [first, second], "calls": turns}),
            ("the example", {"schedules": [{"warm": 2, "total": 4, "peak": 1.0, "floor": 0.2}],
                             "calls": [[0, step] for step in range(5)]})]


@ex.act
def act(fn, schedules, calls):
    plans = [(s["warm"], s["total"], s["peak"], s["floor"]) for s in schedules]
    rates = [fn(step, *plans[which]) for which, step in calls]
    # A float64 of numpy is a float.
    return [float(rate) if isinstance(rate, float) else rate for rate in rates]


@ex.law
def law(out, schedules, calls):
    expect_length("rates", out, len(calls))
    for (which, step), got in sorted(zip(calls, out, strict=True), key=lambda pair: pair[0]):
        wanted, where = rate(step, **schedules[which])
        plan = "warm {warm}, total {total}".format(**schedules[which])
        # Cosines in float32 are right; what is off by more than that is not.
        expect_close(f"rate at step {step} ({where}, {plan})", got, wanted, rtol=1e-5,
                     atol=5e-7 * schedules[which]["peak"])


def rate(step, warm, total, peak, floor):
    """The expected rate, and in which part of the schedule it lies."""
    if step < warm:
        return peak * (step + 1) / warm, "in the warm-up"
    if step > total:
        return floor, "past the end"
    angle = math.pi / 2 * (step - warm) / (total - warm)
    return peak * math.cos(angle) ** 2 + floor * math.sin(angle) ** 2, "on the cosine"


# ---- wrong, by name

@not_an_answer
def curve(step, warm, total, peak, floor, *, first=1, more=0):
    if step < warm:
        return peak * (step + first) / (warm + more)
    done = (step - warm) / (total - warm)
    return floor + (peak - floor) * (0.5 * (1 + math.cos(math.pi * min(1.0, done))))


wrong = ex.edits(curve)
MATH = "0.5 * (1 + math.cos(math.pi * min(1.0, done)))"
wrong("treating the floor as a fraction of the peak", "rates",
      "if step", "floor = floor * peak\n    if step")
ex.wrong("using step / warm in the warm-up, so that the first step has a rate of zero", curve,
         says="rate at step 0",
         breaks="warm-up", first=0)
ex.wrong("warming up over warm + 1 steps, so that step warm - 1 stays below the peak", curve,
         breaks="warm-up",
         more=1)


@ex.wrong("copying the lesson's broken cell, with step / warm and max() as a floor", says="rate at",
          breaks=("warm-up", "cosine"))
def broken_cell(step, warm, total, peak, floor):
    low = curve(min(step, total), warm, total, peak, 0.0, first=0)
    return low if step < warm else max(floor, low)


ex.wrong("taking max() of the floor and a cosine that falls to zero",
         lambda step, warm, total, peak, floor: max(floor, curve(step, warm, total, peak, 0.0)) if
             step >= warm else curve(step, warm, total, peak, floor), breaks="cosine")
wrong("letting the cosine fall to zero instead of to the floor", "cosine",
      "floor + (peak - floor) * (0.5 * (1 + math.cos(math.pi * min(1.0, done))))",
      f"peak * ({MATH})")
wrong("starting the cosine one step early, at warm - 1", "cosine", "step - warm", "step - warm + 1")
wrong("dividing step - warm by total, as if the cosine included the warm-up",
      "cosine", "total - warm", "total")
wrong("reaching the floor one step early, at total - 1", "cosine",
      "total - warm", "max(warm + 1, total - 1) - warm")
wrong("using step / total in the cosine, which then starts below the peak", "cosine",
      "(step - warm) / (total - warm)", "(step - warm + warm) / total")
wrong("testing step <= warm, which puts one step above the peak", "cosine",
      "if step", "if warm and step == warm: return peak * (step + 1) / warm\n    if step",
      says="on the cosine")
ex.wrong("adding peak times the cosine to the floor",
         lambda step, warm, total, peak, floor: curve(step, warm, total, peak, floor) if step <
             warm else floor + curve(step, warm, total, peak, 0.0), breaks="cosine")
wrong("using a whole cosine, which falls and rises again",
      ("cosine", "end"), "math.pi", "2 * math.pi")
wrong("using a quarter of a cosine instead of half a cosine",
      "cosine", MATH, "math.cos(math.pi / 2 * min(1.0, done))")
wrong("using 1 + cosine without halving it",
      "cosine", MATH, "1 + math.cos(math.pi * min(1.0, done))")
wrong("using a straight line instead of a cosine", "cosine", MATH, "1 - min(1.0, done)")
wrong("letting the rate climb again past the end", "end", "min(1.0, done)", "done")
wrong("setting the rate to zero past the end",
      "end", "if step", "if step > total: return 0.0\n    if step")
wrong("treating a warm-up of 0 steps as a warm-up of one step", "no warm-up",
      "if step", "if total <= 1: return peak\n    warm = max(1, warm)\n    if step")


@ex.wrong("dividing by warm, which can be 0", says="raised ZeroDivisionError",
          breaks="no warm-up")
def divides_by_warm(step, warm, total, peak, floor):
    return min(peak * (step + 1) / warm, curve(max(step, warm), warm, total, peak, floor))


wrong("treating a floor of zero as a missing floor", "no floor",
      "if step", "floor = floor or 0.1 * peak\n    if step")


@ex.wrong("counting calls instead of using the step", says="rate at", breaks="any order")
def counts_calls(step, warm, total, peak, floor, calls=[0]):  # noqa: B006
    calls[0] = 0 if step == 0 else calls[0] + 1
    return curve(calls[0], warm, total, peak, floor)
