"""The changes as data: cases/*.toml, read and applied.

A change is healthy, has a fault in what was changed, or lacks a line that should have come along
(a fault of omission). As in most pull requests, there may be an unrelated hunk: an aside, which is
correct. Every text that an edit replaces must be in its file exactly once, so cases that no longer
fit the repository fail loudly.
"""

import difflib
import hashlib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dlsys_diffs.repository import Edit, edited, files

FOLDER = Path(__file__).with_name("cases")
HEALTHY, CHANGED, OMITTED = "healthy", "changed", "omitted"
KINDS = (HEALTHY, CHANGED, OMITTED)
FORMS = ("a", "b")
AUTHORS = ("agent", "careful", "newcomer", "terse")
CONTEXT = 3  # unchanged lines around a change, as git shows them


class Aside(NamedTuple):
    """A correct hunk, unrelated to the change that it comes with."""

    text: str
    edits: tuple[Edit, ...]
    why: str


class Line(NamedTuple):
    """A line of a diff as it is shown. sign: " ", "+", "-" or "@" for a heading.

    at: its number in the file after the change; for a removed line, the number of the next line.
    """

    sign: str
    text: str
    file: str
    at: int


@dataclass(frozen=True)
class Case:
    """A change under review.

    edits, text: including its aside's; aside: the aside's edits alone. repairs: lists of edits. For
    a faulty change, the first repair and the first consequence are right. also: right repairs that
    are not offered but count when typed. why: what is wrong, or why nothing is.
    """

    id: str
    kind: str
    form: str
    author: str
    title: str
    text: str
    source: str
    edits: tuple[Edit, ...]
    run: str
    number: str
    marks: tuple[tuple[str, str], ...]
    consequences: tuple[str, ...]
    repairs: tuple[tuple[Edit, ...], ...]
    why: str
    aside: tuple[Edit, ...] = ()
    also: tuple[tuple[Edit, ...], ...] = ()

    @property
    def faulty(self) -> bool:
        return self.kind != HEALTHY

    @property
    def after(self) -> dict[str, str]:
        """The repository's files with this change."""
        return edited(files(), list(self.edits))

    def repaired(self, place: int = 0) -> dict[str, str]:
        """The files with this change and one of its repairs."""
        return edited(self.after, list(self.repairs[place]))

    @property
    def reverted(self) -> dict[str, str]:
        """The files without this change; its aside stays."""
        return edited(files(), list(self.aside))

    @property
    def other_repairs(self) -> list[dict[str, str]]:
        """The files after each right repair that is not offered."""
        return [edited(self.after, list(one)) for one in self.also]

    @property
    def diff(self) -> list[Line]:
        return [line for file in dict.fromkeys(edit.file for edit in self.edits)
                for line in diff_of(file, files()[file], self.after[file])]

    @property
    def digest(self) -> str:
        """A hash of all that a reviewer saw; an answer to another version does not count."""
        seen = "\n".join([self.title, self.text, *(line.sign + line.text for line in self.diff),
                          *self.consequences, repr(self.repairs)])
        return hashlib.sha256(seen.encode()).hexdigest()[:12]

    @property
    def places(self) -> list[tuple[str, int]]:
        """Where a mark is right: file and number of a line after the change."""
        return [(file, line_of(self.after[file], text)) for file, text in self.marks]


def diff_of(file: str, before: str, after: str, context: int = CONTEXT) -> list[Line]:
    """The lines of a unified diff of one file."""
    old, new = before.splitlines(), after.splitlines()
    lines = []
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(
            context):
        lines.append(Line("@", file, file, group[0][3] + 1))
        for tag, low, high, start, end in group:
            if tag == "equal":
                lines += [Line(" ", new[n], file, n + 1) for n in range(start, end)]
            else:
                lines += [Line("-", old[n], file, start + 1) for n in range(low, high)]
                lines += [Line("+", new[n], file, n + 1) for n in range(start, end)]
    return lines


def line_of(text: str, part: str) -> int:
    """The number of the line on which a part of a text begins. Raises ValueError."""
    if text.count(part) != 1:
        raise ValueError(f"mark: {part!r} is there {text.count(part)} times, expected once.")
    start = text.index(part)
    blank = len(part) - len(part.lstrip("\n"))
    return text.count("\n", 0, start + blank) + 1


@cache
def cases() -> dict[str, Case]:
    """All cases by id, in an order that does not reveal their kind."""
    found = [case for kind in KINDS for case in of_kind(kind)]
    return {case.id: case for case in sorted(found, key=_shuffled)}


def _shuffled(case: Case) -> str:
    return hashlib.sha256(case.id.encode()).hexdigest()


def of_kind(kind: str) -> list[Case]:
    """The cases of a kind; every other one is in form b."""
    rows = tomllib.loads((FOLDER / f"{kind}.toml").read_text("utf-8")).get("case", [])
    return [_case(kind, FORMS[place % 2], row) for place, row in enumerate(rows)]


def _case(kind: str, form: str, row: dict) -> Case:
    aside = asides()[row["aside"]] if "aside" in row else Aside("", (), "")
    return Case(row["id"], kind, form, row["author"], row["title"],
                f"{row['text']} {aside.text}".strip(), row["source"],
                (*_edits(row["edits"]), *aside.edits), row["run"], row["number"],
                _pairs(row.get("mark", [])), tuple(row["consequences"]),
                tuple(_edits(one) for one in row["repairs"]), _reason(row["why"], aside.why),
                aside.edits, tuple(_edits(one) for one in row.get("also", [])))


def _reason(why: str, aside: str) -> str:
    """Why a change is right or wrong, and why its aside is right."""
    return f"{why} The other hunk is right. {aside}" if aside else why


@cache
def asides() -> dict[str, Aside]:
    """The unrelated hunks, by id."""
    rows = tomllib.loads((FOLDER / "asides.toml").read_text("utf-8"))["aside"]
    return {row["id"]: Aside(row["text"], _edits(row["edits"]), row["why"]) for row in rows}


def _edits(flat: list[str]) -> tuple[Edit, ...]:
    return tuple(Edit(*flat[n:n + 3]) for n in range(0, len(flat), 3))


def _pairs(flat: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple((flat[n], flat[n + 1]) for n in range(0, len(flat), 2))
