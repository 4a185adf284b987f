"""What answers say about a learner: the model of `dlsys placement`.

A learner has one level, and a level for each stage that depends on the stages before it. Both
levels and a trap's difficulty give the probability that the learner knows it. An answer is evidence
on its own trap, and through the levels on all others. The model asks next about the trap that is
expected to leave the least doubt, counted in minutes. tools/placement.py measures it on simulated
learners. numpy is imported only where it is needed, so that `dlsys` starts without it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dlsys import plan
from dlsys_helpers import catalog

if TYPE_CHECKING:
    import numpy as np

# Which stages a stage builds on; it can be read without the others.
NEEDS = {1: (), 2: (1,), 3: (1, 2), 4: (2, 3), 5: (1, 2), 6: (3,), 7: (5,), 8: (2, 5), 9: (2, 4),
         10: (7, 8), 11: (5, 7), 12: (3, 4), 13: (8,), 14: (3, 8), 15: (8, 9)}
LEAST, MOST = 12, 15  # questions
ENOUGH = 0.003  # of the doubt: what a thirteenth question must promise to remove
SKIP = 0.7  # known with this probability: no need to take it
LEVEL, OF_STAGE, LEANS = 1.0, 1.5, 0.8  # standard deviation of level and stage; weight of needs
STEP, MIDDLE = 0.6, 2.5  # what a point of difficulty costs, and which one costs nothing
SLIPS_NOT, LUCK = 0.9, 0.1  # probability of a right answer with knowing, and without
DRAWS = 2000  # simulated learners that represent all


class Course(NamedTuple):
    """The core path as the model needs it; tuples have one entry per trap."""

    ids: tuple[str, ...]
    stages: tuple[int, ...]
    difficulty: tuple[int, ...]
    minutes: tuple[int, ...]  # with the ideas that lead to the trap


class Seen(NamedTuple):
    """Evidence on a trap: how likely it is if the learner knows the trap, and if not."""

    id: str
    known: float
    unknown: float
    words: str


class Doubt(NamedTuple):
    """The belief after some evidence: for each trap, the probability that it is known."""

    weights: np.ndarray  # of the learners drawn
    each: np.ndarray  # of each learner drawn and each trap
    known: np.ndarray  # of each trap, over all of them
    seen: dict[str, Seen]


@functools.cache
def course() -> Course:
    traps = {trap.id: trap for trap in catalog.traps() if trap.core}
    minutes: dict[str, int] = {}
    for stage in catalog.written():
        ideas = 0
        for piece in plan.pieces(stage):
            ideas += piece.minutes
            if piece.trap in traps:
                minutes[piece.trap], ideas = ideas, 0
    found = [traps[id] for id in minutes]
    return Course(tuple(minutes), tuple(int(trap.id[:2]) for trap in found),
                  tuple(trap.difficulty for trap in found), tuple(minutes.values()))


# ---- the model

@functools.cache
def drawn(of: Course) -> np.ndarray:
    """Simulated learners: the probability that each of them knows each trap."""
    import numpy as np

    rng = np.random.default_rng(0)
    level = rng.normal(0, LEVEL, DRAWS)
    stages: dict[int, np.ndarray] = {}
    for stage, needs in NEEDS.items():
        lean = sum(stages[one] for one in needs) / len(needs) if needs else 0.0
        stages[stage] = LEANS * lean + rng.normal(0, OF_STAGE, DRAWS)
    logits = [level + stages[stage] - STEP * (hard - MIDDLE)
              for stage, hard in zip(of.stages, of.difficulty, strict=True)]
    return 1 / (1 + np.exp(-np.array(logits).T))


def belief(of: Course, evidence: Sequence[Seen]) -> Doubt:
    """What the evidence says about all traps. Several pieces on one trap are multiplied."""
    import numpy as np

    chance, place = drawn(of), {id: n for n, id in enumerate(of.ids)}
    seen: dict[str, Seen] = {}
    for one in evidence:
        old = seen.get(one.id)
        seen[one.id] = one if old is None else Seen(one.id, old.known * one.known,
                                                    old.unknown * one.unknown, one.words)
    weights, each = np.ones(len(chance)), chance.copy()
    for id, one in seen.items():
        if id in place:
            p = chance[:, place[id]]
            both = p * one.known + (1 - p) * one.unknown
            weights = weights * both
            each[:, place[id]] = p * one.known / both
    weights /= weights.sum()
    return Doubt(weights, each, weights @ each, seen)


def left(of: Course, doubt: Doubt) -> np.ndarray:
    """The doubt that is expected to be left after asking about each trap, in minutes."""
    import numpy as np

    found = np.zeros(len(of.ids))
    for right in (True, False):
        from_known, from_other = (p if right else 1 - p for p in (SLIPS_NOT, LUCK))
        likely = doubt.weights[:, None] * (doubt.each * from_known + (1 - doubt.each) * from_other)
        mass = likely.sum(axis=0)
        known = likely.T @ doubt.each / mass[:, None]
        np.fill_diagonal(known, doubt.known * from_known / mass)
        found += mass * ((known * (1 - known)) @ of.minutes)
    return found


def to_take(of: Course, doubt: Doubt) -> list[int]:
    """The places of the traps to take, first those that were answered wrong or skipped."""
    take = [n for n, known in enumerate(doubt.known) if known < SKIP]
    return sorted(take, key=lambda n: not _speaks_against(doubt.seen.get(of.ids[n])))


def _speaks_against(one: Seen | None) -> bool:
    return one is not None and one.known < one.unknown


def next_item(of: Course, doubt: Doubt, asked: int) -> str | None:
    """The trap to ask about; None if enough has been asked."""
    open_ = [n for n, id in enumerate(of.ids) if id not in doubt.seen]
    if asked >= MOST or not open_:
        return None
    now = (doubt.known * (1 - doubt.known)) @ of.minutes
    after = left(of, doubt)
    best = min(open_, key=lambda n: after[n])
    if asked >= LEAST and now - after[best] < ENOUGH * now:
        return None
    return of.ids[best]


def _unknown(options: int | None, sure: bool) -> float:
    """The probability of a right answer without knowing, which is lower when sure."""
    luck = 1 / options if options else LUCK
    return luck if sure else min(2 * luck, 0.6)


def answered(id: str, right: bool, sure: bool, options: int | None) -> Seen:
    """An answer in a placement as evidence."""
    luck = _unknown(options, sure)
    words = ("you answered it right" if right else "you were sure of a wrong answer" if sure
             else "you answered it wrong")
    return Seen(id, SLIPS_NOT if right else 1 - SLIPS_NOT, luck if right else 1 - luck, words)


def skipped(id: str) -> Seen:
    return Seen(id, 0.05, 0.6, "you did not know it")
