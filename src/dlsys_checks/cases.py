"""The case on which an answer failed: in words for the card, and as inputs to look at."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dlsys_checks.registry import find
from dlsys_helpers.expect import show
from dlsys_helpers.verdicts import Verdict

LONGEST = 240


def case(id: str, name: str, seed: int = 0) -> dict[str, Any]:
    """The inputs of one case of a check, by name, made anew at each call.

    seed: which draw of the case; a card gives it where it is not 0. Raises ValueError, which lists
    the cases, for a name that is none, and for an unknown id.
    """
    inputs = {one.name: one.inputs for one in find(id).arrange(seed)}
    if name not in inputs:
        raise ValueError(f"case: got {name!r}, expected a case of exercise {id}, one of: "
                         f"{', '.join(map(repr, inputs))}.")
    return inputs[name]


def failed_case(verdict: Verdict, fn: Callable) -> str:
    """`"many rows" (x = a float32 tensor of shape (60, 6)). To look at it: ...`, or "".

    In brackets stands what the case holds of the parameters of `fn`.
    """
    if not verdict.case:
        return ""
    seed = verdict.seed or 0
    inputs = case(verdict.id, verdict.case, seed)
    given = ", ".join(f"{name} = {show(inputs[name])}" for name in _parameters(fn)
                      if name in inputs)
    if len(given) > LONGEST:
        given = f"{given[:LONGEST - 3]}..."
    drawn = f", seed={seed}" if seed else ""
    return (f'"{verdict.case}"{given and f" ({given})"}. To look at it: from dlsys_checks.cases '
            f'import case; case("{verdict.id}", "{verdict.case}"{drawn})')


def _parameters(fn: Callable) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        return []
