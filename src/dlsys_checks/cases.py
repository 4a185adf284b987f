"""The case on which an answer failed: in words for the card, and as inputs to look at."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dlsys_checks.registry import find
from dlsys_helpers import acting
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


def arguments(id: str, name: str, seed: int = 0) -> tuple[Any, ...]:
    """What the check of an exercise passes to your function in its first call on a case.

    A check builds models and optimizers from the inputs that `case` returns; these are the built
    ones, new at each call. seed, and the errors, are those of `case`.
    """
    calls: list[tuple[Any, ...]] = []

    def recorder(*given: Any, **named: Any) -> None:
        calls.append((*given, *named.values()))
        raise _Recorded

    acting.run_act(find(id).act_fn, recorder, acting.Case(name, case(id, name, seed)))
    return calls[0]


class _Recorded(BaseException):
    """The first call is over. No Exception, so that no act takes it for a promised error."""


def failed_case(verdict: Verdict, fn: Callable) -> str:
    """`"many rows" (x = a float32 tensor of shape (60, 6)). To look at it: ...`, or "".

    In brackets stands what the case holds of the parameters of `fn`. Where it does not hold all of
    them, the line to look at it returns the arguments of the first call, except for a class.
    """
    if not verdict.case:
        return ""
    seed, names = verdict.seed or 0, _parameters(fn)
    inputs = case(verdict.id, verdict.case, seed)
    given = ", ".join(f"{name} = {show(inputs[name])}" for name in names if name in inputs)
    if len(given) > LONGEST:
        given = f"{given[:LONGEST - 3]}..."
    built = not isinstance(fn, type) and any(name not in inputs for name in names)
    what = "arguments" if built else "case"
    drawn = f", seed={seed}" if seed else ""
    call = f'{what}("{verdict.id}", "{verdict.case}"{drawn})'
    if built:
        call = f"{', '.join(names)}{',' if len(names) == 1 else ''} = {call}"
    return (f'"{verdict.case}"{given and f" ({given})"}. To look at it: from dlsys_checks.cases '
            f'import {what}; {call}')


def _parameters(fn: Callable) -> list[str]:
    """The names that a call has to give values to."""
    try:
        found = inspect.signature(fn).parameters.items()
    except (TypeError, ValueError):  # a builtin without a signature
        return []
    return [name for name, one in found if one.default is one.empty
            and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
