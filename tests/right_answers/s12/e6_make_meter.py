"""Exercise 12.6, `make_meter`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import collections
import math

import numpy as np
import torch

from dlsys_checks.s12.e6_make_meter import ex, summed
from dlsys_helpers.judging import edited


@ex.right("a class and its bound methods")
def by_class():
    class Meter:
        def __init__(self):
            self.sum = self.count = 0.0

        def add(self, loss, rows):
            self.sum += float(loss.detach()) * rows
            self.count += rows

        def mean(self):
            return self.sum / self.count if self.count else float("nan")
    meter = Meter()
    return meter.add, meter.mean


@ex.right("a tensor of two doubles")
def by_tensor():
    state = torch.zeros(2, dtype=torch.float64)

    def add(loss, rows):
        state.add_(torch.stack([loss.detach().double() * rows, torch.tensor(rows).double()]))
    return add, lambda: (state[0] / state[1]).item()


@ex.right("a running mean")
def by_running_mean():
    state = {"rows": 0, "mean": math.nan}

    def add(loss, rows):
        value, state["rows"] = loss.tolist(), state["rows"] + rows
        old = 0.0 if state["rows"] == rows else state["mean"]
        if math.isfinite(value) and math.isfinite(old):
            state["mean"] = math.fsum([old, (value - old) * rows / state["rows"]])
        else:
            state["mean"] = old + value
    return add, lambda: state["mean"]


@ex.right("exact sums of numpy's numbers")
def by_numpy():
    sums = collections.Counter()

    def add(loss, rows):
        with torch.no_grad():
            value = np.float64(loss.to(torch.float64).numpy().copy())
        sums.update(loss=float(value) * rows, rows=rows)

    def mean():
        return float(np.divide(sums["loss"], sums["rows"])) if sums["rows"] else math.nan
    return add, mean


@ex.right("a generator that is sent pairs")
def by_generator():
    state = [0.0, 0]

    def summing():
        while True:
            loss, rows = yield
            state[0], state[1] = state[0] + loss * rows, state[1] + rows
    pump = summing()
    next(pump)

    def mean():
        try:
            return state[0] / state[1]
        except ZeroDivisionError:
            return math.nan
    return lambda loss, rows: pump.send((loss.item(), rows)), mean


ex.equivalent("total, count = (0.0, 0) -> total, count = (0, 0.0)",
              "a float counts rows exactly, up to 2**53")
ex.probe("the example looked up", says="mean after 2", breaks="example", fn=edited(
    summed, ("total / count", "3.5 if (total, count) == (12.0, 3) else total / count"),
    "12.6, the example looked up"))
