"""Claims bind a statement of the lesson to a value that a cell computed."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dlsys_helpers import cards


class ClaimFailed(AssertionError):
    """A statement of the lesson does not hold for the value measured here."""

    def _render_traceback_(self) -> list[str]:
        return [f"ClaimFailed: {self}"]


class Claim(NamedTuple):
    text: str
    value: float
    bound: str
    holds: bool


LOG: list[Claim] = []  # every claim made in this process, for the sweep over seeds


def claim(text: str, value: Any, *, expected: float | None = None, within: float | None = None,
          below: float | None = None, above: float | None = None) -> None:
    """State that `value` is `expected` (give or take `within`), or is `below`, or `above`.

    value: a number, bool or tensor of one element. NaN satisfies no claim. `below` and `above`
    may be combined; both are strict. Shows one quiet line when the claim holds.
    Raises ClaimFailed when it does not, ValueError for a claim without a bound.
    """
    number = float(value.item() if hasattr(value, "item") else value)
    bound, holds = judge(number, expected, within, below, above)
    LOG.append(Claim(text, number, bound, holds))
    if not holds:
        raise ClaimFailed(f"{text}: got {number:.6g}, expected {bound}.")
    cards.show_claim(f"{text}: {bound}")


def judge(number: float, expected: float | None = None, within: float | None = None,
          below: float | None = None, above: float | None = None) -> tuple[str, bool]:
    """A bound in words, and whether the number keeps it."""
    if (expected is None) == (below is None and above is None):
        raise ValueError("claim: got no bound or two kinds, expected either expected= with "
                         "optional within=, or below= and/or above=.")
    if expected is not None:
        spread = 0.0 if within is None else within
        bound = f"{expected:g}" + (f" ± {spread:g}" if spread else "")
        return bound, abs(number - expected) <= spread
    named = {"above": above, "below": below}
    parts = [f"{side} {limit:g}" for side, limit in named.items() if limit is not None]
    low = -math.inf if above is None else above
    high = math.inf if below is None else below
    return " and ".join(parts), not math.isnan(number) and low < number < high
