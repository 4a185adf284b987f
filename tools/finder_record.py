"""How well the symptom finder answers what people wrote, into tests/records/finder.json.

tests/finder_phrases.yml is looked at while rows and spellings are improved, finder_fresh.yml and
finder_newest.yml only measure; book_finder shows the figures on the finder's page:

    .venv/bin/python -m tools.finder_record
"""

from __future__ import annotations

import json

import yaml

from dlsys import find
from dlsys_helpers import catalog
from dlsys_helpers.paths import ROOT
from tools.book_finder import RECORD

PHRASES = {"seen": ROOT / "tests" / "finder_phrases.yml",
           "fresh": ROOT / "tests" / "finder_fresh.yml",
           "newest": ROOT / "tests" / "finder_newest.yml"}
# What the sets that only measure got on the day they were gathered, before anything changed.
GATHERED = {"fresh": {"found": 26, "first": 20, "honest": 6},
            "newest": {"found": 24, "first": 22, "honest": 14}}


def phrases(name: str) -> list[dict]:
    """One of the sets, as it is written."""
    return yaml.safe_load(PHRASES[name].read_text("utf-8"))


def measure(name: str) -> dict[str, int]:
    """Counts over a set's phrases; a right cause that "Nothing fits" stands over does not count.

    found, first: a right trap among the three likeliest causes, as the very first. honest: phrases
    without a trap that get none, as nothing fits or as the likeliest cause is none; nothing: those
    where nothing fits.
    """
    known = find.index(find.rows())
    answers = [(find.rank(known, phrase["said"]), phrase.get("traps"))
               for phrase in phrases(name)]
    known_traps = {trap.id for trap in catalog.traps()}
    right = [(answer.causes if answer.fits else [], traps)
             for answer, traps in answers if traps]
    none = [answer for answer, traps in answers if not traps]
    return {"with": len(right),
            "found": sum(not set(traps).isdisjoint(got) for got, traps in right),
            "first": sum(bool(got) and got[0] in traps for got, traps in right),
            "without": len(none),
            "honest": sum(not answer.fits or answer.causes[0] not in known_traps
                          for answer in none),
            "nothing": sum(not answer.fits for answer in none)}


def record() -> dict[str, dict[str, int]]:
    return {name: measure(name) for name in PHRASES} | {"gathered": GATHERED}


def update() -> None:
    RECORD.write_text(json.dumps(record(), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    update()
    print(RECORD.read_text("utf-8"))
