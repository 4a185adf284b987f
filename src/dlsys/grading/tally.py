"""How far an answer got: how many cases pass, how many promises of the docstring it keeps, and
which promises its failure decides.

A verdict names the first failure. This module counts all of them, on the same outcomes and with
the same laws, each of which continues after its first objection. If the answer is a registered
mistake and nothing else, the registry says which promises it breaks, and it keeps all others.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, cast

import torch

from dlsys_checks import aims
from dlsys_helpers.acting import Case, Outcome
from dlsys_helpers.expect import Broken
from dlsys_helpers.judging import Exercise, Promise, WrongAnswer, close
from dlsys_helpers.verdicts import Verdict

Judged = list[tuple[Case, Verdict]]
LONGEST = 5.0  # CPU seconds for all cases of an answer; honest ones take a hundredth of it
MOST = 2  # promises that a page names; of more, the failure decides none


def count(exercise: Exercise, cases: Sequence[Case], outcomes: Sequence[Outcome],
          verdict: Verdict) -> dict[str, Any]:
    """How many cases pass and promises are kept, and the text of each promise that the failure
    decides.

    cases, outcomes: of all seeds. verdict: the one that the learner is told. results_held: in how
    many cases nothing speaks against the first promise, which says what the function computes.
    own_held: whether the trap's own promise is kept. own_credit, others_credit: the same as the
    share of a promise's cases in which nothing speaks against it, summed over the other promises.
    idle: whether a function that does nothing answers the same. Raises TooLong.
    """
    judged = [(case, exercise.judge_one(case, outcome))
              for case, outcome in zip(cases, outcomes, strict=True)]
    against = _objections_to_all(exercise, judged, outcomes)
    mistake, result = _mistake(exercise, judged, verdict), exercise.promises[0]
    credit = {promise.key: float(promise.key not in mistake.breaks) if mistake else
              spared_share(exercise, promise, cases, against) for promise in exercise.promises}
    kept, own = [key for key, share in credit.items() if share == 1], aims.own_promise(exercise.id)
    return {**complete(exercise, len(judged)),
            "cases_held": sum(_passed(verdict) for _, verdict in judged),
            "results_held": sum(not _speaks_against(exercise, result, found)
                                for found in against),
            "promises_held": len(kept), "own_held": own in kept, "own_credit": credit.get(own, 0.0),
            "others_credit": sum(share for key, share in credit.items() if key != own),
            "exactly": mistake is not None, "idle": is_idle(exercise, judged),
            "broken": [promise.text for promise in decided(exercise, judged, verdict)]}


class TooLong(RuntimeError):
    """An answer was written to make its objections take very long to count."""


def _objections_to_all(exercise: Exercise, judged: Judged,
                       outcomes: Sequence[Outcome]) -> list[list[Verdict]]:
    """The objections to each outcome. Raises TooLong."""
    found, begun = [], time.process_time()
    for (case, first), outcome in zip(judged, outcomes, strict=True):
        found.append(objections(exercise, case, outcome, first))
        if time.process_time() - begun > LONGEST:
            raise TooLong
    return found


def complete(exercise: Exercise, cases: int) -> dict[str, Any]:
    """What `count` returns for an answer that passes all these cases."""
    promises = len(exercise.promises)
    return {"cases": cases, "cases_held": cases, "results_held": cases, "promises": promises,
            "promises_held": promises, "own_held": True, "own_credit": 1.0,
            "others_credit": float(promises - 1), "exactly": False, "idle": False, "broken": []}


# ---- which promises a failure decides

def decided(exercise: Exercise, judged: Judged, verdict: Verdict) -> list[Promise]:
    """The promises that the failure decides: those of the registered mistake that it is; else
    those whose own words it says, with those on whose cases alone the answer fails.

    No promise if the answer gave the law nothing to judge, or if more than MOST are left.
    """
    registered = _registered(exercise, verdict)
    if registered and registered.breaks:
        broken = [p for p in exercise.promises if p.key in registered.breaks]
        spoken = [p for p in broken if p.says and p.decides(verdict)]
        return _few(exercise, spoken or broken, judged)
    if _no_law_reached(verdict):
        return []
    found = [promise for promise in exercise.promises if promise.decides(verdict)]
    spoken = [promise for promise in found if promise.says]
    if not spoken:
        return _few(exercise, _confined(found, judged), judged)
    named, several = _few(exercise, spoken, judged), {case.name for case, _ in judged}
    more = [promise for promise in _confined(exercise.promises, judged)
            if promise not in named and not several <= {*promise.cases}]
    return [*named, *more] if named and len(named) + len(more) <= MOST else named


def _confined(promises: Sequence[Promise], judged: Judged) -> list[Promise]:
    """The promises whose cases cover every failure of the answer; of several, those with the
    fewest cases.
    """
    failed = {case.name for case, verdict in judged if not _passed(verdict)}
    found = [promise for promise in promises if promise.cases and failed <= {*promise.cases}]
    fewest = min((len(promise.cases) for promise in found), default=0)
    return [promise for promise in found if len(promise.cases) == fewest]


def _few(exercise: Exercise, found: list[Promise], judged: Judged) -> list[Promise]:
    """Of several promises, those whose registered mistakes fail in the same cases as this answer,
    or come nearest to it; none if the cases leave too many.
    """
    if len(found) > 1:
        near = {promise.key: _nearness(exercise, promise, judged) for promise in found}
        found = [promise for promise in found if near[promise.key] == max(near.values())]
    return found if len(found) <= MOST else []


def _nearness(exercise: Exercise, promise: Promise, judged: Judged) -> int:
    """The number of cases in which a registered mistake against this promise passes or fails as
    the answer does.
    """
    return max((sum(_passed(exercise.run(wrong.fn, case)[1]) == _passed(verdict)
                    for case, verdict in judged)
                for wrong in exercise.wrong_answers if promise.key in wrong.breaks), default=0)


def _registered(exercise: Exercise, verdict: Verdict) -> WrongAnswer | None:
    return next((wrong for wrong in exercise.wrong_answers
                 if wrong.name == verdict.misconception), None)


# ---- which promises an answer keeps

def _mistake(exercise: Exercise, judged: Judged, verdict: Verdict) -> WrongAnswer | None:
    """The registered mistake that explains the answer in every case, and nothing else."""
    wrong = _registered(exercise, verdict)
    if wrong is None or not wrong.breaks:
        return None
    same = all(close(mine.seen, exercise.run(wrong.fn, case)[1].seen, exercise.within)
               for case, mine in judged)
    return wrong if same else None


def objections(exercise: Exercise, case: Case, outcome: Outcome,
               first: Verdict) -> list[Verdict]:
    """All objections of the law to an outcome, in its order; [] if the outcome passes.

    first: the verdict on this case, which ends at the first objection. Here the law continues until
    a line cannot read a form that an earlier line refused.
    """
    if _passed(first) or _no_law_reached(first):
        return [] if _passed(first) else [first]
    found: list[Verdict] = []

    def keep(broken: Broken) -> None:
        found.append(Verdict("wrong", exercise.id, str(broken), law=broken.what, case=case.name))

    patient = copy.copy(exercise)
    patient.law_fn = _going_on(cast(FunctionType, exercise.law_fn), keep)
    last = patient.judge_one(case, outcome)
    return [*found, last] if last.law and not _passed(last) else found


def _going_on(law: FunctionType, hear: Callable[[Broken], None]) -> FunctionType:
    """The law, with comparisons that report what is broken and then return."""
    def reporting(expect: Callable) -> Callable:
        @functools.wraps(expect)
        def compare(*args: Any, **options: Any) -> None:
            try:
                expect(*args, **options)
            except Broken as broken:
                hear(broken)
        return compare

    names = {name: reporting(value) if name.startswith("expect_") else value
             for name, value in law.__globals__.items()}
    new = FunctionType(law.__code__, names, law.__name__, law.__defaults__, law.__closure__)
    new.__kwdefaults__ = law.__kwdefaults__
    return new


def spared_share(exercise: Exercise, promise: Promise, cases: Sequence[Case],
                 against: Sequence[list[Verdict]]) -> float:
    """The share of a promise's cases in which nothing speaks against it, 0 if it has no cases.

    against: all objections of the law to the answer in each case.
    """
    mine = [found for case, found in zip(cases, against, strict=True)
            if not promise.cases or case.name in promise.cases]
    return sum(not _speaks_against(exercise, promise, found) for found in mine) / max(len(mine), 1)


def _speaks_against(exercise: Exercise, promise: Promise, found: Sequence[Verdict]) -> bool:
    """Whether an objection is about this promise.

    For a promise without its own words, its cases decide. An objection in the words of another one,
    such as "training flags", does not count, unless these are the words of the first, the result.
    """
    others = [one for one in exercise.promises[1:] if one.says and not promise.says]
    return any(_no_law_reached(verdict) or (
        promise.decides(verdict) and not any(one.decides(verdict) for one in others))
        for verdict in found)


def _no_law_reached(verdict: Verdict) -> bool:
    """Whether the answer gave the law nothing to judge: an error, or a meaningless form."""
    return verdict.status == "error" or not verdict.law


def _passed(verdict: Verdict) -> bool:
    return verdict.status == "pass"


# ---- an answer that does nothing

def _given_back(place: int) -> Callable:
    def answer(*inputs: Any) -> Any:
        return inputs[place]
    return answer


def _always(value: Any) -> Callable:
    return lambda *_: value


def _zeros(first: Any, *_: Any) -> Any:
    return torch.zeros_like(first)


def _scalar(*_: Any) -> Any:
    return torch.tensor(0.0)


# They compute nothing, and return an argument as it came, zeros, or a constant.
IDLE = (*map(_given_back, range(3)), _zeros, _scalar,
        *map(_always, (None, 0, 0.0, 1, 1.0, False, True, "", [], {}, ())))


def is_idle(exercise: Exercise, judged: Judged) -> bool:
    """Whether one of IDLE gets the same verdict in every case; the first few rule most out."""
    return any(all(_alike(exercise, verdict, idle, case) for case, verdict in judged)
               for idle in IDLE)


def _alike(exercise: Exercise, mine: Verdict, idle: Callable, case: Case) -> bool:
    theirs = exercise.run(idle, case)[1]
    return close(mine.seen, theirs.seen, exercise.within)
