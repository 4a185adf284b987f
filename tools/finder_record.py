"""Record in tests/records/finder.json how well the symptom finder answers what people wrote.

You may look at tests/finder_phrases.yml while you improve rows and spellings; finder_fresh.yml only
measures. finder_unseen.yml, finder_later.yml (the hardest) and finder_newest.yml each came after a
fit of the finder, and were tried once before anything else changed. book_finder shows the figures
on the finder's page:

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
# The counts at the last change of the finder; a change should only raise them. But every new row
# changes the weights of all words and so moves unrelated answers: one trap moved 21 of 450, and a
# count by up to two. So a count may fall by SLACK before it is a finding.
SLACK = 3
FLOORS = {"seen": {"shown": 118, "found": 110, "honest": 33},
          "fresh": {"shown": 94, "found": 75, "honest": 45},
          "unseen": {"shown": 49, "found": 41, "honest": 25, "hedged": 30, "told": 5},
          "later": {"shown": 13, "found": 9, "honest": 14, "hedged": 24},
          "newest": {"honest": 22, "hedged": 26}}
OF = {"honest": "without", "hedged": "without", "told": "rows"}  # what a count is out of
# The most phrases that get a likely answer without the right cause, with the same slack.
CEILINGS = {"seen": 6, "fresh": 3, "unseen": 2, "later": 7, "newest": 2}
FLOORS_AT = "tools/finder_record.py"


def phrases(name: str) -> list[dict]:
    """The phrases of one set, unchanged."""
    return yaml.safe_load(PHRASES[name].read_text("utf-8"))


def measure(name: str) -> dict[str, int]:
    """Count over a set's phrases how often the finder is right.

    shown: a right trap is among the three causes shown. found, first: the same, and a right trap is
    the first, both without phrases for which the finder says that no cause fits. honest: phrases
    without a trap that get none, because no cause fits or the likeliest is no trap; nothing: those
    where no cause fits; hedged: these and those whose best cause is only possible. told: phrases
    whose cause is the sentence of a row without a trap, if it is among the three. mistaken: phrases
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
    """The dependencies of a set's counts: its phrases, the finder's rows, and the ranking code."""
    return {"phrases": fingerprints.fingerprint(PHRASES[name].read_text("utf-8")),
            "rows": fingerprints.fingerprint(find.STORED.read_text("utf-8")),
            "dlsys.find": fingerprints.module_fingerprint("dlsys.find")}


def stale() -> list[str]:
    """A line for each set whose counts are stale, with the command; [] if none are."""
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
