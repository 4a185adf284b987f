"""How well the symptom finder answers what people wrote, into tests/records/finder.json.

tests/finder_phrases.yml is looked at while rows and spellings are improved, and finder_fresh.yml
only measures. finder_unseen.yml, finder_later.yml (the hardest) and finder_newest.yml each came
after the finder had been fitted, and were tried once before anything else was changed. book_finder
shows the figures on the finder's page:

    .venv/bin/python -m tools.finder_record
"""

from __future__ import annotations

import yaml

from dlsys import find
from dlsys_helpers import catalog
from dlsys_helpers.paths import ROOT
from tools import fingerprints
from tools.records import Record

RECORD = Record("finder.json", done="measured", renew=".venv/bin/python -m tools.finder_record")

PHRASES = {"seen": ROOT / "tests" / "finder_phrases.yml",
           "fresh": ROOT / "tests" / "finder_fresh.yml",
           "unseen": ROOT / "tests" / "finder_unseen.yml",
           "later": ROOT / "tests" / "finder_later.yml",
           "newest": ROOT / "tests" / "finder_newest.yml"}
# What was measured when the finder was last changed; a change may raise these counts only. Every
# new row changes the weights of all words, which moves answers that have nothing to do with it: one
# trap moved 21 of 450, and a count by up to two. So a count may fall by SLACK before it is a
# finding.
SLACK = 3
FLOORS = {"seen": {"shown": 118, "found": 110, "honest": 33},
          "fresh": {"shown": 94, "found": 75, "honest": 45},
          "unseen": {"shown": 49, "found": 41, "honest": 25, "hedged": 30, "told": 5},
          "later": {"shown": 13, "found": 9, "honest": 14, "hedged": 24},
          "newest": {"honest": 22, "hedged": 26}}
OF = {"honest": "without", "hedged": "without", "told": "rows"}  # what a count is counted of
# The most phrases that get a likely answer without the right cause, with the same slack.
CEILINGS = {"seen": 6, "fresh": 3, "unseen": 2, "later": 7, "newest": 2}
FLOORS_AT = "tools/finder_record.py"


def phrases(name: str) -> list[dict]:
    """The phrases of one set, unchanged."""
    return yaml.safe_load(PHRASES[name].read_text("utf-8"))


def measure(name: str) -> dict[str, int]:
    """Counts over a set's phrases.

    shown: a right trap among the three causes that are shown. found, first: the same and as the
    very first, without those shown under the line that no cause fits. honest: phrases without a
    trap that get none, as no cause fits or as the likeliest is no trap; nothing: those where no
    cause fits; hedged: these and those where one is no more than possible. told: phrases whose
    cause is the sentence of a row without a trap, where that is among the three. mistaken: phrases
    of all three kinds that get a likely or very likely answer without the right cause.
    """
    known = find.index(find.rows())
    ranked = [(find.rank(known, phrase["said"]), phrase) for phrase in phrases(name)]
    answers = [(answer, phrase.get("traps")) for answer, phrase in ranked if "cause" not in phrase]
    rows = [(answer, phrase["cause"]) for answer, phrase in ranked if "cause" in phrase]
    known_traps = {trap.id for trap in catalog.traps()}
    right = [(answer, traps) for answer, traps in answers
             if traps and not set(traps).isdisjoint(answer.causes)]
    none = [answer for answer, traps in answers if not traps]
    return {"with": len(answers) - len(none), "shown": len(right),
            "found": sum(answer.fits for answer, _ in right),
            "first": sum(answer.fits and answer.causes[0] in traps for answer, traps in right),
            "without": len(none),
            "honest": sum(not answer.fits or answer.causes[0] not in known_traps
                          for answer in none),
            "nothing": sum(not answer.fits for answer in none),
            "hedged": sum(answer.sure in ("", find.UNSURE) for answer in none),
            "rows": len(rows), "told": sum(cause in answer.causes for answer, cause in rows
                                           if answer.fits),
            "mistaken": sum(answer.sure not in ("", find.UNSURE)
                            and {*phrase.get("traps", ()), phrase.get("cause")}.isdisjoint(
                                answer.causes) for answer, phrase in ranked)}


def rests_on(name: str) -> dict[str, str]:
    """What the counts of a set rest on: its phrases, the finder's rows, and how it ranks them."""
    return {"phrases": fingerprints.fingerprint(PHRASES[name].read_text("utf-8")),
            "rows": fingerprints.fingerprint(find.STORED.read_text("utf-8")),
            "dlsys.find": fingerprints.module_fingerprint("dlsys.find")}


def stale() -> list[str]:
    """A line for each set whose counts no longer hold, with the command; [] where all do."""
    return [why for name in PHRASES if (why := RECORD.stale(name, rests_on(name)))]


def fallen() -> list[str]:
    """A line for each count below its floor or above its ceiling, with what to do; or []."""
    entries = RECORD.entries()
    low = [f"{name} phrases, {count}: got {entries[name][count]} of "
           f"{entries[name][OF.get(count, 'with')]}, expected at least {least - SLACK}. Make the "
           "phrases in book/finder_said.yml more particular to your trap. If it is still below, "
           "lower this number in FLOORS and say so in the commit."
           for name, floors in FLOORS.items() for count, least in floors.items()
           if entries[name][count] < least - SLACK]
    high = [f"{name} phrases, mistaken: got {entries[name]['mistaken']}, expected at most "
            f"{most + SLACK}. Look at `gate` in book/finder.yml, which tools.finder_gate fits, or "
            "write phrases of what the finder mistakes under `none` in book/finder_said.yml."
            for name, most in CEILINGS.items() if entries[name]["mistaken"] > most + SLACK]
    return low + high


def main() -> None:
    for name in PHRASES:
        RECORD.write(name, rests_on(name), measure(name))
    print(RECORD.path("").read_text("utf-8"))


if __name__ == "__main__":
    main()
