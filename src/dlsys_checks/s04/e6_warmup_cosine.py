"""Exercise 04.6, `warmup_cosine`."""

from __future__ import annotations

import math

import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_close, expect_length

ex = exercise("04.6", "warmup_cosine",
              seen=("warm", "total", "peak", "floor"))


@ex.cases
def cases(g):
    def one(name, warm, total):
        peak = 0.1 + float(torch.rand((), generator=g))
        floor = peak * (0.1 + 0.2 * float(torch.rand((), generator=g)))
        return name, {"warm": warm, "total": total, "peak": peak, "floor": floor}
    return [one("a warm-up of 4 steps", 4, 20), one("a single step of warm-up", 1, 9),
            one("a long warm-up", 10, 13)]


@ex.act
def act(fn, warm, total, peak, floor):
    return [fn(step, warm, total, peak, floor) for step in range(total + 4)]


@ex.law
def law(out, warm, total, peak, floor):
    expect_length("rates", out, total + 4)
    for step, got in enumerate(out):
        if step < warm:
            wanted, where = peak * (step + 1) / warm, "in the warm-up"
        elif step < total:
            angle = math.pi / 2 * (step - warm + 1) / (total - warm)
            wanted = peak * math.cos(angle) ** 2 + floor * math.sin(angle) ** 2
            where = "on the cosine"
        else:
            wanted, where = floor, "past the end"
        expect_close(f"rate at step {step} ({where}, warm {warm}, total {total})", got, wanted,
                     rtol=1e-5, atol=1e-9)


def curve(step, warm, total, peak, floor, *, shift=1, first=1, span=None, cap=True,
          shape=lambda d: 0.5 * (1 + math.cos(math.pi * d))):
    """The right curve with the mistakes as options."""
    if step < warm:
        return peak * (step + first) / warm
    done = (step - warm + shift) / (span or total - warm)
    return floor + (peak - floor) * shape(min(1.0, done) if cap else done)


@ex.wrong("max() of the cosine and the floor", says="on the cosine")
def cut_off(step, warm, total, peak, floor):
    return max(floor, curve(step, warm, total, peak, 0.0)) if step >= warm else curve(
        step, warm, total, peak, floor)


@ex.wrong("a cosine that ends at zero", says="on the cosine")
def no_floor(step, warm, total, peak, floor):
    return curve(step, warm, total, peak, 0.0)


@ex.wrong("step / warm: the first step has a rate of zero", says="rate at step 0")
def zero_first(step, warm, total, peak, floor):
    return curve(step, warm, total, peak, floor, first=0)


@ex.wrong("off by one: the peak twice, the floor never", says="on the cosine")
def peak_twice(step, warm, total, peak, floor):
    return curve(step, warm, total, peak, floor, shift=0)


@ex.wrong("the cosine counted over all steps, warm-up included", says="on the cosine")
def over_total(step, warm, total, peak, floor):
    return curve(step, warm, total, peak, floor, span=total)


@ex.wrong("a rate that climbs again past the end", says="past the end")
def climbs_again(step, warm, total, peak, floor):
    return curve(step, warm, total, peak, floor, cap=False)


@ex.wrong("a straight line instead of a cosine", says="on the cosine")
def straight(step, warm, total, peak, floor):
    return curve(step, warm, total, peak, floor, shape=lambda d: 1 - d)
