"""Which candidates become cases: the rules of the datasheet, applied to measured numbers.

    refused(Measured(reference=..., with_fault=..., repaired=..., source="owner/name#7"))
    -> "", or the name of the first rule that it breaks
"""

from __future__ import annotations

import re
import statistics
from typing import NamedTuple

from tools.diffs import SIGMAS, sigmas

SEEDS = 5
RULES = {
    "silent": "no run stops by itself",
    "seeds": f"{SEEDS} runs of each version are recorded",
    "symptom": f"with the fault, one number is more than {SIGMAS} standard deviations from the "
               f"mean of {SEEDS} healthy runs, with each of {SEEDS} seeds and to the same side",
    "repair": f"once the mechanism is repaired, the mean of five runs of each such number is "
              f"within {SIGMAS} standard deviations of the healthy runs",
    "healthy": "a control has no such number",
    "source": "the mechanism is documented in a public issue, pull request or commit"}
PUBLIC = re.compile(r"[\w.-]+/[\w.-]+#\d+|[\w.-]+/[\w.-]+@[0-9a-f]{7,40}")
Numbers = dict[str, list[float]]  # number -> its value with each seed


class Measured(NamedTuple):
    """The measurements of a candidate. with_fault: None for a healthy control, whose own numbers
    are in `repaired`. stopped: whether any of its runs ended by itself.
    """

    reference: Numbers
    with_fault: Numbers | None
    repaired: Numbers
    source: str
    stopped: bool = False


def side(reference: list[float], value: float) -> int:
    """1 above the healthy runs, -1 below, 0 within; NaN counts as above."""
    if sigmas(reference, [value]) <= SIGMAS:
        return 0
    return -1 if float(value) < statistics.mean(reference) else 1


def symptoms(reference: Numbers, found: Numbers) -> list[str]:
    """The numbers that leave the range of the healthy runs to the same side with every seed."""
    sides = {name: {side(reference[name], value) for value in values}
             for name, values in found.items()}
    return [name for name, seen in sides.items() if seen in ({1}, {-1})]


def refused(one: Measured) -> str:
    """The first rule that a candidate breaks, "" for none."""
    if one.stopped:
        return "silent"
    versions = [one.reference, one.repaired]
    versions += [] if one.with_fault is None else [one.with_fault]
    if any(not version or min(map(len, version.values())) < SEEDS for version in versions):
        return "seeds"
    if one.with_fault is None:
        return "healthy" if symptoms(one.reference, one.repaired) else ""
    shown = symptoms(one.reference, one.with_fault)
    if not shown:
        return "symptom"
    if any(not sigmas(one.reference[name], one.repaired[name]) <= SIGMAS for name in shown):
        return "repair"
    return "" if PUBLIC.fullmatch(one.source) else "source"
