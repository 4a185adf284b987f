"""Exercises, their laws and named wrong answers, and the verdict on a learner's function.

A check has three parts. *Arrange* draws cases from a seed. *Act* calls the learner's function
and turns what it does into plain data (acting.py). *Assert* states laws about that data; its
expected values come from an independent source, never from a reference answer. When a law is
broken, the answer is compared with the registered wrong answers, and a match is named.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import pkgutil
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dlsys_helpers import acting, cards, catalog, verdicts
from dlsys_helpers.acting import Case, Outcome
from dlsys_helpers.expect import Broken, show
from dlsys_helpers.verdicts import Verdict

FIXED_SEEDS = (0, 1)
REGISTRY: dict[str, Exercise] = {}


class CheckFailed(AssertionError):
    """An exercise does not pass. Notebooks show its one line instead of a traceback."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.line())
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(frozen=True)
class WrongAnswer:
    """A registered misconception: its name, code, the trap it belongs to, a required phrase."""

    name: str
    fn: Callable
    says: str
    trap: str


@dataclass
class Exercise:
    """One exercise: the parts are attached by its decorators, in the stage's file of checks."""

    id: str
    function: str
    may_change: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    make_cases: Callable | None = None
    act_fn: Callable = acting.call_function
    law_fn: Callable | None = None
    wrong_answers: list[WrongAnswer] = field(default_factory=list)

    def cases(self, fn: Callable) -> Callable:
        """Decorator: `fn(generator) -> [(name, inputs)]`, the arrange part."""
        self.make_cases = fn
        return fn

    def act(self, fn: Callable) -> Callable:
        """Decorator: `fn(learner_function, **inputs) -> plain data`; its source stands alone."""
        self.act_fn = fn
        return fn

    def law(self, fn: Callable) -> Callable:
        """Decorator: `fn(out, **inputs)`, raising Broken when a law does not hold."""
        self.law_fn = fn
        return fn

    def wrong(self, name: str, says: str, trap: str | None = None) -> Callable:
        """Decorator for a named wrong answer; `says` must stand in the feedback it receives."""
        def register(fn: Callable) -> Callable:
            self.wrong_answers.append(WrongAnswer(name, fn, says, trap or self.id))
            return fn
        return register

    def arrange(self, seed: int) -> list[Case]:
        """The cases of one seed; the same seed always draws the same cases."""
        generator = torch.Generator().manual_seed(seed)
        return [Case(name, inputs) for name, inputs in self.make_cases(generator)]

    def outcomes(self, fn: Callable, cases: Sequence[Case]) -> list[Outcome]:
        """Act on every case; stops early when the exercise is not written."""
        results = []
        for case in cases:
            results.append(acting.run_act(self.act_fn, fn, case))
            if results[-1].kind == "todo":
                break
        return results

    def judge(self, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Verdict:
        """The verdict on outcomes that may come from a process nobody trusts."""
        if any(o.kind == "todo" for o in outcomes):
            return verdicts.todo(self.id, self.function)
        for case, outcome in zip(cases, outcomes, strict=True):
            verdict = self._judge_one(case, outcome)
            if verdict.status != "pass":
                return self._name_mistake(verdict, cases, outcomes)
        return Verdict("pass", self.id)

    def _judge_one(self, case: Case, outcome: Outcome) -> Verdict:
        if outcome.kind == "raised":
            where = f" ({outcome.where})" if outcome.where else ""
            message = f"raised {outcome.error_type}: {outcome.error}"[:230] + where
            return Verdict("error", self.id, f"{message} on the case \"{case.name}\".",
                           case=case.name)
        try:
            self._laws(case, outcome)
        except Broken as broken:
            return Verdict("wrong", self.id, str(broken), case=case.name)
        # A law may stumble over a form nobody foresaw; the answer is wrong all the same.
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError,
                OverflowError, ZeroDivisionError):
            message = f"got {show(outcome.value)}, expected the form that the docstring gives."
            return Verdict("wrong", self.id, f"returned value: {message}", case=case.name,
                           accident=True)
        return Verdict("pass", self.id)

    def _laws(self, case: Case, outcome: Outcome) -> None:
        self.law_fn(outcome.value, **acting.to_plain(case.inputs))
        changed = [name for name in case.inputs
                   if name in outcome.mutated and name not in self.may_change]
        if changed:
            raise Broken("inputs after the call", f"{', '.join(changed)} changed", "no change",
                         "Work on a copy.")

    def _name_mistake(self, verdict: Verdict, cases: Sequence[Case],
                      outcomes: Sequence[Outcome]) -> Verdict:
        """The verdict with the misconception that explains it best, if one does.

        A wrong answer explains the outcomes when it does the same on the failing case and on
        more than half of all cases: a learner may make a second mistake elsewhere.
        """
        failing = [case.name for case in cases].index(verdict.case)
        best, most = None, len(cases) // 2
        for wrong in self.wrong_answers:
            agree = list(map(alike, outcomes, self.outcomes(wrong.fn, cases)))
            if agree[failing] and sum(agree) > most:
                best, most = wrong, sum(agree)
        if best is None:
            return verdict
        message = f"{verdict.message} This is what you get from: {best.name}."
        return Verdict("wrong", self.id, message, best.name, best.trap, verdict.case)


def exercise(id: str, function: str, may_change: tuple[str, ...] = (),
             by_hand: tuple[str, ...] = ()) -> Exercise:
    """Register an exercise: permanent id and the name of the learner's function.

    may_change: inputs that an answer is meant to change in place. by_hand: the library's
    functions that an answer should do without; the grader notes their use, which costs nothing.
    Raises ValueError when the id is registered already.
    """
    if id in REGISTRY:
        raise ValueError(f"exercise {id}: got a second registration, expected one. Renumber it.")
    REGISTRY[id] = Exercise(id, function, may_change, by_hand)
    return REGISTRY[id]


def alike(a: Outcome, b: Outcome) -> bool:
    """Whether two answers did the same on a case, up to rounding."""
    if a.kind != b.kind or a.mutated != b.mutated:
        return False
    if a.kind == "raised":
        return a.error_type == b.error_type
    return _close(a.value, b.value)


def _close(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(
            a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_close, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_close(a[key], b[key]) for key in a)
    if isinstance(a, float):
        return a == b or math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) or (
            math.isnan(a) and math.isnan(b))
    return a == b


def load_all() -> dict[str, Exercise]:
    """Import every stage's checks and return the registry by id."""
    import dlsys_checks
    for stage in pkgutil.iter_modules(dlsys_checks.__path__):
        _load_stage(stage.name)
    return REGISTRY


def of_stage(number: int) -> dict[str, Exercise]:
    """Import the checks of one stage and return its exercises by id; none where none is written."""
    _load_stage(f"s{number:02d}")
    return {id: found for id, found in REGISTRY.items() if id[:2] == f"{number:02d}"}


def _load_stage(name: str) -> None:
    """Import the exercises of one stage, "s01"; nothing for a stage without any."""
    if importlib.util.find_spec(f"dlsys_checks.{name}"):
        package = importlib.import_module(f"dlsys_checks.{name}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")


def find(id: str) -> Exercise:
    """The exercise with this id. Raises ValueError that lists the known ids."""
    if id not in REGISTRY and id[:2].isdigit():
        _load_stage(f"s{id[:2]}")
    if id not in REGISTRY:
        known = ", ".join(sorted(REGISTRY)) or "none"
        raise ValueError(f"exercise: got {id!r}, expected one of {known}.")
    return REGISTRY[id]


def run_check(id: str, fn: Callable, seeds: Sequence[int] = (*FIXED_SEEDS, 2)) -> Verdict:
    """The verdict on `fn` over the cases of all seeds; records and shows nothing.

    Raises ValueError for an unknown id.
    """
    chosen = find(id)
    if not callable(fn):
        return Verdict("wrong", id, f"second argument: got {show(fn)}, expected your function "
                       f"{chosen.function}, without brackets.")
    for seed in seeds:
        cases = chosen.arrange(seed)
        outcomes = chosen.outcomes(fn, cases)
        verdict = chosen.judge(cases, outcomes)
        if verdict.status != "pass":
            return replace(verdict, seed=seed)
    return Verdict("pass", id)


def check(id: str, fn: Callable) -> None:
    """Check your answer to an exercise: fixed cases and cases nobody has seen before.

    Shows a card with the verdict and remembers it in your progress.
    Raises CheckFailed unless the answer passes, so that nbval and papermill see it.
    """
    from dlsys_helpers import progress
    verdict = run_check(id, fn, (*FIXED_SEEDS, secrets.randbelow(2**31)))
    progress.record(id, verdict.status, verdict.misconception)
    cards.show_verdict(verdict, catalog.trap(id))
    if verdict.status != "pass":
        raise CheckFailed(verdict)
