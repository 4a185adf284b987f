"""Prove the checks: right answers pass, wrong ones fail for their own reason, mutants die.

    python -m tools.proof                          the exercises whose record is stale
    python -m tools.proof 01 02.3 --seeds 1000     these; right answers on so many seeds
    python -m tools.proof 01.4 --right             only the right answers; writes nothing

There is one record per stage, tests/records/checks/NN.json. For each exercise it has the extent of
the proof, its dependencies, and the messages for wrong answers. We write it after each exercise, so
you can stop a run and continue it. The tests prove a stale exercise in full. For a fresh one they
try a single seed, most wrong answers only up to their first failure, one forged part of an outcome,
and changed sessions on the first exercise of each stage. Words make no proof stale. If they have
changed, we only renew the messages for wrong answers.
"""

from __future__ import annotations

import argparse
import builtins
import dis
import inspect
import math
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from types import CodeType
from typing import Any

import numpy as np
import torch

from dlsys.remembering import with_cached_runs
from dlsys_checks import checking, registry
from dlsys_helpers import acting
from dlsys_helpers.judging import Exercise, Run, WrongAnswer
from dlsys_helpers.verdicts import Verdict
from tools import fingerprints, forging, mutants, probes, solutions
from tools.forging import parts, replaced
from tools.records import Record

RECORD = Record("checks/{stage}.json", done="proven", renew="make finish LESSON={key:.2}")
ENGINE = ("dlsys_helpers.acting", "dlsys_helpers.expect", "dlsys_helpers.judging",
          "dlsys_helpers.planting", "dlsys_helpers.promise_tables")
# The parts of the engine that only choose the name of a mistake. They decide no verdict, and every
# registered mistake matches itself by any rule, so changing them makes nothing stale.
NAMING = ("_name_mistake", "_agreement", "is_borne_out", "is_of_types", "is_poor", "TYPE_ERRORS")
WORDS = ("dlsys_helpers.wording",)
ACTS = ("dlsys_helpers.lockstep",)  # an act may import these, as their source goes to the sandbox
WRONG_SEEDS, RIGHT_SEEDS = 3, 20  # for a stale exercise
OTHER_SEEDS = 10  # for right answers by other routes
MOST_SECONDS = 20  # limit for a function of a check's file, tried as an answer


# ---- right answers

WORKED = "the worked answer"


def right_answers(id: str) -> dict[str, Callable]:
    """The worked answer of an exercise and those by other routes, by name."""
    return {WORKED: solutions.worked(id), **solutions.with_kept_answers(id).right_answers}


def refusals(id: str, seeds: Sequence[int], others: Sequence[int]) -> Iterator[str]:
    """A line for each right answer that its check refuses, or that warns, with the first such seed.

    others: the seeds for right answers other than the worked one.
    """
    for route, fn in right_answers(id).items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            verdict = checking.run_check(id, fn, seeds if route == WORKED else others)
        if verdict.status != "pass":
            yield f"{id}, {route}: seed {verdict.seed}, case {verdict.case!r}: {verdict.message}"


# ---- wrong answers

def all_wrong(id: str) -> list[tuple[WrongAnswer, bool]]:
    """All wrong answers, and for each whether it is a named mistake and not a probe."""
    exercise = solutions.with_kept_answers(id)
    return [(wrong, True) for wrong in exercise.wrong_answers] + [
        (probe, False) for probe in (*exercise.probes, *probes.derived(id))]


def complaints(id: str, wrong: WrongAnswer, seeds: Iterable[int],
               names: bool = True) -> Iterator[str]:
    """What is wrong with the verdicts on a wrong answer, seed by seed.

    One draw must suffice: a seed that lets a wrong answer pass has drawn a degenerate case.
    names: whether the check has to name the mistake; probes have no name.
    """
    for seed in seeds:
        exercise, cases = exercise_with_cases(id, seed)
        runs = [exercise.run(wrong.fn, case) for case in cases]
        if names:
            verdict = exercise.judge_runs(cases, runs)
            facts = {"is not wrong": verdict.status == "wrong",
                     "has not its name": verdict.misconception == wrong.name,
                     "has not its trap": verdict.trap == wrong.trap}
        else:
            verdict = next((one for _, one in runs if one.status != "pass"), runs[0][1])
            facts = {"is not wrong": verdict.status in {"wrong", "error"}}
        yield from (f"seed {seed}: {text}: {verdict}" for text in [
            *unmet(facts), *wording_faults(wrong, verdict),
            *broken_besides(exercise, wrong, runs)])


def first_complaints(id: str, wrong: WrongAnswer) -> Iterator[str]:
    """Like `complaints`, but only up to the first failing case of seed 0, and without the name.

    This is enough for a fresh record: a few runs of the wrong answer, not hundreds, show that the
    check works on this machine.
    """
    exercise, cases = exercise_with_cases(id, 0)
    runs = (exercise.run(wrong.fn, case) for case in cases)
    first = next((run for run in runs if run[1].status != "pass"), None)
    if first is None:
        yield "is not wrong"
    else:
        yield from (f"{text}: {first[1]}" for text in [
            *unmet({"is not wrong": first[1].status in {"wrong", "error"}}),
            *wording_faults(wrong, first[1]), *broken_besides(exercise, wrong, [first])])


def unmet(facts: dict[str, bool]) -> list[str]:
    return [text for text, holds in facts.items() if not holds]


def wording_faults(wrong: WrongAnswer, verdict: Verdict) -> list[str]:
    """What is wrong with the message that a wrong answer gets."""
    phrases = " or ".join(map(repr, wrong.says))
    return unmet({f"does not say {phrases}": wrong.is_told(verdict.message),
                  "fails by accident": not verdict.accident,
                  "is told more than 300 characters": len(verdict.message) <= 300})


def broken_besides(exercise: Exercise, wrong: WrongAnswer, runs: list[Run]) -> Iterator[str]:
    """Cases that fail although they decide none of the promises that the answer breaks."""
    broken = [p for p in exercise.promises if p.key in wrong.breaks]
    if not len(broken) == len(wrong.breaks) > 0:
        yield f"breaks {wrong.breaks}, of which no promise has the key"
    for _, verdict in runs:
        if verdict.status != "pass" and not any(p.decides(verdict) for p in broken):
            yield f"fails {verdict.case!r} with {verdict.message!r}, not by what it breaks"


@cache
def exercise_with_cases(id: str, seed: int) -> tuple[Exercise, list[acting.Case]]:
    """An exercise that caches the runs of its wrong answers, and the cases of a seed."""
    return with_remembered_runs(id), registry.find(id).arrange(seed)


@cache
def with_remembered_runs(id: str) -> Exercise:
    """The exercise with its right answers and probes, and a cache for runs of wrong answers."""
    return with_cached_runs(solutions.with_kept_answers(id))


def _forget() -> None:
    """Free the cached outcomes of one exercise's wrong answers, several hundred."""
    for kept in (exercise_with_cases, with_remembered_runs, probes.derived):
        kept.cache_clear()


def passing_functions(id: str) -> Iterator[str]:
    """Functions in the check's file that would pass as an answer, as learners can import them."""
    exercise = registry.find(id)
    cases = exercise.arrange(0)
    for name, fn in vars(sys.modules[exercise.law_fn.__module__]).items():
        # Skip imports from the registry: calling one would register an exercise.
        if inspect.isfunction(fn) and fn.__module__.startswith("dlsys_checks") and (
                fn.__module__ != registry.__name__) and all(
                exercise.judge_one(case, acting.run_act(exercise.act_fn, fn, case, MOST_SECONDS)
                                   ).status == "pass" for case in cases):
            yield (f"{name} passes as it stands; put @not_an_answer above it, from "
                   "dlsys_helpers.judging")


def names_a_sandbox_lacks(id: str) -> list[str]:
    """The names that an exercise's act uses but that are missing where its source runs alone."""
    act = registry.find(id).act_fn
    if act is acting.call_function:
        return []
    return sorted(_names_from_outside(act.__code__) - {*acting.ACT_NAMES, *dir(builtins)})


def _names_from_outside(code: CodeType) -> set[str]:
    """The names that a function, with its inner functions and classes, takes from outside."""
    found, own = set(), set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.add(step.argval)
        elif step.opname == "STORE_NAME":
            own.add(step.argval)
    inner = [_names_from_outside(one) for one in code.co_consts if inspect.iscode(one)]
    return (found - own).union(*inner)


# ---- automatically spoilt outcomes

CONTEXT = {"state"}  # parts that only describe what the act did; a law need not judge them


def accepted_corruptions(id: str, fn: Callable, cases: Sequence[acting.Case]) -> Iterator[str]:
    """Corruptions of one leaf's shape, dtype or value in a right outcome that the law accepts."""
    exercise = registry.find(id)
    for case in cases:
        right = acting.run_act(exercise.act_fn, fn, case).value
        for path, leaf in leaves(right):
            for name, spoil in spoilt(leaf).items() if not CONTEXT & set(path) else ():
                bad = acting.Outcome("value", replaced(right, path, spoil))
                if exercise.judge_one(case, bad).status != "wrong":
                    yield f"{case.name}: {name} at {path} is accepted"


def leaves(value: Any) -> Iterator[tuple[tuple, Any]]:
    """Path and value of all floating-point tensors and floats inside a plain value."""
    return ((path, part) for path, part in parts(value) if type(part) is float or (
        isinstance(part, torch.Tensor) and part.is_floating_point()))


def spoilt(leaf: Any) -> dict[str, Callable]:
    """Ways to spoil an output that broadcasting or a sloppy comparison would forgive."""
    if type(leaf) is float:
        return {"nan": lambda _: math.nan, "off by 2 %": lambda v: v * 1.02 + 1e-3, "text": str}
    other = torch.float32 if leaf.dtype == torch.float64 else torch.float64
    found = {"extra axis": lambda v: v[None], str(other): lambda v: v.to(other)}
    if leaf.numel():  # an empty tensor has no values to spoil
        found |= {"nan": lambda v: torch.full_like(v, math.nan),
                  "off by 2 %": lambda v: v * 1.02 + 1e-2}
    return found


# ---- sessions

SESSIONS = {  # possible settings of a learner's session; none may change a verdict
    "no gradients": lambda: torch.set_grad_enabled(False),
    "float64 by default": lambda: torch.set_default_dtype(torch.float64),
    "a deeper recursion": lambda: sys.setrecursionlimit(50_000),
    "other seeds": lambda: (torch.manual_seed(7), random.seed(7), np.random.seed(7)),
    "a device by default": lambda: torch.set_default_device("meta"),
}


def change_session(names: Iterable[str]) -> None:
    """Change these settings of the session."""
    for name in names:
        SESSIONS[name]()


def failure(id: str, fn: Callable, which: slice = slice(None)) -> Verdict:
    """The verdict on the first of these cases of seed 0 that fails, else on the last one.

    The verdict does not name a mistake.
    """
    exercise = registry.find(id)
    for case in exercise.arrange(0)[which]:
        verdict = exercise.run(fn, case)[1]
        if verdict.status != "pass":
            break
    return verdict


def changed_verdicts(id: str, names: Collection[str]) -> Iterator[str]:
    """A line for each verdict, on the worked or the first wrong answer, that changes."""
    answers = {WORKED: solutions.worked(id), "a wrong answer": all_wrong(id)[0][0].fn}
    for name, fn in answers.items():
        before = failure(id, fn)
        with acting.standard_session():
            change_session(names)
            after = failure(id, fn)
        if after != before:
            yield f"{id}, {name}: {after} in a session with {', '.join(names)}, before: {before}"


# ---- promises

def unpromised(exercise: Exercise, docstring: str | None) -> list[str]:
    """Promises that are not exactly once in a docstring, and its words that no promise covers."""
    left, found = " ".join(inspect.cleandoc(docstring or "").split()), []
    for promise in exercise.promises:
        text = " ".join(promise.text.split())
        if left.count(text) != 1:
            found.append(f"{promise.key}: {text!r} stands not once in: {left}")
        left = left.replace(text, " ")
    return found + ([f"no promise for: {' '.join(left.split())}"] if re.search(r"\w", left) else [])


# ---- what a learner reads

def feedback_by_mistake(id: str) -> dict[str, str]:
    """The feedback on each wrong answer by name, from a fresh record or else judged now."""
    return RECORD.entry(id)["told"] if has_fresh_feedback(id) else judged(id)


def judged(id: str) -> dict[str, str]:
    """The feedback on each wrong answer by name. Raises ValueError if one passes."""
    exercise, cases = exercise_with_cases(id, checking.FIXED_SEEDS[0])
    return {wrong.name: feedback(exercise, cases, wrong) for wrong in exercise.wrong_answers}


def feedback(exercise: Exercise, cases: Sequence[acting.Case], wrong: WrongAnswer) -> str:
    """The feedback on a wrong answer. Raises ValueError if its check lets it pass."""
    verdict = exercise.judge(cases, [exercise.run(wrong.fn, case)[0] for case in cases])
    if verdict.status not in {"wrong", "error"}:
        raise ValueError(f"exercise {exercise.id}: the wrong answer {wrong.name!r} got "
                         f"{verdict.status!r}, expected 'wrong'. Mend the check first.")
    return verdict.message


# ---- the record

def rests_on(id: str) -> dict[str, str]:
    """Fingerprints of a verdict's dependencies.

    These are the answers, the exercise with its imports, the engine, the mutants and the packages.
    Words do not count, neither in messages, promises and names nor in the docstring, which the
    tests compare with the promises each time. Nor does code that only names a mistake.
    """
    exercise = solutions.with_kept_answers(id)
    check = {name for name in fingerprints.with_imports([exercise.law_fn.__module__])
             if name in ACTS or (name.startswith("dlsys_checks.") and name != registry.__name__)}
    return {"check": _code(map(fingerprints.source, sorted(check))),
            "other answers": _code([kept_answers(exercise)]),
            "worked answer": _code(solutions.answers(id[:2])[id], fingerprints.no_words),
            "engine": _code(map(_source, ENGINE)),
            "mutants": _code([inspect.getsource(mutants)], fingerprints.no_words),
            **fingerprints.pinned()}


def words_of(id: str) -> str:
    """Fingerprint of the code with all words that a learner may read, unlike `rests_on`."""
    exercise = solutions.with_kept_answers(id)
    reached = fingerprints.with_imports([exercise.law_fn.__module__])
    modules = {*ENGINE, *WORDS, *(name for name in reached if name.startswith("dlsys_checks."))}
    return _code(map(_source, sorted(modules)), fingerprints.no_words)


def _source(module: str) -> str:
    """The text of a module; in the engine without the parts that only name a mistake."""
    text = fingerprints.source(module)
    return fingerprints.without(text, NAMING) if module in ENGINE else text


def _code(texts: Iterable[str], words: fingerprints.Words = fingerprints.check_words) -> str:
    return fingerprints.fingerprint("\0".join(fingerprints.essence(text, words) for text in texts))


def kept_answers(exercise: Exercise) -> str:
    """The text of the file with an exercise's other right answers, empty if there is none."""
    path = solutions.kept_answers_file(exercise)
    return path.read_text("utf-8") if path.exists() else ""


@cache
def fresh(id: str) -> bool:
    """Whether the recorded proof holds for today's exercise, apart from its words."""
    return RECORD.stale(id, rests_on(id)) == ""


@cache
def has_fresh_feedback(id: str) -> bool:
    """Whether wrong answers get the recorded feedback today."""
    return fresh(id) and RECORD.entry(id)["words"] == words_of(id)


def stale(stem: str, ids: Iterable[str]) -> str:
    """A line with the exercises that lack a fresh proof, and the command; "" if none does."""
    found = [id for id in ids if not fresh(id)]
    return (f"{stem}: not proven as they stand: {', '.join(found)}. "
            f"Run: make finish LESSON={stem[:2]}") if found else ""


def refresh_feedback(id: str) -> tuple[dict[str, Any], list[str]]:
    """The record with new feedback after a change of words, and any contradictions on seed 0."""
    found = [f"{id}, {wrong.name}: {text}" for wrong, named in all_wrong(id)
             for text in complaints(id, wrong, range(1), named)]
    return {**RECORD.entry(id), "words": words_of(id), "told": {} if found else judged(id)}, found


def prove_in_full(id: str, seeds: int) -> tuple[dict[str, Any], list[str]]:
    """Like `prove`, and also with changed sessions and, in a separate process, forged outcomes."""
    facts, found = prove(id, seeds)
    found += changed_verdicts(id, SESSIONS)
    law = forging.complaints({id: forging.PARTS})[id]
    return facts, found + ([f"{id}, a forged outcome: {law}"] if law else [])


def prove(id: str, seeds: int) -> tuple[dict[str, Any], list[str]]:
    """The record of an exercise, and a line for each thing that contradicts it."""
    exercise = solutions.with_kept_answers(id)
    found = list(refusals(id, range(seeds), range(min(seeds, OTHER_SEEDS))))
    for wrong, named in all_wrong(id):
        found += [f"{id}, {wrong.name}: {text}"
                  for text in complaints(id, wrong, range(WRONG_SEEDS), named)]
    found += [f"{id}: {text}" for text in passing_functions(id)]
    found += [f"{id}, the act: the grader's sandbox lacks {name}"
              for name in names_a_sandbox_lacks(id)]
    found += [f"{id}: {text}"
              for text in accepted_corruptions(id, solutions.worked(id), exercise.arrange(0))]
    tried = mutants.tried(id, *solutions.answers(id[:2])[id])
    found += [f"{id}, mutant lives: {name}" for name in tried["unexplained"]]
    found += [f"{id}, a reason for a mutant that dies: {name}" for name in tried["not_needed"]]
    return {"rests_on": rests_on(id), "words": words_of(id),
            "right": {"answers": 1 + len(exercise.right_answers), "seeds": seeds},
            "wrong": {"answers": len(all_wrong(id)), "seeds": WRONG_SEEDS},
            "told": {} if found else judged(id),
            "mutants": tried}, found


def write(id: str, facts: dict[str, Any]) -> None:
    """Put the record of one exercise into its stage's record."""
    RECORD.write(id, facts["rests_on"], facts, wanted=solutions.answers(id[:2]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", help="stages or exercises; the stale ones when absent")
    parser.add_argument("--seeds", type=int, default=RIGHT_SEEDS, help="for right answers")
    parser.add_argument("--right", action="store_true", help="right answers only, no record")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ids = [id for stage in solutions.stages() for id in solutions.answers(stage)]
    if unknown := [w for w in args.what if not any(w in (id, id[:2]) for id in ids)]:
        parser.error(f"got {', '.join(unknown)}, expected stages or exercises with an answer in "
                     "solutions/. Run: make build LESSON=05")
    chosen = [id for id in ids if ({id, id[:2]} & set(args.what) if args.what
                                   else not has_fresh_feedback(id))]
    lines: list[str] = []
    for place, id in enumerate(chosen, 1):
        began = time.process_time()
        with acting.standard_session():  # outer: cheap to enter again per case
            if args.right:
                facts, found = {}, list(refusals(id, range(args.seeds), range(args.seeds)))
            else:
                facts, found = (refresh_feedback(id) if fresh(id) and not args.what
                                else prove_in_full(id, args.seeds))
        if facts and not found:
            write(id, facts)
        _forget()
        print("\n".join(found) or f"{place} of {len(chosen)}, {id}: proven, right answers on "
              f"{args.seeds} seeds, {time.process_time() - began:.0f} s of CPU", flush=True)
        lines += found
    if chosen and not lines and not args.right:
        print("Recorded in tests/records/checks/. Next: make test")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
