"""The first tensor in which two recorded runs differ by more than rounding.

What rounding does to this program is measured, not assumed: a third run, of the first program,
begins with weights that were changed by one unit in the last place. Its difference from the first
run shows what rounding grows to, tensor by tensor and step by step.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from dlsys_same.recorder import (
    DATA,
    EVALUATION,
    FORWARD,
    GRADIENT,
    KINDS,
    LOSS,
    SIZE,
    START,
    UPDATE,
)

TIMES = 16      # allowed difference, as a multiple of the one that rounding made in the third run
FLOOR = 64      # and as a multiple of the machine epsilon, for sums in a different order
NOUNS = {START: "weights before the first step", DATA: "data", FORWARD: "output of a module",
         LOSS: "loss", GRADIENT: "gradient", UPDATE: "update of a weight",
         EVALUATION: "output in evaluation"}


@dataclass(frozen=True)
class Difference:
    """One tensor in which the runs differ. Distances are shares of the larger norm."""

    step: int            # from 1
    kind: str
    name: str
    distance: float
    allowed: float
    rounding: float      # how far the third run differs
    why: str             # the likely cause, in a sentence, or nothing

    def as_data(self) -> dict:
        return {"step": self.step, "kind": self.kind, "tensor": self.name,
                "distance": self.distance, "allowed": self.allowed, "rounding": self.rounding,
                "why": self.why}


@dataclass(frozen=True)
class Result:
    """What a comparison found: the first difference or none, and how much was compared."""

    first: Difference | None
    compared: dict[str, int]     # number of tensors by kind, including the first difference
    largest: dict[str, float]    # distance by kind, among those that agree
    steps: int
    problem: str = ""            # why the runs could not be compared

    @property
    def agree(self) -> bool:
        return self.first is None and not self.problem


def epsilon(records: list[dict]) -> float:
    """The machine epsilon of the coarsest dtype in which a module computed."""
    return max(record["coarsest"] for record in records) or torch.finfo(torch.float32).eps


def joined(parts: list[torch.Tensor], summed: bool) -> torch.Tensor:
    """Micro-batches as one batch: their rows concatenated; the parts of a loss are added."""
    return torch.cat(parts).sum(0, keepdim=True) if summed else torch.cat(parts)


def merged(ranks: list[dict]) -> list[dict]:
    """The steps of all ranks as those of one: rows together, losses as a mean.

    Gradients, updates and weights are equal on all ranks after the reduction; rank 0's are taken.
    """
    steps = []
    for place, step in enumerate(ranks[0]["steps"]):
        found = {}
        for (kind, name), parts in step.items():
            found[kind, name] = joined(parts, kind == LOSS)
            others = [r["steps"][place].get((kind, name)) for r in ranks[1:]
                      if place < len(r["steps"])]
            rest = [joined(o, kind == LOSS) for o in others if o]
            if kind in (DATA, FORWARD, EVALUATION):
                found[kind, name] = torch.cat([found[kind, name], *rest])
            elif kind == LOSS:
                found[kind, name] = torch.stack([found[kind, name], *rest]).mean(0)
        steps.append(found)
    return steps


def ordered(values: torch.Tensor) -> torch.Tensor:
    """Indices that sort the rows of a matrix."""
    rows = sorted(range(len(values)), key=lambda k: values[k].tolist())
    return torch.tensor(rows, dtype=torch.int64)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Norm of the difference, as a share of the larger norm; NaN equals NaN."""
    both = torch.isnan(a) & torch.isnan(b)
    a, b = a.masked_fill(both, 0), b.masked_fill(both, 0)
    scale = max(a.norm().item(), b.norm().item())
    if torch.equal(a, b):
        return 0.0
    gap = (a - b).norm().item() / scale
    return gap if gap == gap else float("inf")


def compare(first: list[dict], second: list[dict], shaken: list[dict]) -> Result:
    """The first difference of two runs; `shaken` is the first program with rounded weights.

    Each run is a list with the record of every rank.
    """
    eps = epsilon(first + second)
    types = {**second[0]["types"], **first[0]["types"]}
    a, b, c = merged(first), merged(second), merged(shaken)
    several = first[0]["world"] > 1 or second[0]["world"] > 1
    compared = dict.fromkeys(KINDS, 0)
    largest = dict.fromkeys(KINDS, 0.0)
    for place, (one, other) in enumerate(zip(a, b, strict=False)):
        again = c[place] if place < len(c) else {}
        if several:
            align(one, other, again)
        for kind in KINDS:
            usual = usually(kind, one, again)
            for name in dict.fromkeys(n for k, n in [*one, *other] if k == kind):
                if (trouble := missing(one, other, kind, name)):
                    gone = Difference(place + 1, kind, name, float("inf"), 0.0, 0.0, trouble)
                    return Result(gone, compared, largest, min(len(a), len(b)))
                found = judge(one, other, again, kind, name, eps, usual)
                if found is None:
                    continue
                gap, allowed, rounding = found
                if (trouble := unstable(kind, rounding, eps)):
                    return Result(None, compared, largest, len(a), trouble)
                compared[kind] += 1
                if gap <= allowed:
                    largest[kind] = max(largest[kind], gap)
                    continue
                why = reason(one, other, kind, name, allowed, types)
                return Result(Difference(place + 1, kind, name, gap, allowed, rounding, why),
                              compared, largest, min(len(a), len(b)))
    return Result(None, compared, largest, min(len(a), len(b)), uneven(a, b, compared))


def uneven(a: list[dict], b: list[dict], compared: dict) -> str:
    """What was not compared although it should have been."""
    if not sum(compared.values()):
        return ("The two runs have no tensor in common: no module of one has a namesake in the "
                "other.")
    if len(a) != len(b):
        return f"They agree as far as both go, but the first made {len(a)} steps, the second " \
               f"{len(b)}."
    return ""


def unstable(kind: str, rounding: float, eps: float) -> str:
    """Why nothing can be compared if the first program draws different data in each run."""
    if kind not in (START, DATA) or rounding <= FLOOR * eps:
        return ""
    what = "draw different data" if kind == DATA else "begin with different weights"
    return (f"Two runs of the first program {what}, so nothing can be compared. Set the seed of "
            "every generator, or fix the order.")


def missing(one: dict, other: dict, kind: str, name: str) -> str:
    """Name a weight that one of the runs does not have, or does not train."""
    if kind not in (START, GRADIENT, UPDATE) or ((kind, name) in one) == ((kind, name) in other):
        return ""
    which = "second" if (kind, name) in one else "first"
    return f"The {which} has none for it." if kind != START else f"The {which} has no such weight."


def usually(kind: str, one: dict, again: dict) -> float:
    """The median effect of rounding on the tensors of a kind in a step.

    For a tensor with few values, the effect in a single run may be small by chance.
    """
    found = [distance(one[key], again[key]) for key in one
             if key[0] == kind and key in again and again[key].shape == one[key].shape]
    return statistics.median(found) if found else 0.0


def judge(one, other, again, kind, name, eps, usual) -> tuple[float, float, float] | None:
    """Distance, allowed distance and effect of rounding; None if there is nothing to compare."""
    x, y = one.get((kind, name)), other.get((kind, name))
    if x is None or y is None:
        return None
    if x.shape[1:] != y.shape[1:]:
        return float("inf"), 0.0, 0.0
    if len(x) != len(y):
        # A module without a batch as input, such as a position table, runs once per micro-batch.
        return (float("inf"), 0.0, 0.0) if kind in (DATA, EVALUATION) else None
    z = again.get((kind, name))
    rounding = distance(x, z) if z is not None and z.shape == x.shape else 0.0
    allowed = max(TIMES * rounding, TIMES * usual, FLOOR * eps)
    if kind == UPDATE:  # the difference of two weights, each of which was rounded
        size = max(one[SIZE, name].item(), other[SIZE, name].item())
        allowed += 4 * eps * size / max(x.norm().item(), y.norm().item(), 1e-300)
    return distance(x, y), allowed, rounding


def align(one: dict, other: dict, again: dict) -> None:
    """Sort the rows of a step by its first input, because ranks may have divided them."""
    key = next((k for k in one if k[0] == DATA and k in other), None)
    for step in (one, other, again):
        if key is None or key not in step:
            continue
        order = ordered(step[key])
        for where in [k for k in step if k[0] in (DATA, FORWARD)]:
            if len(step[where]) == len(order):
                step[where] = step[where][order]


# ---- what is known of a difference

def reason(one, other, kind, name, allowed, types) -> str:
    x, y = one[kind, name], other[kind, name]
    if kind in (DATA, EVALUATION):
        return of_rows(x, y)
    if x.shape == y.shape and kind in (LOSS, GRADIENT, UPDATE):
        times = (x * y).sum().item() / max((x * x).sum().item(), 1e-300)
        if times and distance(times * x, y) <= max(allowed, 1e-6) and (
                x.numel() > 1 or is_simple(times)):
            everywhere = " in every element" if x.numel() > 1 else ""
            return f"The second's is {times:.6g} times the first's{everywhere}."
    return OF_CLASS.get(types.get(name.split("[")[0], ""), "") or OF_KIND.get(kind, "")


def is_simple(times: float) -> bool:
    """Whether this is a small whole number n or 1 / n: two scalars always have some factor."""
    return any(abs(number - round(number)) < 1e-3 and 1 < round(number) <= 4096
               for number in (abs(times), 1 / abs(times)))


def of_rows(x: torch.Tensor, y: torch.Tensor) -> str:
    """How the rows of a batch differ: fewer, different, or in a different order."""
    if x.shape[1:] != y.shape[1:]:
        return f"Its rows have {x.shape[1]} and {y.shape[1]} values."
    mine, theirs = [{tuple(row) for row in t.tolist()} for t in (x, y)]
    if len(x) != len(y):
        return (f"The first has {len(x)} rows, the second {len(y)}; {len(mine & theirs)} are in "
                "both.")
    if mine == theirs:
        return f"Both have the same {len(x)} rows, in a different order."
    return f"Of {len(x)} rows, {len(mine & theirs)} are in both."


_DROPOUT = ("Dropout draws random numbers, and draws different ones when the batch is split. "
            "Compare with p = 0.")
_NORM = ("In train mode it normalizes by the statistics of each micro-batch, so it cannot agree "
         "when a batch is split.")
OF_KIND = {
    START: "The programs initialize or load their weights differently.",
    LOSS: "The outputs agree, so the loss itself differs: its mean, its mask, or its scale.",
    GRADIENT: "The losses agree, so look at what comes between backward and step: gradients that "
              "are not reduced, not cleared, or clipped differently.",
    UPDATE: "The gradients agree, so the optimizer differs: its settings, its rate, or a state "
            "that was not restored."}
OF_CLASS = {**{f"{kind}Dropout{n}": _DROPOUT for kind in ("", "Alpha", "FeatureAlpha")
               for n in ("", "1d", "2d", "3d")},
            **{f"BatchNorm{n}d": _NORM for n in (1, 2, 3)}, "SyncBatchNorm": _NORM}
