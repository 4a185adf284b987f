"""An exercise's parts, and how they judge an answer; the texts are in wording.py.

A check has three parts. *Arrange* draws cases from a seed. *Act* calls the learner's function
and turns what it does into plain data (acting.py). *Assert* states laws about that data; its
expected values come from an independent source, never from a reference answer. When a law is
broken, the answer is compared with the registered wrong answers, and a match is named.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from dlsys_helpers import acting, promise_tables, verdicts, wording
from dlsys_helpers.acting import Case, Outcome
from dlsys_helpers.expect import Broken
from dlsys_helpers.planting import planted
from dlsys_helpers.verdicts import Verdict

LEFT = {"left", "left alone", "stay"}  # keys of promises that the inputs stay as they are
CHANGED = "inputs after the call"  # what the law of that promise measures
TRACE = re.compile(f"((?:{'|'.join(acting.TRACES)}) of argument [0-9]{{1,3}})({acting.WRITTEN})?")


@dataclass(frozen=True)
class Promise:
    """A piece of an exercise's docstring, and what decides whether it is kept.

    cases: names of the cases that decide it; empty means all. says: phrases, one of which occurs
    in the message when it is broken; empty means any message.
    """

    key: str
    text: str
    cases: tuple[str, ...]
    says: tuple[str, ...]

    def decides(self, verdict: Verdict) -> bool:
        """Whether a failure breaks this promise."""
        if self.key in LEFT and verdict.law == CHANGED:
            return True
        return ((not self.cases or verdict.case in self.cases)
                and (not self.says or any(words in verdict.message for words in self.says)))


@dataclass(frozen=True)
class WrongAnswer:
    """A registered misconception: its name, its code and the trap it belongs to.

    says: phrases, one of which occurs in its message; empty means any message. breaks: the keys
    of the promises that it breaks.
    """

    name: str
    fn: Callable
    says: tuple[str, ...]
    trap: str
    breaks: tuple[str, ...] = ()

    def is_told(self, message: str) -> bool:
        """Whether a message contains one of this answer's phrases."""
        return not self.says or any(words in message for words in self.says)


Run = tuple[Outcome, Verdict]


def _missing_part(*_: Any, **__: Any) -> NoReturn:
    raise TypeError("exercise: got no cases or no law, expected both: @ex.cases and @ex.law.")


@dataclass
class Exercise:
    """One exercise: the parts are attached by its decorators, in a separate file.

    right_answers, probes and equivalents are attached by a file next to the tests, so that no
    class receives an answer that passes.
    """

    id: str
    function: str
    may_change: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    within: float = 1e-4
    says: str = ""
    make_cases: Callable = _missing_part
    act_fn: Callable = acting.call_function
    law_fn: Callable = _missing_part
    promises: list[Promise] = field(default_factory=list)
    wrong_answers: list[WrongAnswer] = field(default_factory=list)
    probes: list[WrongAnswer] = field(default_factory=list)
    right_answers: dict[str, Callable] = field(default_factory=dict)
    equivalents: dict[str, str] = field(default_factory=dict)

    def cases(self, fn: Callable) -> Callable:
        """Decorator: `fn(generator) -> [(name, inputs)]`, the arrange part."""
        self.make_cases = fn
        return fn

    def act(self, fn: Callable) -> Callable:
        """Decorator: `fn(learner_function, **inputs) -> plain data`; its source travels alone."""
        self.act_fn = fn
        return fn

    def law(self, fn: Callable) -> Callable:
        """Decorator: `fn(out, **inputs)`, raising Broken when a law does not hold."""
        self.law_fn = fn
        return fn

    def promise(self, key: str, text: str, *, cases: tuple[str, ...] = (),
                says: tuple[str, ...] = ()) -> None:
        """State which cases, or which phrases of the law, decide a piece of the docstring.

        `text` occurs in the docstring word for word; together the promises cover all of it.
        """
        self.promises.append(Promise(key, text, cases, says))

    def promise_table(self, table: str) -> None:
        """State several promises, a row each; promise_tables.py describes the form of a row.

        Raises ValueError, which shows the row, for any other form.
        """
        try:
            self.promises += [Promise(*row) for row in promise_tables.read(table)]
        except ValueError as error:
            raise ValueError(f"{self.id}, {error}") from error

    def wrong(self, name: str, fn: Callable | None = None, *, says: str | None = None,
              trap: str | None = None, breaks: str | tuple[str, ...] = (),
              **options: Any) -> Callable:
        """Register a wrong answer under the name of its mistake: a row, or a decorator without fn.

            ex.wrong("the two betas swapped", adam, breaks="step", swapped=True)

        options are passed to `fn` after the learner's inputs. breaks: key of the one promise that
        it breaks, or the keys of several. says: a phrase of its message; by default one of the
        phrases of those promises or, if they have none, of the exercise.
        """
        if fn is None:
            return lambda fn: self.wrong(name, fn, says=says, trap=trap, breaks=breaks, **options)
        self.wrong_answers.append(self._answer(name, fn, says, trap, breaks, options))
        return fn

    def edits(self, fn: Callable) -> Callable[..., None]:
        """Return a function that registers wrong answers as edits of a right one.

            wrong = ex.edits(priced)
            wrong("in bits", "result", "return nats", "return nats / math.log(2)")

        After the name and `breaks` come pairs of texts: the first occurs once in the source of fn,
        the second replaces it. says and trap are those of `wrong`. Raises ValueError for a text
        that does not occur, or occurs twice; the error names the mistake.
        """
        def wrong(name: str, breaks: str | tuple[str, ...], *texts: str, says: str | None = None,
                  trap: str | None = None) -> None:
            self.wrong(name, edited(fn, texts, f"{self.id}, {name}"), says=says, trap=trap,
                       breaks=breaks)
        return wrong

    def probe(self, name: str, fn: Callable | None = None, *, says: str | None = None,
              breaks: str | tuple[str, ...] = (), **options: Any) -> Callable:
        """Register a wrong answer that no learner writes: it shows that a promise is checked.

        It must fail as a wrong answer does, but it never names a learner's mistake.
        """
        if fn is None:
            return lambda fn: self.probe(name, fn, says=says, breaks=breaks, **options)
        self.probes.append(self._answer(name, fn, says, None, breaks, options))
        return fn

    def _answer(self, name: str, fn: Callable, says: str | None, trap: str | None,
                breaks: str | tuple[str, ...], options: dict[str, Any]) -> WrongAnswer:
        keys = (breaks,) if isinstance(breaks, str) else breaks
        phrases = (says,) if says else () if says == "" else tuple(
            words for promise in self.promises if promise.key in keys for words in promise.says
        ) or ((self.says,) if self.says else ())
        return WrongAnswer(name, functools.partial(fn, **options) if options else fn, phrases,
                           trap or self.id, keys)

    def right(self, route: str) -> Callable:
        """Decorator for a right answer that takes a different route from the worked one."""
        def register(fn: Callable) -> Callable:
            self.right_answers[route] = unguarded(fn)
            return fn
        return register

    def equivalent(self, mutant: str, why: str) -> None:
        """State why a mutant of the worked answer, as tools/solutions.py names it, is right."""
        self.equivalents[mutant] = why

    def arrange(self, seed: int) -> list[Case]:
        """The cases of one seed; the same seed always draws the same cases."""
        with acting.standard_session(), _guard_lifted(True):
            generator = torch.Generator().manual_seed(seed)
            return [Case(name, inputs) for name, inputs in self.make_cases(generator)]

    def outcomes(self, fn: Callable, cases: Sequence[Case],
                 seconds: float | None = None) -> list[Outcome]:
        """Act on every case; stops early when the exercise is not written, or too slow."""
        results = []
        for case in cases:
            results.append(self._acted(fn, case, seconds))
            if results[-1].kind in ("todo", "late"):
                break
        return results

    def _acted(self, fn: Callable, case: Case, seconds: float | None = None) -> Outcome:
        registered = any(fn is wrong.fn for wrong in (*self.wrong_answers, *self.probes))
        with _guard_lifted(registered):
            return acting.run_act(self.act_fn, fn, case, seconds)

    def judge(self, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Verdict:
        """The verdict on outcomes, which may come from an untrusted process.

        Raises ValueError unless there is one for each case, or one for each up to a timeout.
        """
        if any(o.kind == "todo" for o in outcomes):
            return verdicts.todo(self.id, self.function)
        tried = cases[:len(outcomes)] if outcomes and outcomes[-1].kind == "late" else cases
        return self.judge_runs(cases, [(outcome, self.judge_one(case, outcome)) for case, outcome
                                       in zip(tried, outcomes, strict=True)])

    def judge_runs(self, cases: Sequence[Case], runs: Sequence[Run]) -> Verdict:
        """Like `judge`, for cases that already have a verdict."""
        failing = next((place for place, (_, one) in enumerate(runs) if one.status != "pass"), None)
        if failing is None:
            return Verdict("pass", self.id)
        if runs[failing][1].seen is None or len(runs) < len(cases):
            return runs[failing][1]
        return self._name_mistake(failing, cases, runs)

    def first_failure(self, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Verdict:
        """The verdict of the first case that fails, without a name for the mistake."""
        if any(o.kind == "todo" for o in outcomes):
            return verdicts.todo(self.id, self.function)
        found = (self.judge_one(*pair) for pair in zip(cases, outcomes, strict=True))
        return next((v for v in found if v.status != "pass"), Verdict("pass", self.id))

    def judge_one(self, case: Case, outcome: Outcome) -> Verdict:
        """The verdict on the outcome of one case, without a name for the mistake."""
        if outcome.kind == "raised":
            return wording.raised(self.id, case.name, outcome, ("raised", *_error(outcome)))
        if outcome.kind == "late":
            return wording.late(self.id, case.name, outcome)
        if outcome.kind == "unusable":
            return wording.unusable(self.id, case.name, outcome, ("unusable", *_error(outcome)))
        try:
            with acting.standard_session(), _guard_lifted(True):
                self._laws(case, outcome)
        except Broken as broken:
            return Verdict("wrong", self.id, str(broken), law=broken.what, case=case.name,
                           seen=("law", broken.what, broken.got))
        # A law may fail on a form that its author did not expect; the answer is wrong all the same.
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError,
                OverflowError, ZeroDivisionError):
            return wording.of_no_form(self.id, case.name, outcome, ("accident", "", outcome.value))
        return Verdict("pass", self.id)

    def _laws(self, case: Case, outcome: Outcome) -> None:
        self.law_fn(outcome.value, **acting.to_plain(case.inputs))
        changed = [name for name in case.inputs
                   if name in outcome.mutated and name not in self.may_change]
        if changed:
            raise Broken(CHANGED, f"{', '.join(changed)} changed", "no change", "Work on a copy.")
        traces = [found[1] for name in outcome.mutated if (found := TRACE.fullmatch(name))
                  and not (found[2] and self.may_change)]
        if traces and any(promise.key in LEFT for promise in self.promises):
            raise Broken(CHANGED, f"{', '.join(traces)} changed", "no change",
                         "Work on a detached copy.")

    def run(self, fn: Callable, case: Case) -> Run:
        """The outcome of an answer on a case, and the verdict on it."""
        outcome = self._acted(fn, case)
        return outcome, self.judge_one(case, outcome)

    def _name_mistake(self, failing: int, cases: Sequence[Case], mine: Sequence[Run]) -> Verdict:
        """The verdict, naming the registered mistake that fits the observations, if there is one.

        A mistake is named when its own answer fails the failing case by the same observation and
        no case contradicts it. Of several, the one that agrees on most wins; a tie names none.
        """
        verdict = mine[failing][1]
        suspects = [wrong for wrong in self.wrong_answers
                    if close(verdict.seen, self.run(wrong.fn, cases[failing])[1].seen, self.within)]
        found = [(self._agreement(mine, [self.run(wrong.fn, case) for case in cases], failing),
                  wrong) for wrong in suspects]
        most = max((agreed for agreed, _ in found), default=(0, 0))
        best = [wrong for agreed, wrong in found if agreed == most]
        if most == (0, 0) or len(best) != 1:
            return verdict
        return wording.named(verdict, best[0].name, best[0].trap)

    def _agreement(self, mine: Sequence[Run], theirs: Sequence[Run],
                   failing: int) -> tuple[int, int]:
        """How far two answers agree: cases with the same verdict, and parts that came out alike.

        (0, 0) for a contradiction: the answer passes where the wrong answer fails, or fails the
        same comparison with another value. A different failing comparison may be a second mistake.
        Also (0, 0) where the failure says too little: see `is_borne_out`.
        """
        agreed = parts = 0
        for (outcome, a), (other, b) in zip(mine, theirs, strict=True):
            same = close(a.seen, b.seen, self.within)
            if not same and b.seen is not None and (a.seen is None or a.seen[:2] == b.seen[:2]):
                return 0, 0
            agreed += same
            parts += _alike_parts(outcome.value, other.value, self.within)
        both = list(zip(mine, theirs, strict=True))
        return (agreed, parts) if is_borne_out(both, failing, self.within) else (0, 0)


# ---- what is right in a check is no answer

_lifted = False  # whether the check itself or a registered wrong answer is running


@contextlib.contextmanager
def _guard_lifted(lifted: bool) -> Iterator[None]:
    """Allow calls of functions that `not_an_answer` guards, or leave the guard as it is."""
    global _lifted
    before, _lifted = _lifted, _lifted or lifted
    try:
        yield
    finally:
        _lifted = before


def not_an_answer(fn: Callable) -> Callable:
    """Decorator for right code in a check, such as an answer that takes mistakes as options.

    It works only while cases are drawn, a law judges or a registered wrong answer runs, so a
    learner who calls it gets no answer.
    """
    @functools.wraps(fn)
    def guarded(*inputs: Any, **options: Any) -> Any:
        if not _lifted:
            raise RuntimeError(f"{fn.__name__} belongs to the checks and is no answer. "
                               "Write your own.")
        return fn(*inputs, **options)
    vars(guarded)["guards"] = fn
    return guarded


def unguarded(fn: Callable) -> Callable:
    """The function inside `not_an_answer`; any other as it is."""
    return getattr(fn, "guards", fn)


# ---- what a check's file writes as text

def edited(fn: Callable, texts: Sequence[str], mistake: str) -> Callable:
    """Return fn with texts of its source replaced: pairs of the old text and the new one.

    Raises ValueError, which names the mistake, for an edit that cannot be made. The new function
    has the names that the module of fn defines up to here. Tracebacks and `inspect.getsource` show
    its own source.
    """
    plain = inspect.unwrap(fn)
    if "<" in plain.__qualname__:
        raise ValueError(f"{mistake}: got {plain.__qualname__}, expected a function that stands at "
                         "the top level of its file. Only such a function can be edited.")
    if not texts or len(texts) % 2:
        raise ValueError(f"{mistake}: got {len(texts)} texts, expected pairs of an old text and a "
                         "new one.")
    source = planted(inspect.getsource(plain), zip(texts[::2], texts[1::2], strict=True), mistake)
    space, file = dict(plain.__globals__), f"<{mistake}>"
    # The time of change is None, so linecache never compares the entry with a file.
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    try:
        exec(compile(source, file, "exec"), space)
    except SyntaxError as error:
        raise ValueError(f"{mistake}: the edited source is no Python, line {error.lineno}: "
                         f"{error.msg}. Correct the new text.") from error
    return unguarded(space[plain.__name__])


# ---- comparing

def _alike_parts(a: Any, b: Any, within: float) -> int:
    """How many parts of two outcomes are alike; one that is not a dict has a single part."""
    if type(a) is type(b) is dict and a.keys() == b.keys():
        return sum(close(a[key], b[key], within) for key in a)
    return int(close(a, b, within))


def is_borne_out(runs: Sequence[tuple[Run, Run]], failing: int, within: float) -> bool:
    """Whether the cases confirm a mistake, which they must if the failing case says little.

    runs: case by case, what the answer did and what the mistake's own answer did. Many mistakes
    raise the same error, return nothing or miscount by one, so such an observation alone does not
    name any of them. Wherever both fail, the results must be alike. A second case must fail by the
    same observation, unless the mistake fails in one case only and the answer passes the others. No
    case may fail that way where the mistake passes. A type error, in the answer or in what it
    returns, may be a slip of any kind, so every case must agree.
    """
    seen = runs[failing][0][1].seen
    if seen is None or not is_poor(seen):
        return True
    pairs = [(a.seen, b.seen) for (_, a), (_, b) in runs]
    if not all(close(mine.value, theirs.value, within) for (mine, a), (theirs, b) in runs
               if a.seen is not None and b.seen is not None):
        return False
    alike = [close(a, b, within) for a, b in pairs]
    if is_of_types(seen):
        return all(alike)
    if any(b is None and a is not None and a[:2] == seen[:2] for a, b in pairs):
        return False
    fail_alike = [same for same, (a, _) in zip(alike, pairs, strict=True) if a is not None]
    return all(alike) or sum(fail_alike) > 1


def is_poor(seen: tuple) -> bool:
    """Whether an observation says too little to tell mistakes apart.

    An error, a value of another type, a text, yes or no, a count, nothing at all, an empty
    container, or a float of 0 or 1, the result of a share that has nothing to count.
    """
    kind, _, got = seen
    return kind != "law" or is_of_types(seen) or got is None or isinstance(got, int | str) or (
        isinstance(got, list | tuple | dict) and not got) or (
        isinstance(got, float) and got in (0.0, 1.0))


TYPE_ERRORS = ("TypeError", "AttributeError")


def is_of_types(seen: tuple) -> bool:
    """Whether an observation is a type error or a value of another type."""
    kind, what, got = seen
    if kind in ("raised", "unusable"):
        return what in TYPE_ERRORS
    return kind == "accident" or what.startswith("type of ") or isinstance(got, acting.Foreign)


def _error(outcome: Outcome) -> tuple[str, str]:
    """An error's type and text for comparison, without the addresses of objects."""
    return outcome.error_type, re.sub(r"0x[0-9a-f]+", "0x", outcome.error)


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
