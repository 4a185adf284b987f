"""Prove the checks: right answers pass, wrong ones fail for their own reason, mutants die.

    python -m tools.proof                          the exercises whose record is stale
    python -m tools.proof 01 02.3 --seeds 1000     these; right answers on so many seeds
    python -m tools.proof 01.4 --right             only the right answers; writes nothing
    python -m tools.proof 04 --variants            the other numbers of a release; writes nothing

A record a stage, tests/records/checks/NN.json, says for each exercise how far it was proven and
what that rests on. The tests prove a stale exercise in full. Of a fresh one they try a single seed,
and most wrong answers only up to their first failure.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import inspect
import json
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dlsys import pool, variants
from dlsys.pool_constants import CONSTANTS
from dlsys.remembering import remembering
from dlsys_helpers import acting, checking
from dlsys_helpers.checking import Exercise, Run, WrongAnswer
from dlsys_helpers.paths import ROOT
from dlsys_helpers.verdicts import Verdict
from tools import mutants, rests, worked

RECORDS = ROOT / "tests" / "records" / "checks"
ENGINE = ("dlsys_helpers.acting", "dlsys_helpers.checking", "dlsys_helpers.expect")
WRONG_SEEDS, RIGHT_SEEDS = 4, 20  # what a stale exercise is tried on


# ---- right answers

def right_answers(id: str, value: float | None = None) -> dict[str, Callable]:
    """The worked answer of an exercise and those by other routes, by name.

    value: another one for the exercise's constant, in the worked answer.
    """
    exercise, (setup, source) = checking.find(id), worked.answers(id[:2])[id]
    source = source if value is None else pool.with_value(source, id, value)
    space: dict[str, Any] = {"__name__": "worksheet"}
    exec(compile(f"{setup}\n{source}", f"<{id}>", "exec"), space)
    return {"the worked answer": space[exercise.function], **exercise.right_answers}


def refusals(id: str, seeds: Iterable[int], value: float | None = None) -> Iterator[str]:
    """A line for each right answer that is refused, or warns, with the first seed that does."""
    for route, fn in right_answers(id, value).items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            verdict = checking.run_check(id, fn, seeds)
        if verdict.status != "pass":
            yield f"{id}, {route}: seed {verdict.seed}, case {verdict.case!r}: {verdict.message}"


# ---- wrong answers

def complaints(id: str, wrong: WrongAnswer, seeds: Iterable[int]) -> Iterator[str]:
    """What is amiss with the verdicts on a named wrong answer, seed by seed.

    One draw must suffice: a seed that lets a wrong answer pass has drawn a degenerate case.
    """
    for seed in seeds:
        exercise, cases = paper(id, seed)
        runs = [exercise.run(wrong.fn, case) for case in cases]
        verdict = exercise.judge(cases, [outcome for outcome, _ in runs])
        yield from (f"seed {seed}: {text}: {verdict}" for text in [
            *unfit({"is not wrong": verdict.status == "wrong",
                    "has not its name": verdict.misconception == wrong.name,
                    "has not its trap": verdict.trap == wrong.trap}),
            *mistold(wrong, verdict), *broken_besides(exercise, wrong, runs)])


def glance(id: str, wrong: WrongAnswer) -> Iterator[str]:
    """What is amiss with the first failure of a wrong answer on seed 0, before it has a name.

    What a fresh record leaves to ask of this machine, for a few acts instead of hundreds.
    """
    exercise, cases = paper(id, 0)
    runs = (exercise.run(wrong.fn, case) for case in cases)
    first = next((run for run in runs if run[1].status != "pass"), None)
    if first is None:
        yield "is not wrong"
    else:
        yield from (f"{text}: {first[1]}" for text in [
            *unfit({"is not wrong": first[1].status in {"wrong", "error"}}),
            *mistold(wrong, first[1]), *broken_besides(exercise, wrong, [first])])


def unfit(facts: dict[str, bool]) -> list[str]:
    return [text for text, holds in facts.items() if not holds]


def mistold(wrong: WrongAnswer, verdict: Verdict) -> list[str]:
    """What is amiss with the words that a wrong answer is told."""
    return unfit({f"does not say {wrong.says!r}": wrong.says in verdict.message,
                  "fails by accident": not verdict.accident,
                  "is told more than 300 characters": len(verdict.message) <= 300})


def broken_besides(exercise: Exercise, wrong: WrongAnswer, runs: list[Run]) -> Iterator[str]:
    """Cases that fail though no promise that the answer is said to break decides them."""
    broken = [p for p in exercise.promises if p.key in wrong.breaks]
    if not len(broken) == len(wrong.breaks) > 0:
        yield f"breaks {wrong.breaks}, of which no promise has the key"
    for _, verdict in runs:
        if verdict.status != "pass" and not any(p.decides(verdict) for p in broken):
            yield f"fails {verdict.case!r} with {verdict.message!r}, not by what it breaks"


@cache
def paper(id: str, seed: int) -> tuple[Exercise, list[acting.Case]]:
    """An exercise that remembers its wrong answers, and the cases of a seed, drawn once."""
    return _remembering(id), checking.find(id).arrange(seed)


@cache
def _remembering(id: str) -> Exercise:
    return remembering(checking.find(id))


# ---- outcomes spoilt by a machine

CONTEXT = {"state"}  # parts that only describe what the act did; a law need not judge them


def unjudged(id: str, fn: Callable, cases: Sequence[acting.Case]) -> Iterator[str]:
    """Spoilt parts of a right outcome that the law accepts: shape, dtype, value, each by itself."""
    exercise = checking.find(id)
    for case in cases:
        right = acting.run_act(exercise.act_fn, fn, case).value
        for path, leaf in leaves(right):
            for name, spoil in spoilt(leaf).items() if not CONTEXT & set(path) else ():
                bad = acting.Outcome("value", replaced(right, path, spoil))
                if exercise.judge_one(case, bad).status != "wrong":
                    yield f"{case.name}: {name} at {path} is accepted"


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Path and value of all floating-point tensors and floats inside a plain value."""
    if type(value) is float or (isinstance(value, torch.Tensor) and value.is_floating_point()):
        yield path, value
    items = value.items() if isinstance(value, dict) else (
        enumerate(value) if isinstance(value, list | tuple) else ())
    for key, item in items:
        yield from leaves(item, (*path, key))


def replaced(value: Any, path: tuple, change: Callable) -> Any:
    """A copy of a plain value with the leaf at `path` changed."""
    if not path:
        return change(value)
    if isinstance(value, tuple):
        return tuple(replaced(v, path[1:], change) if i == path[0] else v
                     for i, v in enumerate(value))
    new = copy.copy(value)
    new[path[0]] = replaced(value[path[0]], path[1:], change)
    return new


def spoilt(leaf: Any) -> dict[str, Callable]:
    """Ways to spoil an output that broadcasting or a sloppy comparison would forgive."""
    if type(leaf) is float:
        return {"nan": lambda _: math.nan, "off by 2 %": lambda v: v * 1.02 + 1e-3, "text": str}
    other = torch.float32 if leaf.dtype == torch.float64 else torch.float64
    found = {"extra axis": lambda v: v[None], str(other): lambda v: v.to(other)}
    if leaf.numel():  # nothing else can be said of a tensor without elements
        found |= {"nan": lambda v: torch.full_like(v, math.nan),
                  "off by 2 %": lambda v: v * 1.02 + 1e-2}
    return found


# ---- promises

def unpromised(exercise: Exercise, docstring: str | None) -> list[str]:
    """Promises that stand not once in a docstring, and what no promise holds of it."""
    left, found = " ".join(inspect.cleandoc(docstring or "").split()), []
    for promise in exercise.promises:
        text = " ".join(promise.text.split())
        if left.count(text) != 1:
            found.append(f"{promise.key}: {text!r} stands not once in: {left}")
        left = left.replace(text, " ")
    return found + ([f"no promise for: {' '.join(left.split())}"] if re.search(r"\w", left) else [])


# ---- other numbers

def contradictions(id: str, value: float, rights: Iterable[int],
                   wrongs: Iterable[int]) -> Iterator[str]:
    """What is amiss with an exercise whose constant has another value; seeds for right and wrong.

    An answer with the usual value must fail here, and this one's where the usual is asked for.
    """
    usual, name = right_answers(id)["the worked answer"], CONSTANTS[id].name
    with asking(id, value):
        mine, exercise = right_answers(id, value)["the worked answer"], checking.find(id)
        found = [*refusals(id, rights, value), *unpromised(exercise, mine.__doc__)]
        found += [f"{wrong.name}: {text}" for wrong in exercise.wrong_answers
                  for text in complaints(id, wrong, wrongs)]
        found += unfit({"the usual worked answer passes": _fails(id, usual)})
    found += unfit({"its worked answer passes for the usual value": _fails(id, mine)})
    yield from (f"{id}, {name} {value}: {text}" for text in found)


def _fails(id: str, fn: Callable) -> bool:
    return checking.run_check(id, fn, (0,)).status in {"wrong", "error"}


@contextlib.contextmanager
def asking(id: str, value: float) -> Iterator[None]:
    """Put an exercise with this value of its constant in place of the usual one."""
    usual = checking.find(id)
    checking.REGISTRY[id] = variants.exercise(id, value)
    _forget()
    try:
        yield
    finally:
        checking.REGISTRY[id] = usual
        _forget()


def _forget() -> None:
    for kept in (paper, _remembering):
        kept.cache_clear()


# ---- what a learner is told

def told(id: str) -> dict[str, str]:
    """The feedback on each wrong answer by its name: from a fresh record, else judged now."""
    return stored(id[:2])[id]["told"] if fresh(id) else judged(id)


def judged(id: str) -> dict[str, str]:
    """The feedback on each wrong answer by its name. Raises ValueError for one that passes."""
    exercise, cases = paper(id, checking.FIXED_SEEDS[0])
    return {wrong.name: feedback(exercise, cases, wrong) for wrong in exercise.wrong_answers}


def feedback(exercise: Exercise, cases: Sequence[acting.Case], wrong: WrongAnswer) -> str:
    """The feedback a wrong answer gets. Raises ValueError when its check lets it pass."""
    verdict = exercise.judge(cases, [exercise.run(wrong.fn, case)[0] for case in cases])
    if verdict.status not in {"wrong", "error"}:
        raise ValueError(f"exercise {exercise.id}: the wrong answer {wrong.name!r} got "
                         f"{verdict.status!r}, expected 'wrong'. Mend the check first.")
    return verdict.message


# ---- the record

def rests_on(id: str) -> str:
    """Fingerprint of the worked answer, the exercise's file with what it imports, and the engine.

    Prose does not count, except the docstring: the promises are its words.
    """
    file = checking.find(id).law_fn.__module__
    names = {*ENGINE, *(name for name in rests.reached([file]) if name.startswith("dlsys_checks."))}
    code = [rests.without_prose(inspect.getsource(importlib.import_module(name)))
            for name in sorted(names)]
    code += [rests.without_prose(Path(mutants.__file__).read_text("utf-8"))]
    return rests.fingerprint("\0".join([*code, *worked.answers(id[:2])[id], str(rests.pinned())]))


def stored(stage: str) -> dict[str, Any]:
    """The record of a stage, "01": facts by exercise; empty when there is none."""
    path = RECORDS / f"{stage}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


@cache
def fresh(id: str) -> bool:
    """Whether the record of an exercise rests on what stands there now."""
    return stored(id[:2]).get(id, {}).get("rests_on") == rests_on(id)


def prove(id: str, seeds: int) -> tuple[dict[str, Any], list[str]]:
    """The record of an exercise, and a line for each thing that contradicts it."""
    exercise = checking.find(id)
    found = list(refusals(id, range(seeds)))
    for wrong in exercise.wrong_answers:
        found += [f"{id}, {wrong.name}: {text}"
                  for text in complaints(id, wrong, range(WRONG_SEEDS))]
    answer = right_answers(id)["the worked answer"]
    found += [f"{id}: {text}" for text in unjudged(id, answer, exercise.arrange(0))]
    tried = mutants.tried(id, *worked.answers(id[:2])[id])
    found += [f"{id}, mutant lives: {name}" for name in tried["unexplained"]]
    found += [f"{id}, a reason for a mutant that dies: {name}" for name in tried["not_needed"]]
    return {"rests_on": rests_on(id),
            "right": {"answers": 1 + len(exercise.right_answers), "seeds": seeds},
            "wrong": {"answers": len(exercise.wrong_answers), "seeds": WRONG_SEEDS},
            "told": {} if found else judged(id),
            "mutants": tried}, found


def write(id: str, facts: dict[str, Any]) -> None:
    """Put the record of one exercise into that of its stage."""
    entry = {**stored(id[:2]), id: facts}
    wanted = sorted(set(entry) & set(worked.answers(id[:2])))
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{id[:2]}.json").write_text(
        json.dumps({key: entry[key] for key in wanted}, indent=1) + "\n", "utf-8")


def vary(ids: Sequence[str], seeds: int) -> list[str]:
    """Print a line for each other value of these exercises; returns what contradicts them."""
    lines: list[str] = []
    for id, value in [(one, value) for one in ids for value in CONSTANTS[one].values[1:]]:
        with acting.standard_session():
            found = [*contradictions(id, value, range(seeds), range(WRONG_SEEDS))]
        print("\n".join(found) or f"{id}, {CONSTANTS[id].name} {value}: proven, right answers on "
              f"{seeds} seeds", flush=True)
        lines += found
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", help="stages or exercises; the stale ones when absent")
    parser.add_argument("--seeds", type=int, default=RIGHT_SEEDS, help="for right answers")
    parser.add_argument("--right", action="store_true", help="right answers only, no record")
    parser.add_argument("--variants", action="store_true", help="other numbers, no record")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ids = [id for stage in worked.stages() for id in worked.answers(stage)]
    if unknown := [w for w in args.what if not any(w in (id, id[:2]) for id in ids)]:
        parser.error(f"got {', '.join(unknown)}, expected stages or exercises with an answer in "
                     "solutions/. A draft has none there: make build LESSON=05, without DRAFT")
    if args.variants:
        sys.exit(1 if vary([id for id in CONSTANTS if id in ids and (
            not args.what or {id, id[:2]} & set(args.what))], args.seeds) else 0)
    lines: list[str] = []
    for id in ids:
        if {id, id[:2]} & set(args.what) if args.what else not fresh(id):
            with acting.standard_session():  # once: each case's own is quicker inside
                facts, found = ({}, list(refusals(id, range(args.seeds)))) if args.right else (
                    prove(id, args.seeds))
            if facts and not found:
                write(id, facts)
            print("\n".join(found) or f"{id}: proven, right answers on {args.seeds} seeds",
                  flush=True)
            lines += found
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
