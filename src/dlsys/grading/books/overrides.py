"""Points and comments by hand: overrides.csv in the folder of a run, applied to every output.

    learner,exercise,points,comment
    ada,01.3,2,right idea; the sign is a slip
    bob,,,please come and see me

The journal keeps what was judged, so removing a row undoes it completely. A comment may refer
to others in the comments.csv next to it: `@sign @seed`.

    name,comment
    sign,The gradient points uphill; look at the sign.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlsys import assignments
from dlsys.grading.books.people import ambiguity, is_called
from dlsys.grading.books.run_folder import COMMENTS, OVERRIDES
from dlsys.grading.text import clean, numbered_rows, rounded
from dlsys_helpers import catalog
from dlsys_helpers.errors import UserError

BY_HAND = "none: the points are by hand"  # the sandbox of a submission that no program graded
COLUMNS = ["learner", "exercise", "points", "comment"]
COMMENT_COLUMNS = ["name", "comment"]
_NAMED = re.compile(r"(?<!\S)@([\w-]{1,40})")


class BadOverride(UserError):
    """A row of overrides.csv cannot be applied. The message names it and says what to write."""


@dataclass(frozen=True)
class Override:
    """One row. exercise: "" for the whole submission. points: None for a comment alone."""

    row: int
    learner: str
    exercise: str
    points: float | None
    comment: str


def read(folder: Path, course: Path | None = None) -> list[Override]:
    """The rows of the folder's overrides.csv, none if there is no such file.

    course: a course.toml; a comments.csv next to it counts instead of the folder's. Raises
    BadOverride.
    """
    beside = course is not None and course.with_name(COMMENTS).exists()
    path = folder / OVERRIDES
    known = comments(course.parent if course and beside else folder)
    rows = [_override(path, number, row, known)
            for number, row in numbered_rows(path, COLUMNS, BadOverride)]
    return [row for row in rows if row.points is not None or row.comment]


def comments(folder: Path) -> dict[str, str]:
    """The comments in the folder's comments.csv, by name. Raises BadOverride."""
    path, found = folder / COMMENTS, {}
    for number, row in numbered_rows(path, COMMENT_COLUMNS, BadOverride):
        name = row[0].strip().removeprefix("@")
        if len(row) != 2 or not _NAMED.fullmatch(f"@{name}") or not row[1].strip():
            raise BadOverride(f"{path}, row {number}: got {clean(','.join(row), 60)!r}, expected a "
                              "name of letters, digits and hyphens, and a comment, in quotes if it "
                              "contains a comma.")
        if name in found:
            raise BadOverride(f"{path}, row {number}: got a second comment called {name}.")
        found[name] = clean(row[1], 500)
    return found


def _written_out(where: str, comment: str, known: dict[str, str]) -> str:
    """A comment with each `@name` replaced by its text. Raises BadOverride."""
    if odd := [name for name in _NAMED.findall(comment) if name not in known]:
        names = ", ".join(f"@{name}" for name in known) or f"none, as {COMMENTS} has none"
        raise BadOverride(f"{where}: got the comment @{odd[0]}, expected one of {names}")
    return _NAMED.sub(lambda match: known[match[1]], comment)


def _override(path: Path, number: int, row: list[str], known: dict[str, str]) -> Override:
    if len(row) != len(COLUMNS):
        raise BadOverride(f"{path}, row {number}: got {len(row)} cells, expected {len(COLUMNS)}. "
                          "Put a comment with a comma or a semicolon into quotes.")
    learner, exercise, points, comment = (cell.strip() for cell in row)
    try:  # a spreadsheet may write 2.5 as 2,5
        value = float(points.replace(",", ".")) if points else None
    except ValueError:
        raise BadOverride(f"{path}, row {number}: got points {clean(points)!r}, expected a number "
                          "or nothing.") from None
    if value is not None and re.fullmatch(r"\d\d?", comment):
        raise BadOverride(f"{path}, row {number}: got {points} points and the comment {comment}, "
                          f"which looks like {points},{comment}. Write {points}.{comment}, or a "
                          "comment in words.")
    if value is not None and not exercise:
        raise BadOverride(f"{path}, row {number}: got points without an exercise, expected one, "
                          "such as 01.3.")
    return Override(number, learner, _id(f"{path}, row {number}", exercise), value,
                    clean(_written_out(f"{path}, row {number}", comment, known), 1000))


def _id(where: str, exercise: str) -> str:
    """The exercise's id, even if a spreadsheet turned 01.3 into 1.3. Raises BadOverride."""
    id = catalog.as_id(exercise) if "." in exercise else exercise
    if id != exercise and any(trap.id == f"{id}0" for trap in catalog.traps()):
        raise BadOverride(f"{where}: got exercise {exercise}, which a spreadsheet makes of {id} "
                          f"and of {id}0. Write {id} or {id}0, as text.")
    return id


def apply(results: Iterable[dict[str, Any]], rows: list[Override]) -> list[dict[str, Any]]:
    """The results with these rows applied; the given results stay unchanged. Raises BadOverride."""
    changed = [{**r, "exercises": [dict(e) for e in r["exercises"]], "notes": list(r["notes"])}
               for r in results]
    for row in rows:
        if said := ambiguity(changed, row.learner):
            raise BadOverride(f"{OVERRIDES}, row {row.row}: {said}")
        mine = [r for r in changed if is_called(r, row.learner)]
        if not mine:
            raise BadOverride(f"{OVERRIDES}, row {row.row}: got learner {clean(row.learner)!r}, "
                              "expected a name, a number or a submission of this run.")
        if not [result for result in mine if _apply(result, row)] and not _grade_by_hand(mine, row):
            raise BadOverride(f"{OVERRIDES}, row {row.row}: got exercise {clean(row.exercise)!r}, "
                              "expected one that was graded for this learner, such as 01.3.")
    return changed


def _apply(result: dict[str, Any], row: Override) -> bool:
    """Apply a row to a result, in place; returns whether the row concerns it."""
    if not row.exercise:
        result["notes"].append(f"By hand: {row.comment}")
        return True
    entry = next((e for e in result["exercises"] if e["id"] == row.exercise), None)
    if entry is None and result["status"] == "graded" and row.exercise[:2] == (
            f"{result['stage']:02d}"):
        known = ", ".join(e["id"] for e in result["exercises"])
        raise BadOverride(f"{OVERRIDES}, row {row.row}: got exercise {clean(row.exercise)!r}, "
                          f"expected one of {known}")
    if entry is None:  # the learner's submission for another stage, or one that was refused
        return False
    before = entry["points"]
    if row.points is not None:
        if not 0 <= row.points <= entry["possible"]:
            raise BadOverride(f"{OVERRIDES}, row {row.row}: got {row.points:g} points, expected "
                              f"0 to {entry['possible']}")
        entry["points"] = rounded(row.points)
        result["points"] = rounded(sum(e["points"] for e in result["exercises"]))
    given = f", {entry['points']} instead of {before}" if entry["points"] != before else ""
    said = f" hand{given}{f': {row.comment}' if row.comment else '.'}"
    entry["by_hand"] = " ".join(filter(None, [entry.get("by_hand"), f"By{said}"]))
    result["remarks"] = [*result.get("remarks", []), f"{entry['id']} by{said}"]
    return True


def _grade_by_hand(mine: list[dict[str, Any]], row: Override) -> bool:
    """Give points to an ungraded submission, in place; returns whether there is one."""
    closed = [result for result in mine if result["status"] != "graded"]
    traps = [] if row.points is None else assignments.traps(assignments.number_of(row.exercise))
    if not closed or row.exercise not in [trap.id for trap in traps]:
        return False
    result = closed[0]
    entries = [{"id": trap.id, "title": trap.name, "function": trap.function, "status": "missing",
                "points": 0, "possible": trap.points, "message": "", "misconception": "",
                "trap": "", "case": "", "notebook_shows": "nothing", "differs": False}
               for trap in traps]
    why = f"it {result['reason']}" if result["status"] == "refused" else "the grader failed on it."
    result |= {"status": "graded", "stage": assignments.number_of(row.exercise),
               "exercises": entries, "possible": sum(trap.points for trap in traps),
               "notes": [*result["notes"], f"Not graded by the program: {why}"],
               "wall": BY_HAND, "ended_by": "", "seconds": 0, "cpu_seconds": 0, "peak_mib": 0,
               "judge_peak_mib": 0}
    return _apply(result, row)
