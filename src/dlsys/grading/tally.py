"""How far an answer got: how many cases pass, and how many promises of the docstring it keeps.

A verdict names the first failure. This module counts all of them, on the same outcomes and with
the same laws.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dlsys_helpers.acting import Case, Outcome
from dlsys_helpers.judging import Exercise, Promise
from dlsys_helpers.verdicts import Verdict

Judged = list[tuple[Case, Verdict]]


def count(exercise: Exercise, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """How many cases pass, how many promises are kept, and the text of each broken promise.

    cases, outcomes: of all seeds. A promise that is neither kept nor broken was not reached.
    """
    judged = [(case, exercise.judge_one(case, outcome))
              for case, outcome in zip(cases, outcomes, strict=True)]
    return {**complete(exercise, len(judged)),
            "cases_held": sum(_passed(verdict) for _, verdict in judged),
            "promises_held": sum(is_kept(promise, judged) for promise in exercise.promises),
            "broken": [promise.text for promise in exercise.promises
                       if is_broken(promise, exercise.promises, judged)]}


def complete(exercise: Exercise, cases: int) -> dict[str, Any]:
    """What `count` returns for an answer that passes all these cases."""
    promises = len(exercise.promises)
    return {"cases": cases, "cases_held": cases, "promises": promises, "promises_held": promises,
            "broken": []}


def is_kept(promise: Promise, judged: Judged) -> bool:
    """Whether at least one of the promise's cases passed, and none failed because of the promise.

    A law stops at its first objection, so a case that failed because of another promise says
    nothing about this one.
    """
    mine = [(case, verdict) for case, verdict in judged
            if not promise.cases or case.name in promise.cases]
    return any(_passed(verdict) for _, verdict in mine) and not _fails(
        promise, (verdict for _, verdict in mine))


def is_broken(promise: Promise, promises: Sequence[Promise], judged: Judged) -> bool:
    """Whether a verdict decided against the promise: by its own phrases, or because its cases fail.

    Where every case fails, the promise's cases count against it only if no promise's phrases do.
    """
    mine = [verdict for _, verdict in judged if not _passed(verdict) and promise.decides(verdict)]
    if not mine or promise.says:
        return bool(mine)
    if any(_passed(verdict) for case, verdict in judged if case.name not in promise.cases):
        return True
    return any(not _no_law_reached(verdict) for verdict in mine) and not all(
        any(other.says and other.decides(verdict) for other in promises) for verdict in mine)


def _fails(promise: Promise, verdicts: Iterable[Verdict]) -> bool:
    return any(not _passed(verdict) and (promise.decides(verdict) or _no_law_reached(verdict))
               for verdict in verdicts)


def _no_law_reached(verdict: Verdict) -> bool:
    """Whether the answer gave the law nothing to judge: an error, or a form without sense."""
    return verdict.status == "error" or not verdict.law


def _passed(verdict: Verdict) -> bool:
    return verdict.status == "pass"
