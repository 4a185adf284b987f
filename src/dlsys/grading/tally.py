"""How far an answer got: cases that hold, and promises of the docstring that it keeps.

A verdict names the first failure. This counts the others, on the same outcomes and by the same
laws.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dlsys_helpers.acting import Case, Outcome
from dlsys_helpers.judging import Exercise, Promise
from dlsys_helpers.verdicts import Verdict

Judged = list[tuple[Case, Verdict]]


def count(exercise: Exercise, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Cases that hold of all, promises that are kept of all, and the text of those that are broken.

    cases, outcomes: those of all seeds. What is neither kept nor broken was not reached.
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
    """Whether a case that the promise speaks of was seen to hold, and none failed by it.

    A law stops at its first objection, so a case that failed by another promise says nothing.
    """
    mine = [(case, verdict) for case, verdict in judged
            if not promise.cases or case.name in promise.cases]
    return any(_passed(verdict) for _, verdict in mine) and not _fails(
        promise, (verdict for _, verdict in mine))


def is_broken(promise: Promise, promises: Sequence[Promise], judged: Judged) -> bool:
    """Whether a verdict decided against the promise: its own words, or the failure of its cases.

    Where all cases fail, those of a promise say something about it only if no promise's words do.
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
