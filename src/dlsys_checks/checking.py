"""`check`: the verdict on a learner's function, shown and remembered."""

from __future__ import annotations

import importlib
import inspect
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dlsys_checks import aims
from dlsys_checks.cases import failed_case
from dlsys_checks.registry import find, load_all
from dlsys_helpers import acting, cards, catalog, progress, room_client
from dlsys_helpers.errors import OneLine
from dlsys_helpers.expect import show
from dlsys_helpers.timeouts import SECONDS
from dlsys_helpers.verdicts import Verdict

FIXED_SEEDS = (0, 1)


class CheckFailed(OneLine, AssertionError):
    """An exercise does not pass."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.line())
        self.verdict = verdict


class BadCall(OneLine, TypeError):
    """`check` was not called as `check("01.4", f)`."""


class Stopped(OneLine, KeyboardInterrupt):
    """A learner interrupted a check."""


def run_check(id: str, fn: Callable, seeds: Sequence[int] = (*FIXED_SEEDS, 2),
              seconds: float | None = None) -> Verdict:
    """The verdict on `fn` over the cases of all seeds; records and shows nothing.

    seconds: the time that `fn` has for one case. Raises ValueError for an unknown id.
    """
    chosen = find(id)
    if not callable(fn):
        drop = "quotes" if isinstance(fn, str) else "brackets"
        return Verdict("wrong", id, f"second argument: got {show(fn)}, expected your function "
                       f"{chosen.function}, without {drop}.")
    with acting.standard_session():  # outer: cheap to enter again per case
        for seed in seeds:
            cases = chosen.arrange(seed)
            outcomes = chosen.outcomes(fn, cases, seconds)
            verdict = chosen.judge(cases, outcomes)
            if verdict.status != "pass":
                return replace(verdict, seed=None if verdict.status == "todo" else seed)
    return Verdict("pass", id)


def drawn_seeds() -> tuple[int, ...]:
    """The seeds of a learner's own check: the fixed ones, and one that nobody has seen before."""
    return (*FIXED_SEEDS, secrets.randbelow(2**31))


def check(id: str, fn: Callable, seconds: float = SECONDS) -> None:
    """Check your answer to an exercise: fixed cases and cases nobody has seen before.

    Shows a card with the verdict and remembers it in your progress. An answer that takes longer
    than `seconds` on one case is stopped, except on Windows. Unless the answer passes, raises
    CheckFailed where nobody sees the card, so that nbval, papermill and scripts notice. Raises
    BadCall for arguments that are not the id of an exercise and a function, Stopped for a Ctrl-C.
    """
    _refuse_bad_call(id, fn)
    _import_slow_parts(id)
    try:
        verdict = run_check(id, fn, drawn_seeds(), seconds)
    except KeyboardInterrupt as stop:
        at = acting.learner_frame(stop)
        raise Stopped(f"exercise {id}: you stopped its check{at and f' in {at}'}") from None
    progress.record(id, verdict.status, verdict.misconception)
    room_client.tell_verdicts(verdict)
    tell(verdict, catalog.trap(id), failed_case(verdict, fn))


def _import_slow_parts(id: str) -> None:
    """Import what PyTorch imports with the first optimizer, which takes seconds: the time limit is
    for the learner's own code.
    """
    if "optim" in inspect.getsource(inspect.getmodule(find(id).law_fn)):
        importlib.import_module("torch._dynamo")


def with_fitting_hint(mistake: str, trap: catalog.Trap) -> catalog.Trap:
    """The trap with the hint for a named mistake as its first hint, if one is for it."""
    first = aims.hint_for(trap.id, mistake, trap.hints)
    return replace(trap, hints=tuple(sorted(trap.hints, key=lambda hint: hint != first)))


def tell(verdict: Verdict, trap: catalog.Trap, case: str = "") -> None:
    """Show the card of a verdict. Raises CheckFailed for a failure whose card nobody sees."""
    cards.show_verdict(verdict, with_fitting_hint(verdict.misconception, trap), case)
    if verdict.status != "pass" and not cards.watched():
        raise CheckFailed(verdict)


def _refuse_bad_call(id: Any, fn: Any) -> None:
    """Raise BadCall, which says how to write it, for an id that is none."""
    if isinstance(fn, str) and not isinstance(id, str):
        raise BadCall("check: got the id second, expected it first. " + _call(fn))
    if not isinstance(id, str):
        raise BadCall(f"check: got {show(id)}, expected the id of an exercise as a text in quotes. "
                      + _call(str(id)))
    try:
        find(id)
    except ValueError:
        raise BadCall(f"check: got {id[:40]!r}, which is the id of no exercise. "
                      + _call(id)) from None


def _call(id: str) -> str:
    """How to check the exercise that is probably meant, or the first of all."""
    known = load_all()
    chosen = known.get(catalog.as_id(id)) or known[min(known)]
    return f'Write: check("{chosen.id}", {chosen.function})'


def _explain_missing_name(shell: Any, kind: type, error: NameError, trace: Any,
                          tb_offset: int | None = None) -> None:
    """One line for a check that runs before the cells above it; else the usual traceback."""
    if re.match(r"line \d+: check\(", acting.learner_frame(error)):
        line = (f"{error.name} is not defined yet. Run the set-up cell at the top, then the cell "
                "of your answer, then this check.")
        error._render_traceback_ = lambda: [line]
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


if cards.shell() is not None:
    cards.shell().set_custom_exc((NameError,), _explain_missing_name)
