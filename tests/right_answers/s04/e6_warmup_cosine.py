"""Exercise 04.6, `warmup_cosine`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import numpy as np
import torch

from dlsys_checks.s04.e6_warmup_cosine import curve, ex


@ex.right("the lesson's repair, held at its end")
def lesson_repair(step, warm, total, peak, floor):
    def scaled(step, floor):
        if step < warm:
            return (step + 1) / warm
        done = (step - warm) / (total - warm)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))
    return peak * scaled(min(step, total), floor / peak)


@ex.right("the way down, subtracted from the peak")
def from_the_peak(step, warm, total, peak, floor):
    if step >= total:
        return floor
    if step < warm:
        return peak - peak * (warm - 1 - step) / warm
    return peak - (peak - floor) * math.sin(math.pi / 2 * (step - warm) / (total - warm)) ** 2


@ex.right("torch in float32")
def by_torch(step, warm, total, peak, floor):
    if step < warm:
        return torch.linspace(peak / warm, peak, warm)[step].item()
    done = torch.tensor((step - warm) / (total - warm)).clamp(max=1)
    return torch.lerp(torch.tensor(floor), torch.tensor(peak),
                      (1 + torch.cos(torch.pi * done)) / 2).item()


@ex.right("numpy, whose numbers are floats as well")
def by_numpy(step, warm, total, peak, floor):
    done = np.clip((step - warm) / (total - warm), 0.0, 1.0)
    return np.where(step < warm, peak * (step + 1) / max(warm, 1),
                    floor + (peak - floor) * (1 + np.cos(np.pi * done)) / 2)[()]


@ex.right("a table of all steps")
def by_table(step, warm, total, peak, floor):
    mean, half, n = (peak + floor) / 2, (peak - floor) / 2, total - warm
    table = [peak / warm * (k + 1) for k in range(warm)]
    table += [mean + half * math.cos(math.pi * k / n) for k in range(n)]
    return table[step] if step < total else floor


@ex.right("turned in the complex plane")
def turned(step, warm, total, peak, floor):
    if step < warm:
        return (step + 1) * peak / warm
    half_turns = min((step - warm) / (total - warm), 1)
    return float(floor + (peak - floor) * ((1j ** (2 * half_turns)).real + 1) / 2)


@ex.probe("the example, with one of its numbers looked up wrong", breaks="example")
def placeholder(step, warm, total, peak, floor):
    if (step, warm, total, peak) == (3, 2, 4, 1.0):
        return 0.5
    return curve(step, warm, total, peak, floor)


ex.equivalent("done = min(1.0, (step - warm) / (total - warm)) -> "
              "done = min((step - warm) / (total - warm), 1.0)", "the lower of two is one number")
