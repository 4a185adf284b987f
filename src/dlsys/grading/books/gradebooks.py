"""Gradebooks of Canvas and Moodle: columns to import, and downloads that are filled in.

Only the filled cells of a download change; its order, its separator and its byte order mark stay.
Moodle's sheets may be English or German.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlsys.grading import text
from dlsys.grading.books import strays
from dlsys.grading.books.people import Result, owner
from dlsys.grading.books.run_folder import RunError
from dlsys.grading.options import stage_and_name

CANVAS_FIXED = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
CANVAS_OWN = {*CANVAS_FIXED, "Integration ID", "Root Account"}  # not assignments
_READ_ONLY, _FIRST_PEOPLE = "(read only)", 3  # Canvas says so above the people's rows
MOODLE_FIXED = ["Identifier", "Full name", "Grade", "Maximum Grade", "Feedback comments"]
# Moodle's headings in English and German, by what the column has.
MOODLE_NAMES = {
    "identifier": ("Identifier", "ID"), "name": ("Full name", "Vollständiger Name"),
    "grade": ("Grade", "Bewertung"), "most": ("Maximum Grade", "Bestwertung"),
    "comment": ("Feedback comments", "Feedback als Kommentar"),
    "time": ("Last modified (submission)", "Zuletzt geändert (Abgabe)"),
}
_CANVAS_NUMBER = re.compile(r" \(\d+\)$")
_LAST_NUMBER = re.compile(r"(\d+)\s*$")
_DECIMAL_COMMA = re.compile(r"\d+,\d+")


class NoStage(RunError):
    """Hand-ins are of several stages, and nothing says which of them the only column is for.

    main: the likeliest stage. The caller completes the message with the option that names it.
    """

    def __init__(self, message: str, main: int) -> None:
        super().__init__(message)
        self.main = main


@dataclass(frozen=True)
class Sheet:
    """A CSV file, with everything that must stay the same when it is written back."""

    path: Path
    data: bytes
    rows: list[list[str]]
    separator: str

    @property
    def head(self) -> list[str]:
        """The names of the columns."""
        return [cell.strip() for cell in self.rows[0]]

    def copy(self) -> Sheet:
        """A copy of the sheet, whose rows can be filled in."""
        return replace(self, rows=[list(row) for row in self.rows])

    def to_csv(self) -> str:
        """The sheet as CSV text, with its own separator and byte order mark."""
        out = io.StringIO()
        csv.writer(out, delimiter=self.separator).writerows(self.rows)
        return ("\ufeff" if self.data.startswith(b"\xef\xbb\xbf") else "") + out.getvalue()

    def number(self, points: float, *columns: int) -> str:
        """Points as text, with a decimal comma where these columns have one."""
        comma = any(_DECIMAL_COMMA.fullmatch(row[k].strip()) for row in self.rows[1:]
                    for k in columns if len(row) > k)
        return f"{points:g}".replace(".", "," if comma else ".")


def read(path: Path) -> Sheet:
    """A download of an LMS, separated by commas, semicolons or tabs. Raises RunError."""
    try:
        data = path.read_bytes()
        content = data.decode("utf-8-sig")
        separator = text.separator(content)
        rows = list(csv.reader(io.StringIO(content, newline=""), delimiter=separator))
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}. Give the file that the LMS exports.") from None
    except (ValueError, csv.Error) as error:
        raise RunError(f"{path}: cannot be read as CSV ({type(error).__name__}). Download it "
                       "again.") from None
    if not rows:
        raise RunError(f"{path}: is empty, expected a gradebook. Download it again.")
    return Sheet(path, data, rows, separator)


# ---- Canvas

def canvas(results: Iterable[Result], column: str) -> list[list]:
    """A gradebook to import into Canvas if there is no download to fill in."""
    return [[*CANVAS_FIXED, column],
            *([r["learner"]["name"], r["learner"]["id"], "", "", "", r["points"]]
              for r in results)]


@dataclass(frozen=True)
class Filled:
    """A gradebook that was filled in, as CSV.

    absent: results of people without a row. stray: results of a stage that has no column here.
    twins: results of people who share a number; none of these is filled in.
    """

    text: str
    absent: list[Result]
    stray: list[Result]
    twins: list[Result]


def fill_canvas(results: Sequence[Result], gradebook: Sheet, columns: Sequence[str],
                asked: Collection[int] = ()) -> Filled:
    """The instructor's gradebook with columns filled in.

    columns: the names of assignments or how they begin: "Stage 1" for the only stage,
    "Stage {stage}" for all, "2=Losses" for stage 2. Every other cell stays as it is. asked: the
    stages that were asked for. Raises RunError.
    """
    sheet = gradebook.copy()
    identity = _column(sheet, ("ID",))
    targets, stray = _targets(sheet, results, columns, asked)
    absent: list[Result] = []
    twins: list[Result] = []
    for target, chosen in targets:
        by_id, double = _by_id(chosen, "canvas")
        absent += _fill(sheet, identity, [r for r in chosen if r not in double], by_id,
                        {target: _points_in(sheet, target)})
        twins += double
    return Filled(sheet.to_csv(), absent, stray, twins)


def stages_of(columns: Sequence[str]) -> tuple[frozenset[int] | None, bool]:
    """The stages that columns are for, None for a single column; and whether a rule names all."""
    found = [stage_and_name(column) for column in columns]
    if any("{stage}" in name for _, name in found):
        return None, True
    stages = [stage for stage, _ in found]
    return (None if None in stages else frozenset(filter(None, stages))), False


def _targets(sheet: Sheet, results: Sequence[Result],
             columns: Sequence[str], asked: Collection[int]
             ) -> tuple[list[tuple[int, list[Result]]], list[Result]]:
    """The columns, each with the results that belong in it, and the results that belong in none.

    Raises RunError.
    """
    stages = sorted({r["stage"] for r in results})
    found: dict[int | None, int] = {}
    for column in columns:
        stage, name = stage_and_name(column)
        if "{stage}" in name:
            found |= {n: _assignment(sheet, name.replace("{stage}", str(n))) for n in stages}
        else:
            found[stage] = _assignment(sheet, name)
    if None in found:
        kept, stray = one_stage(results, asked)
        return [(found[None], kept)], stray
    return ([(column, [r for r in results if r["stage"] == n]) for n, column in found.items()],
            [r for r in results if r["stage"] not in found])


def _assignment(sheet: Sheet, name: str) -> int:
    """The column of this assignment. Raises RunError if Canvas fills it in itself."""
    k = _column(sheet, (name,))
    below = [row[k] for row in sheet.rows[1:_FIRST_PEOPLE] if len(row) > k]
    if sheet.head[k] in CANVAS_OWN or any(_READ_ONLY in cell for cell in below):
        shown = text.clean(sheet.head[k], 60)
        raise RunError(f"{sheet.path.name}: got the column {shown!r}, which Canvas fills in "
                       "itself, expected the column of an assignment.")
    return k


def canvas_names(sheet: Sheet) -> dict[tuple[str, str], str]:
    """People's names by ("canvas", id), "Lovelace, Ada" as "Ada Lovelace". Raises RunError."""
    identity, name = _column(sheet, ("ID",)), _column(sheet, ("Student",))
    return {("canvas", id): " ".join(reversed(text.clean(shown, 80).split(", ", 1)))
            for id, shown in _cells(sheet, identity, name) if id.isdigit() and shown}


# ---- Moodle

def moodle(results: Iterable[Result]) -> list[list]:
    """A grading worksheet for Moodle if there is no download to fill in."""
    return [MOODLE_FIXED,
            *([f"Participant {r['learner']['id']}" if r["learner"]["id"] else "",
               r["learner"]["name"], r["points"], r["possible"], summary(r)] for r in results)]


def fill_moodle(results: Sequence[Result], worksheet: Sheet,
                refused: Sequence[Result] = (), asked: Collection[int] = ()) -> Filled:
    """The instructor's grading worksheet with grades and comments.

    refused: what could not be graded. Like a hand-in for a different stage, it gets a comment that
    says why and what to hand in. asked: the stages that were asked for. Raises RunError.
    """
    sheet = worksheet.copy()
    identity, grade, comment = (_column(sheet, MOODLE_NAMES[name])
                                for name in ("identifier", "grade", "comment"))
    most = _columns(sheet, MOODLE_NAMES["most"])
    kept, stray = one_stage(results, asked)
    by_id, twins = _by_id(kept, "moodle")
    absent = _fill(sheet, identity, [r for r in kept if r not in twins], by_id,
                   {grade: _points_in(sheet, grade, *most),
                    comment: lambda r: text.quoted(summary(r))})
    settled = {r["learner"]["id"] for r in kept}
    others = [r for r in (*refused, *stray) if r["learner"]["id"] not in settled]
    _fill(sheet, identity, [], _by_id(others, "moodle")[0],
          {comment: lambda r: text.quoted(summary(r))})
    return Filled(sheet.to_csv(), absent, stray, twins)


def moodle_names(sheet: Sheet) -> dict[str, str]:
    """People's names by number; none if the sheet has no such column. Raises RunError."""
    return _by_number(sheet, "name")


def moodle_times(sheet: Sheet) -> dict[str, str]:
    """The cells with the hand-in time, by number, as in `moodle_names`. Raises RunError."""
    return _by_number(sheet, "time")


def _by_number(sheet: Sheet, what: str) -> dict[str, str]:
    identity = _column(sheet, MOODLE_NAMES["identifier"])
    columns = _columns(sheet, MOODLE_NAMES[what])
    return {id: text.clean(cell, 80) for id, cell in _cells(sheet, identity, columns[0])
            if id and cell} if columns else {}


def summary(result: Result) -> str:
    """Points and message of each exercise and the notes, in one line, as HTML for Moodle."""
    stray = result.get("stray", {})
    if result["status"] != "graded":
        why = f"it {result['reason']}" if result["status"] == "refused" else "ask your instructor."
        parts = f"Not graded: {why}"
    elif stray.get("kind") == "stage":
        parts = f"Not counted: it {stray['reason']}"
    else:
        parts = "; ".join(f"{e['id']}: {e['points']}/{e['possible']}{_message_of(e)}"
                          for e in result["exercises"]) + "."
    said = " ".join(filter(None, [parts, stray.get("you", ""), *result["notes"]]))
    return html.escape(said.replace("`", ""), quote=False)


def _message_of(entry: dict[str, Any]) -> str:
    said = [entry["message"] if entry["status"] != "pass" else "", entry.get("by_hand", "")]
    return f" ({' '.join(filter(None, said))})" if any(said) else ""


# ---- both

def one_stage(results: Iterable[Result],
              asked: Collection[int] = ()) -> tuple[list[Result], list[Result]]:
    """The results of the stage asked for, or of the one with more than half; and the others.

    If one learner hands in a different stage, the class still gets its points. Raises NoStage
    if no stage has more than half, because then the column could be for any of them.
    """
    known = list(results)
    found = Counter(r["stage"] for r in known)
    main = strays.column_stage(known, asked)
    if known and main is None:
        counts = "; ".join(
            f"stage {stage}: {found[stage]} ("
            + text.first_few([r["learner"]["name"] for r in known if r["stage"] == stage]) + ")"
            for stage in sorted(found))
        raise NoStage(f"not filled in, because one column takes one stage and no stage has more "
                      f"than half of the hand-ins: {counts}. Everything else is written. Say which "
                      "stage it is; nothing is graded again: --resume", found.most_common(1)[0][0])
    return ([r for r in known if r["stage"] == main], [r for r in known if r["stage"] != main])


def _by_id(results: Iterable[Result], source: str) -> tuple[dict[str, Result], list[Result]]:
    """The results by the id that this LMS gave, and the results whose id several people share."""
    by_id: dict[str, list[Result]] = {}
    for result in results:
        if result["learner"]["source"] == source:
            by_id.setdefault(result["learner"]["id"], []).append(result)
    return ({id: mine[0] for id, mine in by_id.items() if len(mine) == 1},
            [one for mine in by_id.values() if len(mine) > 1 for one in mine])


def ids(sheet: Sheet, lms: str) -> frozenset[str]:
    """The numbers of the people in a gradebook. Raises RunError."""
    identity = _column(sheet, ("ID",) if lms == "canvas" else MOODLE_NAMES["identifier"])
    return frozenset(id for id, _ in _cells(sheet, identity, identity) if id)


def _columns(sheet: Sheet, names: Sequence[str]) -> list[int]:
    """The columns with one of these names; else those with Canvas's number after the name; else
    those that begin with it.
    """
    for fits in (lambda cell: cell in names,
                 lambda cell: _CANVAS_NUMBER.sub("", cell) in names,
                 lambda cell: any(re.match(rf"{re.escape(name)}(?!\w)", cell) for name in names)):
        if found := [k for k, cell in enumerate(sheet.head) if fits(cell)]:
            return found
    return []


def _column(sheet: Sheet, names: Sequence[str]) -> int:
    """The one column of this name. Raises RunError."""
    found = _columns(sheet, names)
    if len(found) != 1:
        shown = ", ".join(text.clean(cell, 30) for cell in sheet.head)[:150]
        asked = " or ".join(map(repr, names))
        raise RunError(f"{sheet.path.name}: got {len(found)} columns that begin with {asked}, "
                       f"expected one of: {shown}")
    return found[0]


def _cells(sheet: Sheet, identity: int, column: int) -> list[tuple[str, str]]:
    """Number and cell of each row; Moodle's "Participant 9" and "Teilnehmer/in9" are number 9."""
    return [(_number(row[identity]), row[column].strip()) for row in sheet.rows[1:]
            if len(row) > max(identity, column)]


def _number(cell: str) -> str:
    match = _LAST_NUMBER.search(cell)
    return match[1] if match else ""


def _points_in(sheet: Sheet, *columns: int) -> Callable[[Result], str]:
    """A function that writes a result's points in the style of these columns."""
    return lambda result: sheet.number(result["points"], *columns)


def _fill(sheet: Sheet, identity: int, results: list[Result], by_id: dict[str, Result],
          fill: dict[int, Callable[[Result], str]]) -> list[Result]:
    """Fill in the rows of these people, in place; returns the results without a row."""
    met = set()
    for row in sheet.rows[1:]:
        id = _number(row[identity]) if len(row) > max(identity, *fill) else ""
        if id in by_id:
            met.add(owner(by_id[id]))
            for column, value in fill.items():
                row[column] = value(by_id[id])
    return [r for r in results if owner(r) not in met]
