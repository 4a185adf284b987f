"""How well the symptom finder answers what people wrote, into tests/records/finder.json.

tests/finder_phrases.yml is looked at while rows and spellings are improved, finder_fresh.yml only
measures; book_finder shows the figures on the finder's page:

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
           "fresh": ROOT / "tests" / "finder_fresh.yml"}
# The least counts: a change of the finder may raise them only. Every new trap competes with all
# others for the three causes that are shown, so a new trap may lower them by what it costs, in a
# commit that says so.
FLOORS = {"seen": {"shown": 120, "found": 114, "honest": 35},
          "fresh": {"shown": 96, "found": 85, "honest": 43}}
FLOORS_AT = "tools/finder_record.py"


def phrases(name: str) -> list[dict]:
    """The phrases of one set, unchanged."""
    return yaml.safe_load(PHRASES[name].read_text("utf-8"))


def measure(name: str) -> dict[str, int]:
    """Counts over a set's phrases.

    shown: a right trap among the three causes that are shown. found, first: the same and as the
    very first, without those over which stands that nothing fits. honest: phrases without a trap
    that get none, as nothing fits or as the likeliest cause is none; nothing: those where nothing
    fits.
    """
    known = find.index(find.rows())
    answers = [(find.rank(known, phrase["said"]), phrase.get("traps"))
               for phrase in phrases(name)]
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
            "nothing": sum(not answer.fits for answer in none)}


def rests_on(name: str) -> dict[str, str]:
    """What the counts of a set rest on: its phrases, the finder's rows, and how it ranks them."""
    return {"phrases": fingerprints.fingerprint(PHRASES[name].read_text("utf-8")),
            "rows": fingerprints.fingerprint(find.STORED.read_text("utf-8")),
            "dlsys.find": fingerprints.module_fingerprint("dlsys.find")}


def stale() -> list[str]:
    """A line for each set whose counts no longer hold, with the command; [] where all do."""
    return [why for name in PHRASES if (why := RECORD.stale(name, rests_on(name)))]


def fallen() -> list[str]:
    """A line for each count below its floor, with what to do; [] where none is."""
    entries = RECORD.entries()
    return [f"{name} phrases, {count}: got {entries[name][count]} of {entries[name][of]}, expected "
            f"at least {least}. Make the phrases in book/finder_said.yml more particular to your "
            "trap. If it is still below, lower this number in FLOORS and say so in the commit."
            for name, floors in FLOORS.items() for count, least in floors.items()
            if entries[name][count] < least
            for of in ["without" if count == "honest" else "with"]]


def main() -> None:
    for name in PHRASES:
        RECORD.write(name, rests_on(name), measure(name))
    print(RECORD.path("").read_text("utf-8"))


if __name__ == "__main__":
    main()
