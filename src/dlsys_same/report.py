"""The report of a comparison, for a person to read."""

from __future__ import annotations

from dlsys_same.compare import FLOOR, NOUNS, TIMES, Result
from dlsys_same.recorder import KINDS
from dlsys_watch.places import printable


def lines(result: Result) -> list[str]:
    """The findings, one line for each kind of tensor, the first difference last."""
    if result.problem:
        return [printable(result.problem)]
    found, first = [], result.first
    for kind in KINDS:
        count = result.compared[kind] - (first is not None and first.kind == kind)
        if count:
            found.append(f"{NOUNS[kind]}: {count} agree, the largest difference is "
                         f"{result.largest[kind]:.1e} of the norm")
    if first is None:
        return [*found, f"The two agree in {result.steps} step{'s' * (result.steps != 1)}."]
    share = "" if first.distance == float("inf") else f", by {first.distance:.2g} of the norm"
    found.append(f"First difference: step {first.step}, {NOUNS[first.kind]}, "
                 f"{printable(first.name)}{share}.")
    if first.allowed:
        found.append(f"Allowed was {first.allowed:.1e}. Rounding the weights of the first program "
                     f"changes this tensor by {first.rounding:.1e}; {TIMES} times that is allowed, "
                     f"or {TIMES} times the median of its kind, or {FLOOR} times the machine "
                     "epsilon, whichever is largest.")
    return [*found, printable(first.why)] if first.why else found
