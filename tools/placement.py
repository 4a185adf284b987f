"""Measure `dlsys placement` on simulated learners: ``python -m tools.placement``.

Learners of five kinds have gaps that we know. We draw them by separate rules, not by the model of
the placement, and they answer with slips, luck and doubts. For each kind we record the share of
gaps in the plan, the plan's cost compared with the core path, and the share of gaps that the core
path covers in as many minutes. Takes half a minute of CPU.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dlsys import placement_model as model
from dlsys.placement_model import Course
from tools import fingerprints
from tools.records import Record

RECORD = Record("placement.json", done="measured", renew="python -m tools.placement", lines=True)
LEARNERS = 40  # of each kind
FIRST = 600  # minutes
SLIP, LUCK, DOUBT = 0.1, 0.25, 0.25  # wrong though known; right though not; unsure though known
SKIPS = 0.4  # how often learners skip what they do not know, instead of guessing
CHOICE = 0.5  # the share of questions with four options; the others ask for a number

# The probability that a learner of a kind knows a trap of this stage.
KINDS: dict[str, Callable[[int], float]] = {
    "newcomer": lambda stage: 0.5 if stage == 1 else 0.05,
    "finished a first course": lambda stage: 0.8 if stage <= 3 else 0.25,
    "trains vision models": lambda stage: 0.85 if stage <= 7 else 0.2,
    "serves language models": lambda stage: (
        0.9 if stage in (8, 9, 11, 13) else 0.7 if stage <= 5 else 0.3),
    "knows nearly all": lambda _: 0.9}


class Result(NamedTuple):
    """One learner's result: shares of gaps, minutes and questions."""

    found: float  # of the gaps, those in the plan
    same_time: float  # of the gaps, those in as many minutes of the core path
    spent: float  # minutes of the plan, as a share of the core path's
    first: float  # of the gaps, those in the first hours of the plan
    first_core: float  # of the gaps, those in the first hours of the core path
    asked: int


def learner(kind: str, seed: int, of: Course) -> set[str]:
    """The traps that a learner knows, all except at least one."""
    rng = random.Random(f"{kind} {seed}")
    known = {id for id, stage in zip(of.ids, of.stages, strict=True)
             if rng.random() < KINDS[kind](stage)}
    return known - {rng.choice(of.ids)}


def played(known: set[str], rng: random.Random, of: Course) -> model.Doubt:
    """Play a placement with a learner who knows these traps."""
    seen: list[model.Seen] = []
    while id := model.next_item(of, doubt := model.belief(of, seen), len(seen)):
        seen.append(_answer(id, id in known, rng))
    return doubt


def _answer(id: str, knows: bool, rng: random.Random) -> model.Seen:
    options = 4 if rng.random() < CHOICE else None
    if not knows and rng.random() < SKIPS:
        return model.skipped(id)
    luck = LUCK if options else LUCK / 3
    right = rng.random() < (1 - SLIP if knows else luck)
    sure = rng.random() > (DOUBT if knows else 1 - DOUBT)
    return model.answered(id, right, sure, options)


def measured(kind: str, seed: int, of: Course) -> Result:
    known = learner(kind, seed, of)
    doubt = played(known, random.Random(f"answers {kind} {seed}"), of)
    minutes = dict(zip(of.ids, of.minutes, strict=True))
    gaps = [id for id in of.ids if id not in known]
    take = [of.ids[n] for n in model.to_take(of, doubt)]
    spent = sum(minutes[id] for id in take)

    def share(path: list[str], most: float) -> float:
        """The share of the gaps that the first `most` minutes of a path cover."""
        ends = itertools.accumulate(minutes[id] for id in path)
        met = [id for id, end in zip(path, ends, strict=True) if end <= most]
        return len(set(met) & set(gaps)) / len(gaps)

    return Result(share(take, spent), share(list(of.ids), spent), spent / sum(of.minutes),
                  share(take, FIRST), share(list(of.ids), FIRST), len(doubt.seen))


def record(learners: int = LEARNERS) -> dict[str, dict[str, float]]:
    """The mean results of each kind, and of all learners."""
    of = model.course()
    rows = {kind: [measured(kind, seed, of) for seed in range(learners)] for kind in KINDS}
    rows["all"] = [row for found in list(rows.values()) for row in found]
    return {kind: {name: round(statistics.mean(getattr(row, name) for row in found), 3)
                   for name in Result._fields} for kind, found in rows.items()}


def now() -> dict[str, str]:
    of = model.course()
    return {"model": fingerprints.module_fingerprint("dlsys.placement_model"),
            "learners": fingerprints.fingerprint(
                fingerprints.essence(Path(__file__).read_text("utf-8"))),
            "course": fingerprints.fingerprint(repr((of.ids, of.difficulty)))}


def main() -> None:
    RECORD.write_all({kind: {"rests_on": now(), **facts} for kind, facts in record().items()})


if __name__ == "__main__":
    main()
