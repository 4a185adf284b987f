"""What the course teaches, unit by unit, and where: `dlsys find "weight decay"`, and book pages.

units/NN.csv holds a stage's units: a permanent id, the unit in the field's words, the section that
teaches it, and whether that is open or has to be unfolded. A section is the heading of a part of
the lesson, "lesson 08: Positions" for one of another lesson, "trap 04.3", "More of trap 04.3", or
"other: guide_norm" for another page of the book. units/same.csv holds words that mean the same.

The symptom finder's page scores by the same rules, in book/assets/finder/finder.js, function
by function.
"""

import csv
import functools
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dlsys import find
from dlsys_helpers import catalog

FOLDER = Path(__file__).with_name("units")
MOST = 3  # places that are printed
NAMED, PERHAPS = "Taught in:", "Perhaps taught in:"
FOLDED = ", folded"  # after a place whose text has to be unfolded
# What it takes to show a unit. beside: how much a word counts that only the name of its trap has.
# The others are the least share of the question's weight that a unit needs: named, if the question
# has so few words (longest) that it is a name and not a symptom; else, as "perhaps", alone, or pair
# if the unit has two of the words and no cause is likely. rest: the least share of the best one's
# score.
LIMITS = {"beside": 0.5, "named": 0.6, "longest": 3, "alone": 0.4, "pair": 0.25, "rest": 0.6}
TRAP = re.compile(r"(?:More of )?trap (\d\d\.\d+)")
LESSON = re.compile(r"lesson (\d\d): (.+)")
OTHER = "other: "


class Unit(NamedTuple):
    """One thing that a reader can learn."""

    id: str  # "S04.12"
    stage: int
    text: str
    section: str
    open: bool  # read without unfolding anything

    @property
    def trap(self) -> str:
        """The trap that teaches it; "" if a section or another page does."""
        found = TRAP.fullmatch(self.section)
        return found[1] if found else ""

    @property
    def page(self) -> str:
        """The page of the book that teaches it, without its ending; "" if the lesson does."""
        return self.section.removeprefix(OTHER) if self.section.startswith(OTHER) else ""

    @property
    def heading(self) -> tuple[int, str]:
        """The stage whose lesson teaches it, and the heading there."""
        found = LESSON.fullmatch(self.section)
        return (int(found[1]), found[2]) if found else (self.stage, self.section)

    @property
    def place(self) -> str:
        """Where it is taught, in words."""
        if self.page:
            return f"the book's page {self.page}"
        if self.trap:
            return f"stage {int(self.trap[:2])}, {self.section}"
        number, heading = self.heading
        return f"stage {number}, *{heading.removeprefix('Further: ')}*{FOLDED * (not self.open)}"


def read(path: Path) -> list[Unit]:
    """The units of one file. Raises ValueError for a row that names no section or no state."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows, 2):
        if None in row or not row["section"] or row["open"] not in ("yes", "folded"):
            raise ValueError(f"{path.name}:{number}: got {row}, expected id,unit,section,open with "
                             "a section, and yes or folded.")
    return [Unit(row["id"], int(path.stem), row["unit"], row["section"], row["open"] == "yes")
            for row in rows]


@functools.cache
def units() -> tuple[Unit, ...]:
    """All units, by stage, each file in its own order."""
    return tuple(unit for path in sorted(FOLDER.glob("[0-9][0-9].csv")) for unit in read(path))


@functools.cache
def same() -> list[tuple[str, str]]:
    """A pattern of words that mean the same, and the word that they all become."""
    with (FOLDER / "same.csv").open(encoding="utf-8", newline="") as file:
        return [(rf"\b(?:{row['said'].replace(' ', '[ -]')})\b", row["word"])
                for row in csv.DictReader(file)]


def plain(text: str) -> list[str]:
    """The tokens of a text, as the finder reads it, with one word for all its synonyms."""
    text = text.lower()
    for pattern, word in same():
        text = re.sub(pattern, word, text, flags=re.ASCII)
    return find.plain(text)


def around(unit: Unit) -> str:
    """The name of its trap, or else of its section."""
    return catalog.trap(unit.trap).name if unit.trap else unit.section


@functools.cache
def tokens_of(unit: Unit) -> frozenset[str]:
    """The tokens that a unit is found by."""
    return frozenset(plain(f"{unit.text} . {'' if unit.trap else around(unit)}"))


@functools.cache
def tokens_beside(unit: Unit) -> frozenset[str]:
    """The tokens that only the name of its trap has."""
    return frozenset(plain(around(unit))) - tokens_of(unit)


@functools.cache
def weights() -> dict[str, float]:
    """How much each token says, which is more if fewer units have it."""
    counted = Counter(token for unit in units() for token in tokens_of(unit))
    return {token: find.says_much(len(units()), share) for token, share in counted.items()}


def shares(asked: Iterable[str], beside: float = 0) -> dict[Unit, float]:
    """The share of the asked tokens' weight that each unit has, from 0 to 1; best unit first."""
    rarest = find.says_much(len(units()), 0)
    said = {token: weights().get(token, rarest) for token in asked}
    whole = sum(said.values()) or 1
    found = {unit: round(sum(much * ((token in tokens_of(unit))
                                     + beside * (token in tokens_beside(unit)))
                             for token, much in said.items()) / whole, find.DIGITS)
             for unit in units()}
    best = sorted(units(), key=lambda unit: (-found[unit], not unit.open, len(tokens_of(unit))))
    return {unit: found[unit] for unit in best}


def places(found: Iterable[Unit]) -> list[Unit]:
    """The first units, one for each place."""
    firsts: dict[str, Unit] = {}
    for unit in found:
        firsts.setdefault(unit.place, unit)
    return [*firsts.values()][:MOST]


def rank(query: str) -> list[Unit]:
    """The units that the asked words name, best first; [] for a question too long for a name."""
    asked = dict.fromkeys(plain(query))
    if len(asked) > LIMITS["longest"]:
        return []
    return places(unit for unit, much in shares(asked).items() if much >= LIMITS["named"])


def nearest(query: str, answer: find.Answer) -> list[Unit]:
    """The nearest units, which may be meant if the words name none.

    answer: the causes. If one is likely, a unit has to be nearer. The trap of a cause that fits is
    not named again, only what its More teaches.
    """
    asked = dict.fromkeys(find.excerpt(plain(query)))
    found = shares(asked, LIMITS["beside"])
    best = next(iter(found))
    held = sum(token in tokens_of(best) | tokens_beside(best) for token in asked)
    pair = held > 1 and answer.sure in ("", find.UNSURE)
    if rank(query) or found[best] < LIMITS["pair" if pair else "alone"]:
        return []
    return places(unit for unit, much in found.items() if much >= LIMITS["rest"] * found[best]
                  and not (answer.fits and unit.open and unit.trap in answer.causes))


def lines(found: Iterable[Unit], heading: str = NAMED) -> list[str]:
    """The lines that `dlsys find` prints: the unit, and where it is taught."""
    shown = [f"- {unit.place}: {unit.text}" for unit in found]
    return [heading, *shown] if shown else []
