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
import re
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
CASE_SECONDS = 60  # for an answer on one case
REGISTRY: dict[str, Exercise] = {}


class OneLine:
    """An error of which notebooks show its one line instead of a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class CheckFailed(OneLine, AssertionError):
    """An exercise does not pass."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.line())
        self.verdict = verdict


class BadCall(OneLine, TypeError):
    """`check` was not called as `check("01.4", f)`."""


class Stopped(OneLine, KeyboardInterrupt):
    """A learner interrupted a check."""


@dataclass(frozen=True)
class Promise:
    """A piece of an exercise's docstring, and what decides whether it is kept.

    cases: names of the cases that decide it, all when empty. says: phrases of which one stands in
    the message when it is broken, any when empty.
    """

    key: str
    text: str
    cases: tuple[str, ...]
    says: tuple[str, ...]

    def decides(self, verdict: Verdict) -> bool:
        """Whether a failure is one that this promise speaks of."""
        return ((not self.cases or verdict.case in self.cases)
                and (not self.says or any(words in verdict.message for words in self.says)))


@dataclass(frozen=True)
class WrongAnswer:
    """A registered misconception: its name, code, the trap it belongs to, a required phrase.

    breaks: the keys of the promises that it breaks.
    """

    name: str
    fn: Callable
    says: str
    trap: str
    breaks: tuple[str, ...] = ()


Run = tuple[Outcome, Verdict]


@dataclass
class Exercise:
    """One exercise: the parts are attached by its decorators, in a file of its own."""

    id: str
    function: str
    may_change: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    within: float = 1e-4
    make_cases: Callable | None = None
    act_fn: Callable = acting.call_function
    law_fn: Callable | None = None
    promises: list[Promise] = field(default_factory=list)
    wrong_answers: list[WrongAnswer] = field(default_factory=list)
    right_answers: dict[str, Callable] = field(default_factory=dict)
    equivalents: dict[str, str] = field(default_factory=dict)

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

    def promise(self, key: str, text: str, *, cases: tuple[str, ...] = (),
                says: tuple[str, ...] = ()) -> None:
        """State which cases, or which phrases of the law, decide a piece of the docstring.

        `text` stands in the docstring word for word; together the promises cover all of it.
        """
        self.promises.append(Promise(key, text, cases, says))

    def wrong(self, name: str, says: str, trap: str | None = None,
              breaks: str | tuple[str, ...] = ()) -> Callable:
        """Decorator for a named wrong answer; `says` must stand in the feedback it receives.

        breaks: key of the one promise that it breaks, or the keys of several.
        """
        keys = (breaks,) if isinstance(breaks, str) else breaks

        def register(fn: Callable) -> Callable:
            self.wrong_answers.append(WrongAnswer(name, fn, says, trap or self.id, keys))
            return fn
        return register

    def right(self, route: str) -> Callable:
        """Decorator for an answer that is right by another route than the worked one."""
        def register(fn: Callable) -> Callable:
            self.right_answers[route] = fn
            return fn
        return register

    def equivalent(self, mutant: str, why: str) -> None:
        """State why a mutant of the worked answer, as tools/worked.py names it, is right."""
        self.equivalents[mutant] = why

    def arrange(self, seed: int) -> list[Case]:
        """The cases of one seed; the same seed always draws the same cases."""
        with acting.standard_session():
            generator = torch.Generator().manual_seed(seed)
            return [Case(name, inputs) for name, inputs in self.make_cases(generator)]

    def outcomes(self, fn: Callable, cases: Sequence[Case],
                 seconds: float | None = None) -> list[Outcome]:
        """Act on every case; stops early when the exercise is not written, or too slow."""
        results = []
        for case in cases:
            results.append(acting.run_act(self.act_fn, fn, case, seconds))
            if results[-1].kind in ("todo", "late"):
                break
        return results

    def judge(self, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Verdict:
        """The verdict on outcomes that may come from a process nobody trusts."""
        verdict = self.first_failure(cases, outcomes)
        if verdict.seen is None:
            return verdict
        return self._name_mistake(verdict, cases, outcomes)

    def first_failure(self, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Verdict:
        """The verdict of the first case that fails, without a name for the mistake."""
        if any(o.kind == "todo" for o in outcomes):
            return verdicts.todo(self.id, self.function)
        found = (self.judge_one(*pair) for pair in zip(cases, outcomes, strict=True))
        return next((v for v in found if v.status != "pass"), Verdict("pass", self.id))

    def judge_one(self, case: Case, outcome: Outcome) -> Verdict:
        """The verdict on what became of one case."""
        if outcome.kind == "raised":
            where = f" ({outcome.where})" if outcome.where else ""
            message = f"raised {outcome.error_type}: {outcome.error}"[:230] + where
            return Verdict("error", self.id, f"{message} on the case \"{case.name}\".",
                           case=case.name, seen=("raised", *_error(outcome)))
        if outcome.kind == "late":
            where = f" ({outcome.where})" if outcome.where else ""
            return Verdict("error", self.id, f'{outcome.error} on the case "{case.name}"; is there '
                           f"a loop that never ends?{where}", case=case.name)
        if outcome.kind == "unusable":
            return self._unusable(case, outcome)
        try:
            with acting.standard_session():
                self._laws(case, outcome)
        except Broken as broken:
            return Verdict("wrong", self.id, str(broken), law=broken.what, case=case.name,
                           seen=("law", broken.what, broken.got))
        # A law may stumble over a form nobody foresaw; the answer is wrong all the same.
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError,
                OverflowError, ZeroDivisionError):
            message = f"got {show(outcome.value)}, expected the form that the docstring gives."
            return Verdict("wrong", self.id, f"returned value: {message}", case=case.name,
                           accident=True, seen=("accident", "", outcome.value))
        return Verdict("pass", self.id)

    def _unusable(self, case: Case, outcome: Outcome) -> Verdict:
        """The function returned, but what the check then did with it or its arguments failed."""
        message = (f"returned value: got {show(outcome.value)}. Used as the docstring says, it "
                   f"led to {outcome.error_type}: {outcome.error}")[:290]
        return Verdict("wrong", self.id, message, case=case.name,
                       seen=("unusable", *_error(outcome)))

    def _laws(self, case: Case, outcome: Outcome) -> None:
        self.law_fn(outcome.value, **acting.to_plain(case.inputs))
        changed = [name for name in case.inputs
                   if name in outcome.mutated and name not in self.may_change]
        if changed:
            raise Broken("inputs after the call", f"{', '.join(changed)} changed", "no change",
                         "Work on a copy.")

    def run(self, fn: Callable, case: Case) -> Run:
        """What an answer did on a case, and the verdict on it."""
        outcome = acting.run_act(self.act_fn, fn, case)
        return outcome, self.judge_one(case, outcome)

    def _name_mistake(self, verdict: Verdict, cases: Sequence[Case],
                      outcomes: Sequence[Outcome]) -> Verdict:
        """The verdict with the registered mistake that the same observations betray, if one does.

        A mistake is named when on the failing case its own answer fails by the same observation,
        and no case speaks against it. Of several, the one that agrees on most; none when two do.
        """
        failing = next(case for case in cases if case.name == verdict.case)
        suspects = [wrong for wrong in self.wrong_answers
                    if close(verdict.seen, self.run(wrong.fn, failing)[1].seen, self.within)]
        if not suspects:
            return verdict
        mine = list(zip(outcomes, map(self.judge_one, cases, outcomes), strict=True))
        found = [(self._agreement(mine, [self.run(wrong.fn, case) for case in cases]), wrong)
                 for wrong in suspects]
        most = max(agreed for agreed, _ in found)
        best = [wrong for agreed, wrong in found if agreed == most]
        if most == (0, 0) or len(best) != 1:
            return verdict
        message = f"{verdict.message} This is what you get from: {best[0].name}."
        return replace(verdict, status="wrong", message=message, misconception=best[0].name,
                       trap=best[0].trap)

    def _agreement(self, mine: Sequence[Run], theirs: Sequence[Run]) -> tuple[int, int]:
        """How far two answers agree: cases with the same verdict, and parts that came out alike.

        (0, 0) for a contradiction: to pass where the wrong answer fails, or to fail the same
        comparison with another value. Another comparison that fails may be a second mistake.
        """
        agreed = parts = 0
        for (outcome, a), (other, b) in zip(mine, theirs, strict=True):
            same = close(a.seen, b.seen, self.within)
            if not same and b.seen is not None and (a.seen is None or a.seen[:2] == b.seen[:2]):
                return 0, 0
            agreed += same
            parts += _alike_parts(outcome.value, other.value, self.within)
        return agreed, parts


def _alike_parts(a: Any, b: Any, within: float) -> int:
    """How many parts of two outcomes are alike; one that is not a dict has a single part."""
    if type(a) is type(b) is dict and a.keys() == b.keys():
        return sum(close(a[key], b[key], within) for key in a)
    return int(close(a, b, within))


def _error(outcome: Outcome) -> tuple[str, str]:
    """An error's type and text for comparison, without the addresses of objects."""
    return outcome.error_type, re.sub(r"0x[0-9a-f]+", "0x", outcome.error)


def exercise(id: str, function: str, may_change: tuple[str, ...] = (),
             by_hand: tuple[str, ...] = (), seen: tuple[str, ...] = (),
             kept: tuple[str, ...] = (), within: float = 1e-4) -> Exercise:
    """Register an exercise: permanent id and the name of the learner's function.

    may_change: inputs that an answer is meant to change in place. by_hand: the library's
    functions that an answer should do without; the grader notes their use, which costs nothing.
    seen: the inputs, all of which stand in the act's frame where a learner's function can read
    them: a new one belongs here after a look at it, for it may be what the law expects. kept: parts
    of an outcome that an answer has to leave as they were given. within: how near a
    mistake's numbers are, relatively, where they are drawn. Raises ValueError when the id is
    registered already.
    """
    if id in REGISTRY:
        raise ValueError(f"exercise {id}: got a second registration, expected one. Renumber it.")
    REGISTRY[id] = Exercise(id, function, may_change, by_hand, seen, kept, within)
    return REGISTRY[id]


def close(a: Any, b: Any, within: float = 1e-4) -> bool:
    """Whether two plain values are the same up to rounding, or up to this relative distance."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and a.layout == b.layout == (
            torch.strided) and torch.allclose(a, b, rtol=within, atol=1e-6, equal_nan=True)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(close(*pair, within) for pair in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key], within) for key in a)
    if isinstance(a, float):
        return a == b or math.isclose(a, b, rel_tol=within, abs_tol=1e-6) or (
            math.isnan(a) and math.isnan(b))
    return a == b


def load_all() -> dict[str, Exercise]:
    """Import every stage's checks and return the registry by id."""
    import dlsys_checks
    for module in pkgutil.iter_modules(dlsys_checks.__path__):
        if module.name[1:].isdigit():  # s01, s02, ...: the other folder holds questions
            _load_stage(module.name)
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
    with acting.standard_session():  # once: each case's own is quicker inside
        for seed in seeds:
            cases = chosen.arrange(seed)
            outcomes = chosen.outcomes(fn, cases, seconds)
            verdict = chosen.judge(cases, outcomes)
            if verdict.status == "todo":  # a release may have drawn another name for it
                return verdicts.todo(id, getattr(fn, "__name__", chosen.function))
            if verdict.status != "pass":
                return replace(verdict, seed=seed)
    return Verdict("pass", id)


def drawn_seeds() -> tuple[int, ...]:
    """The seeds of a learner's own check: the fixed ones, and one that nobody has seen before."""
    return (*FIXED_SEEDS, secrets.randbelow(2**31))


def check(id: str, fn: Callable, seconds: float = CASE_SECONDS) -> None:
    """Check your answer to an exercise: fixed cases and cases nobody has seen before.

    Shows a card with the verdict and remembers it in your progress. An answer that takes longer
    than `seconds` on one case is stopped, except on Windows. Unless the answer passes, raises
    CheckFailed where nobody sees the card, so that nbval, papermill and scripts notice. Raises
    BadCall for arguments that are not the id of an exercise and a function, Stopped for a Ctrl-C.
    """
    from dlsys_helpers import progress
    _refuse_bad_call(id, fn)
    try:
        verdict = run_check(id, fn, drawn_seeds(), seconds)
    except KeyboardInterrupt as stop:
        at = acting.learner_frame(stop)
        raise Stopped(f"exercise {id}: you stopped its check{at and f' in {at}'}") from None
    progress.record(id, verdict.status, verdict.misconception)
    tell(verdict, catalog.trap(id))


def tell(verdict: Verdict, trap: catalog.Trap) -> None:
    """Show the card of a verdict. Raises CheckFailed for a failure whose card nobody sees."""
    cards.show_verdict(verdict, trap)
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
