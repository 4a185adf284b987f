"""The words and calls of the field, each with a clause that explains it: `dlsys find momentum`.

glossary.csv has a row for each: the term, other spellings of it (with "|" between them), where
its text first explains it, where it is taught at length if that is elsewhere, and the clause.
A place is written as in units.py, with its stage: "lesson 01: Choosing an activation", "trap 04.3",
"other: guide_norm". "words 01" is the list at the top of lesson 1, which explains what no section
does. tools/words.py checks the lessons against it.
"""

import csv
import functools
import re
from pathlib import Path
from typing import NamedTuple

from dlsys import find
from dlsys.units import Unit

STORED = Path(__file__).with_name("glossary.csv")
FIELDS = ["term", "also", "where", "more", "clause"]
PLACE = re.compile(r"(lesson|words) (\d\d)(?:: .+)?|trap (\d\d)\.\d+|other: \w+")


class Term(NamedTuple):
    """A word or a call; a call is in backticks, as in Markdown."""

    name: str
    also: tuple[str, ...]
    where: str
    more: str
    clause: str

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name.strip("`"), *self.also)

    @property
    def is_call(self) -> bool:
        return self.name.startswith("`")

    @property
    def stage(self) -> int:
        """The stage whose lesson explains it; 0 if a page of the book does."""
        found = PLACE.fullmatch(self.where)
        return int(found[2] or found[3] or 0)

    @property
    def listed(self) -> bool:
        """Whether the list at the top of its lesson explains it, and no section."""
        return self.where.startswith("words")

    @property
    def home(self) -> Unit | None:
        """Where it is taught at length, as a unit; None if only the glossary explains it."""
        place = self.more or self.where
        return None if place.startswith("words") else Unit(self.name, self.stage, self.clause,
                                                           place, True)


def read(path: Path) -> tuple[Term, ...]:
    """The terms of a file. Raises ValueError for a row that lacks a place or a clause."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows, 2):
        places = [row.get("where") or "", *filter(None, [row.get("more")])]
        if [*row] != FIELDS or not row["clause"] or not all(map(PLACE.fullmatch, places)):
            raise ValueError(f"{path.name}:{number}: got {row}, expected {','.join(FIELDS)} with "
                             "a clause, and places such as 'lesson 01: Heading' or 'trap 04.3'.")
    return tuple(Term(row["term"], tuple(filter(None, row["also"].split("|"))), row["where"],
                      row["more"], row["clause"]) for row in rows)


@functools.cache
def terms() -> tuple[Term, ...]:
    """All terms, in alphabetical order."""
    return tuple(sorted(read(STORED), key=lambda term: term.spellings[0].strip("._").lower()))


def named(query: str) -> list[Term]:
    """The terms with this name, in any spelling that the finder treats as the same."""
    asked = find.plain(query)
    return [term for term in terms() if asked and asked in map(
        find.plain, [*term.spellings, term.name.partition(" (")[0]])]


def lines(query: str) -> list[str]:
    """The lines that `dlsys find` prints for a term: what it is, and where it is explained."""
    return [f"{term.name.strip('`')}: {term.clause}"
            + (f" ({term.home.place})" if term.home else "") for term in named(query)]
