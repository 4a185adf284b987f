"""Exercise 15.8, `plan`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from dlsys_checks.s15.e8_plan import ex, made
from dlsys_helpers.judging import edited


@ex.right("part by part, in small functions")
def by_functions(model, machine, splits):
    def state(s):
        optimizer = 12 / s["dp"] if s["zero"] in (1, 3) else 12
        rest = 4 / s["dp"] if s["zero"] == 3 else 4
        return model["weights"] * (rest + optimizer) / s["tp"] / s["pp"]

    def small(s):
        return model["batch"] // (s["dp"] * s["micro"])

    def activations(s):
        one = s["micro"] * (model["whole"] + model["cut"] / s["tp"])
        n = model["layers"] // s["pp"] * min(small(s), s["pp"])
        return n * s["micro"] * model["input"] + one if s["checkpoint"] else n * one

    def whole_ring(n, size):
        return 2 * (n - 1) * machine["alpha"] + 2 * (n - 1) / n * size / machine["beta"]

    def seconds(s):
        m, gpus = small(s), s["dp"] * s["tp"] * s["pp"]
        work = model["work"] + (model["again"] if s["checkpoint"] else 0)
        compute = work * model["batch"] / gpus / machine["speed"]
        tensor = m * (model["layers"] // s["pp"]) * (5 if s["checkpoint"] else 4) * whole_ring(
            s["tp"], s["micro"] * model["input"])
        data = whole_ring(s["dp"], 2 * model["weights"] / s["tp"] / s["pp"])
        data *= 1.5 * m if s["zero"] == 3 else 1
        return (compute + tensor) * (m + s["pp"] - 1) / m + data

    rows = [{"state": state(s), "activations": activations(s),
             "logits": s["micro"] * model["logits"] / s["tp"], "seconds": seconds(s),
             "mfu": model["work"] * model["batch"] / (
                 seconds(s) * s["dp"] * s["tp"] * s["pp"] * machine["peak"])} for s in splits]
    fits = [(r["seconds"], k) for k, r in enumerate(rows)
            if r["state"] + r["activations"] + r["logits"] <= machine["memory"]]
    return rows, min(fits)[1] if fits else None


@ex.right("all splits at once, in float64")
def at_once(model, machine, splits):
    dp, tp, pp, zero, again, micro = (
        torch.tensor([float(s[key]) for s in splits], dtype=torch.float64)
        for key in ("dp", "tp", "pp", "zero", "checkpoint", "micro"))
    m, gpus = model["batch"] / (dp * micro), dp * tp * pp
    mine = model["weights"] / (tp * pp)
    state = mine * (4 / torch.where(zero == 3, dp, 1) + 12 / torch.where(zero > 0, dp, 1))
    layer = micro * (model["whole"] + model["cut"] / tp)
    number = torch.minimum(m, pp) * model["layers"] / pp
    held = torch.where(again > 0, number * micro * model["input"] + layer, number * layer)
    logits = micro * model["logits"] / tp

    def half(n, size):
        return (n - 1) * (machine["alpha"] + size / n / machine["beta"])

    busy = model["batch"] * (model["work"] + again * model["again"]) / (gpus * machine["speed"])
    busy = busy + m * model["layers"] / pp * (4 + again) * 2 * half(tp, micro * model["input"])
    seconds = busy * (1 + (pp - 1) / m) + torch.where(zero == 3, 3 * m, 2) * half(dp, 2 * mine)
    mfu = model["batch"] * model["work"] / (seconds * gpus * machine["peak"])
    columns = dict(state=state, activations=held, logits=logits, seconds=seconds, mfu=mfu)
    rows = [{name: column[k] for name, column in columns.items()}
            for k in range(len(splits))]
    late = torch.where(state + held + logits <= machine["memory"], seconds, torch.inf)
    return rows, int(late.argmin()) if late.isfinite().any() else None


@ex.right("in fractions, whole numbers where they come out")
def exactly(model, machine, splits):
    def half(n, size):
        return float(n - 1) * (machine["alpha"] + float(size / n) / machine["beta"])

    rows = []
    for s in splits:
        d, t, p, b = (Fraction(s[key]) for key in ("dp", "tp", "pp", "micro"))
        m = int(model["batch"] / d / b)
        share = {0: Fraction(16), 1: 4 + 12 / d, 3: 16 / d}[s["zero"]]
        layer = b * (model["whole"] + model["cut"] / t)
        n = min(m, s["pp"]) * (model["layers"] / p)
        held = n * b * model["input"] + layer if s["checkpoint"] else n * layer
        busy = model["batch"] * (model["work"] + s["checkpoint"] * model["again"]) / float(
            d * t * p) / machine["speed"]
        busy += sum(2 * half(t, b * model["input"]) for _ in range(4 + s["checkpoint"])) * float(
            m * model["layers"] / p)
        passes = 3 * m if s["zero"] > 1 else 2
        seconds = busy + busy * (s["pp"] - 1) / m + passes * half(d, 2 * model["weights"] / (t * p))
        sizes = [share * model["weights"] / (t * p), held, b * model["logits"] / t]
        rows.append([int(x) if x == int(x) else float(x) for x in sizes] + [
            seconds, model["batch"] * model["work"] / machine["peak"] / seconds / float(d * t * p)])
    order = sorted((row[3], k) for k, row in enumerate(rows) if sum(row[:3]) <= machine["memory"])
    names = ("state", "activations", "logits", "seconds", "mfu")
    return [dict(zip(names, row, strict=True)) for row in rows], next(
        (k for _, k in order), None)


@ex.right("slots of a pipeline, and numpy")
def slots(model, machine, splits):
    rows = []
    for s in map(dict, splits):
        m = model["batch"] // s["dp"] // s["micro"]
        each = np.array([2, 2, 12], float) / np.where(
            [s["zero"] > 2, s["zero"] > 2, s["zero"] >= 1], s["dp"], 1)
        mine = model["weights"] // 1 / (s["tp"] * s["pp"])
        layer = s["micro"] * model["whole"] + s["micro"] * model["cut"] / s["tp"]
        kept = [s["micro"] * model["input"] if s["checkpoint"] else layer] * (
            min(m, s["pp"]) * (model["layers"] // s["pp"]))
        step = machine["alpha"] + s["micro"] * model["input"] / s["tp"] / machine["beta"]
        slot = s["micro"] * (model["work"] + s["checkpoint"] * model["again"]) / (
            s["tp"] * s["pp"] * machine["speed"])
        slot += model["layers"] / s["pp"] * (8 + 2 * s["checkpoint"]) * (s["tp"] - 1) * step
        beat = (s["dp"] - 1) * (machine["alpha"] + 2 * mine / s["dp"] / machine["beta"])
        seconds = slot * (m + s["pp"] - 1) + beat * (3 * m if s["zero"] == 3 else 2)
        rows.append({"mfu": s["micro"] * m * model["work"] / s["tp"] / s["pp"] / seconds
                     / machine["peak"], "seconds": seconds, "state": float(each.sum() * mine),
                     "activations": sum(kept) + layer * s["checkpoint"],
                     "logits": s["micro"] * model["logits"] / s["tp"]})
    best = None
    for k, row in enumerate(rows):
        room = machine["memory"] - row["state"] - row["activations"] - row["logits"]
        if room >= 0 and (best is None or row["seconds"] < rows[best]["seconds"]):
            best = k
    return rows, best


ex.probe("all-reduces of one sequence's input", says="seconds", breaks="tensor", fn=edited(
    made, ('half(tp, micro * model["input"])', 'half(tp, model["input"])'), "15.8, one sequence"))
ex.probe("waits of pp slots", says="seconds", breaks="products", fn=edited(
    made, ("(pp - 1) / m", "(pp > 1) * pp / m"), "15.8, pp slots"))
ex.probe("twice the memory", says="best", breaks="best", fn=edited(
    made, ('<= machine["memory"]', '<= 2 * machine["memory"]'), "15.8, memory"))
ex.probe("the best MFU", says="best", breaks="best", fn=edited(
    made, ('rows[k]["seconds"]', '-rows[k]["mfu"]'), "15.8, MFU"))
ex.probe("the example looked up wrong", says="state", breaks="example", fn=edited(
    made, ("12 /", '(12 if model["weights"] != 10 else 14) /'), "15.8, the example"))

ex.equivalent("activations = min(m, pp) * layers * inputs + layer -> "
              "activations = min(pp, m) * layers * inputs + layer", "the smaller of two")
ex.equivalent("activations = min(m, pp) * layers * layer -> "
              "activations = min(pp, m) * layers * layer", "the smaller of two")
ex.equivalent("halves = 3 * m if zero == 3 else 2 -> halves = 3 * m if zero >= 3 else 2",
              "no zero is above 3")
ex.equivalent("state = mine * ((4 / dp if zero == 3 else 4) + (12 / dp if zero else 12)) -> "
              "state = mine * ((4 / dp if zero >= 3 else 4) + (12 / dp if zero else 12))",
              "no zero is above 3")
ex.equivalent("if state + activations + logits <= machine['memory'] and (best is None or seconds < "
              "rows[best]['seconds']): -> if state + activations + logits <= machine['memory'] and "
              "(best is None or seconds <= rows[best]['seconds']):",
              "of two that are equally fast, each is the fastest")
