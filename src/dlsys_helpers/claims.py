"""Claims bind a statement of the lesson to a value that a cell computed."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dlsys_helpers import cards
from dlsys_helpers.errors import OneLine


class ClaimFailed(OneLine, AssertionError):
    """A statement of the lesson does not hold for the value measured here."""


class Claim(NamedTuple):
    text: str
    value: float
    bound: str
    holds: bool


YES_NO = {1: "yes", 0: "no"}
LOG: list[Claim] = []  # every claim made in this process, for the sweep over seeds


def claim(text: str, value: Any, *, expected: float | None = None, within: float | None = None,
          below: float | None = None, above: float | None = None) -> None:
    """State that `value` is `expected` (give or take `within`), or is `below`, or `above`.

    value: a number, bool or tensor of one element. NaN satisfies no claim. `below` and `above`
    may be combined; both are strict. Shows one quiet line: the measured value next to the bound, or
    yes or no where True or False is expected. Raises ClaimFailed when the claim does not hold,
    ValueError for a claim without a bound.
    """
    number = float(value.item() if hasattr(value, "item") else value)
    bound, holds = judge(number, expected, within, below, above)
    LOG.append(Claim(text, number, bound, holds))
    if not holds:
        got = YES_NO.get(number) if isinstance(expected, bool) else None
        raise ClaimFailed(f"{text}: got {got or f'{number:.6g}'}, expected {bound}.")
    cards.show_claim(f"{text}: {_reading(number, bound, expected, within)}")


def judge(number: float, expected: float | None = None, within: float | None = None,
          below: float | None = None, above: float | None = None) -> tuple[str, bool]:
    """A bound in words, and whether the number satisfies it."""
    if (expected is None) == (below is None and above is None):
        raise ValueError("claim: got no bound or two kinds, expected either expected= with "
                         "optional within=, or below= and/or above=.")
    if expected is not None:
        spread = 0.0 if within is None else within
        bound = YES_NO[expected] if isinstance(expected, bool) else f"{expected:g}"
        bound += f" ± {spread:g}" if spread else ""
        return bound, abs(number - expected) <= spread
    named = {"above": above, "below": below}
    parts = [f"{side} {limit:g}" for side, limit in named.items() if limit is not None]
    low = -math.inf if above is None else above
    high = math.inf if below is None else below
    return " and ".join(parts), not math.isnan(number) and low < number < high


def _reading(number: float, bound: str, expected: float | None, within: float | None) -> str:
    """The measured number, with as many digits as its bound needs, and the bound."""
    if expected is None:
        return f"{number:{'.0f' if 1e3 <= abs(number) < 1e6 else '.3g'}}, {bound}"
    places = max(0, -math.floor(math.log10(within))) if within else 0
    return f"{round(number, places) + 0.0:.10g}, expected {bound}" if within else bound
