"""Derived wrong answers: the worked answer, spoilt so that it breaks one promise.

For a promise that begins with `Example`, the answer is off by one on the example; for one decided
by "inputs after the call", it overwrites its inputs. We derive probes only if an exercise is a
plain call of the answer and no registered answer breaks only that promise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from dlsys_helpers import acting
from dlsys_helpers.judging import Exercise, Promise, WrongAnswer
from tools import solutions
from tools.forging import parts, replaced

CHANGED = "inputs after the call"


@cache
def derived(id: str) -> tuple[WrongAnswer, ...]:
    """The probes derived from an exercise's worked answer; most exercises have none."""
    exercise = solutions.with_kept_answers(id)
    if exercise.act_fn is not acting.call_function:
        return ()
    registered = (*exercise.wrong_answers, *exercise.probes)
    alone = {answer.breaks[0] for answer in registered if len(answer.breaks) == 1}
    return tuple(WrongAnswer(name, fn, (), id, (promise.key,)) for promise in exercise.promises
                 if promise.key not in alone for name, fn in _spoilt(exercise, promise))


def _spoilt(exercise: Exercise, promise: Promise) -> Iterator[tuple[str, Callable]]:
    worked = solutions.worked(exercise.id)
    if promise.text.startswith("Example") and len(promise.cases) == 1:
        example = {case.name: case.inputs for case in exercise.arrange(0)}.get(promise.cases[0])
        if example is not None:
            yield "the example looked up, and off by one", _off_at(list(example.values()), worked)
    if CHANGED in promise.says:
        yield "its inputs written over", _writes_over(worked)


def _off_at(example: list[Any], worked: Callable) -> Callable:
    def answer(*given):
        asked = acting.same(list(given), example)
        out = worked(*given)
        path = next((path for path, part in parts(out) if _is_number(part)), None)
        return out if not asked or path is None else replaced(out, path, _other)
    return answer


def _writes_over(worked: Callable) -> Callable:
    def answer(*given):
        out = worked(*copy.deepcopy(given))
        for _, part in parts(list(given)):
            if isinstance(part, torch.Tensor):
                part.copy_(_other(part))
        return out
    return answer


def _is_number(part: Any) -> bool:
    return type(part) in (bool, int, float) or (isinstance(part, torch.Tensor) and part.numel() > 0)


def _other(value: Any) -> Any:
    """A different value of the same kind: booleans negated, numbers plus one."""
    if type(value) is bool:
        return not value
    if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
        return ~value
    return value + 1
