"""What a learner who writes a named wrong answer is told: judged once, then recorded.

    python -m tools.told          the exercises whose record is stale

A record a stage, tests/records/told/NN.json, rests on what the proof of the check rests on. Where
it is stale, the book judges the answers itself, which takes some seconds for each exercise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from dlsys_helpers import catalog, checking
from dlsys_helpers.acting import Case
from dlsys_helpers.paths import ROOT
from tools import proof

RECORDS = ROOT / "tests" / "records" / "told"


def path(id: str) -> Path:
    return RECORDS / f"{id[:2]}.json"


def stored(id: str) -> dict[str, dict]:
    """The record of an exercise's stage: fingerprint and feedback by exercise."""
    return json.loads(path(id).read_text("utf-8")) if path(id).exists() else {}


def recorded(id: str) -> dict[str, str]:
    """The feedback by name of the wrong answer, from a fresh record; empty where there is none."""
    facts = stored(id).get(id, {})
    return facts["told"] if facts.get("rests_on") == proof.rests_on(id) else {}


def of(id: str) -> dict[str, str]:
    """The feedback by name of the wrong answer: recorded, else judged now."""
    return recorded(id) or judged(id)


def judged(id: str) -> dict[str, str]:
    """The feedback on every wrong answer of an exercise, by its name."""
    # Naming a mistake compares it with all its siblings: each of them acts once, not each time.
    found = checking.remembering(checking.find(id))
    cases = found.arrange(checking.FIXED_SEEDS[0])
    return {wrong.name: feedback(found, cases, wrong) for wrong in found.wrong_answers}


def feedback(exercise: checking.Exercise, cases: Sequence[Case],
             wrong: checking.WrongAnswer) -> str:
    """The feedback a wrong answer gets. Raises ValueError when its check lets it pass."""
    verdict = exercise.judge(cases, [exercise.run(wrong.fn, case)[0] for case in cases])
    if verdict.status not in {"wrong", "error"}:
        raise ValueError(f"exercise {exercise.id}: the wrong answer {wrong.name!r} got "
                         f"{verdict.status!r}, expected 'wrong'. Mend the check first.")
    return verdict.message


def write(id: str) -> None:
    """Judge the wrong answers of an exercise and put the feedback into the record of its stage."""
    entry = {**stored(id), id: {"rests_on": proof.rests_on(id), "told": judged(id)}}
    path(id).parent.mkdir(parents=True, exist_ok=True)
    path(id).write_text(json.dumps(dict(sorted(entry.items())), indent=1, ensure_ascii=False)
                        + "\n", "utf-8")


def main() -> None:
    torch.set_num_threads(1)
    for trap in catalog.traps():
        if not recorded(trap.id):
            write(trap.id)
            print(f"{trap.id}: recorded", flush=True)


if __name__ == "__main__":
    main()
