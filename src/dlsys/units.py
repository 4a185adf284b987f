"""What the course teaches, unit by unit, and where: `dlsys find "weight decay"`, and a book page.

units/NN.csv holds a stage's units: a permanent id, the unit in the field's words, the section that
teaches it, and whether that is open or has to be unfolded. A section is the heading of a part of
the lesson, "lesson 08: Positions" for one of another lesson, "trap 04.3", "More of trap 04.3", or
"other: guide_norm" for another page of the book.
"""

import csv
import functools
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dlsys import find

FOLDER = Path(__file__).with_name("units")
MOST = 3  # places that are printed
ENOUGH = 0.6  # of what the asked words say, below which a unit is no answer
LONGEST = 3  # tokens of a name; a longer question tells what somebody sees
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
        """The trap that teaches it; "" where a section or another page does."""
        found = TRAP.fullmatch(self.section)
        return found[1] if found else ""

    @property
    def page(self) -> str:
        """The page of the book that teaches it, without its ending; "" where the lesson does."""
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
        return f"stage {number}, *{heading.removeprefix('Further: ')}*"


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
def tokens_of(unit: Unit) -> frozenset[str]:
    """The tokens that a unit is found by."""
    return frozenset(find.plain(f"{unit.text} . {'' if unit.trap else unit.section}"))


@functools.cache
def weights() -> dict[str, float]:
    """How much each token says: the more, the fewer units have it."""
    counted = Counter(token for unit in units() for token in tokens_of(unit))
    return {token: find.says_much(len(units()), share) for token, share in counted.items()}


def rank(query: str) -> list[Unit]:
    """The units that hold most of what the asked words say, best first.

    [] where none does, and for a question that is too long for a name.
    """
    asked = {*find.plain(query)}
    rarest = find.says_much(len(units()), 0)
    whole = sum(weights().get(token, rarest) for token in asked)
    if not whole or len(asked) > LONGEST:
        return []
    scores = {unit: sum(weights()[token] for token in asked & tokens_of(unit)) / whole
              for unit in units()}
    fit = [unit for unit in units() if scores[unit] >= ENOUGH]
    return sorted(fit, key=lambda unit: (-scores[unit], not unit.open, len(tokens_of(unit))))


def lines(found: Iterable[Unit]) -> list[str]:
    """As `dlsys find` prints them: the unit, and where it is taught."""
    shown = [*found][:MOST]
    return ["Taught in:", *(f"- {unit.place}: {unit.text}" for unit in shown)] if shown else []
