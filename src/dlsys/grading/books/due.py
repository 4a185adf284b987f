"""Due dates and the deduction for late submissions: course.toml, one for each course.

    late = "10%/day"        # of the points asked for, per day or part of a day
    late_max = "50%"        # the largest deduction
    grace = "15min"         # no deduction within this time after the due date

    [due]
    1 = 2027-01-15T23:59:00+01:00
    2 = 2027-01-22T23:59:00+01:00

    [asked]
    2 = ["02.1", "02.4"]    # only these count; a stage without a line counts whole

An extensions.csv in the same folder may give a learner another due date, or say when a submission
was handed in if nothing else records it:

    learner,stage,due,handed_in
    ada,1,2027-01-18T23:59:00+01:00,
    bob,1,,2027-01-17T10:00:00+01:00
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from dlsys import assignments
from dlsys.grading.books.people import ambiguity, is_called
from dlsys.grading.books.run_folder import EXTENSIONS
from dlsys.grading.text import clean, first_few, numbered_rows, rounded
from dlsys_helpers.errors import UserError

COLUMNS = ["learner", "stage", "due", "handed_in"]
UNITS = {"min": timedelta(minutes=1), "h": timedelta(hours=1), "day": timedelta(days=1)}
EXAMPLE = "2027-01-15T23:59:00+01:00"
_LATE = re.compile(r"(\d{1,3}(?:\.\d+)?)%/(min|h|day)")
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)%")
_SPAN = re.compile(r"(\d{1,5})(min|h|day)")
# Months as Moodle writes them in its English and its German sheet.
_MONTHS = {name: number for names in (
    "january february march april may june july august september october november december",
    "januar februar märz april mai juni juli august september oktober november dezember")
    for number, name in enumerate(names.split(), 1)}
_MOODLE = re.compile(r"(?:\w+, )?(\d{1,2})\.? (\w+) (\d{4}), (\d{1,2}):(\d\d)(?: ?([AP])M)?", re.I)


class BadCourse(UserError):
    """course.toml or extensions.csv cannot be used. The message says where, and what to write."""


@dataclass(frozen=True)
class Extension:
    """A row of extensions.csv: a due date or the time of handing in, or both."""

    row: int
    learner: str
    stage: int
    due: datetime | None
    handed_in: datetime | None


@dataclass(frozen=True)
class Course:
    """Due dates by stage, and what a late submission costs. late: percent and unit of time.

    partial_trap: percent of an exercise's points for its trap's own promise, None for the default.
    asked: the exercises that count, by stage; if a stage is not in it, all its exercises count.
    """

    due: dict[int, datetime] = field(default_factory=dict)
    late: tuple[float, str] = (0.0, "day")
    late_max: float = 100.0
    grace: timedelta = timedelta()
    extensions: tuple[Extension, ...] = ()
    partial_trap: float | None = None
    asked: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def deduction(self, late: timedelta, possible: float) -> float:
        """The points that a submission loses when it is this late."""
        if late <= self.grace or late <= timedelta():
            return 0.0
        percent, unit = self.late
        begun = -(-late // UNITS[unit])
        return round(min(percent * begun, self.late_max) / 100 * possible, 2)

    def rule(self) -> str:
        """The rule in words, for a page."""
        percent, unit = self.late
        if not percent:
            return "nothing is deducted"
        grace = f"; nothing within {_words(self.grace)}" if self.grace else ""
        return (f"{percent:g} % of the points asked for, for each {_NAMES[unit]} or part of one, "
                f"at most {self.late_max:g} %{grace}")


_NAMES = {"min": "minute", "h": "hour", "day": "day"}


def _words(span: timedelta) -> str:
    minutes = int(span.total_seconds() // 60)
    days, hours, rest = minutes // 1440, minutes // 60 % 24, minutes % 60
    parts = [f"{n} {unit}" for n, unit in ((days, "d"), (hours, "h"), (rest, "min")) if n]
    return " ".join(parts) or "less than a minute"


# ---- reading

def read(path: Path) -> Course:
    """The course in a course.toml and in the extensions.csv next to it. Raises BadCourse."""
    try:
        facts = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise BadCourse(f"{path}: {error.strerror}. Give a course.toml.") from None
    except ValueError as error:
        raise BadCourse(f"{path}: is not valid TOML: {clean(error, 120)}. A date is written "
                        f"1 = {EXAMPLE}, without quotes.") from None
    known = ("due", "late", "late_max", "grace", "partial_trap", "asked")
    if odd := [name for name in facts if name not in known]:
        raise BadCourse(f"{path}: got {clean(odd[0], 40)!r}, expected {', '.join(known)}")
    dates = facts.get("due", {})
    if not isinstance(dates, dict):
        raise BadCourse(f"{path}: got due = {clean(dates, 40)}, expected a table: [due], then a "
                        f"line for each stage, such as 1 = {EXAMPLE}")
    percent, unit = _matched(path, facts, "late", _LATE, ("0", "day"), "10%/day, 1%/h or 1%/min")
    count, span = _matched(path, facts, "grace", _SPAN, ("0", "min"), "15min, 2h or 1day")
    (most,) = _matched(path, facts, "late_max", _PERCENT, ("100",), "50%")
    return Course(_dates(path, dates), (float(percent), unit), float(most),
                  int(count) * UNITS[span], _extensions(path.with_name(EXTENSIONS)),
                  _partial_trap(path, facts), _asked(path, facts.get("asked", {})))


def _asked(path: Path, table: Any) -> dict[int, tuple[str, ...]]:
    """The exercises that were asked for, by stage. Raises BadCourse."""
    if not isinstance(table, dict):
        raise BadCourse(f"{path}: got asked = {clean(table, 40)}, expected a table: [asked], then "
                        'a line for each stage, such as 8 = ["08.1", "08.3"]')
    found: dict[int, tuple[str, ...]] = {}
    for key, ids in table.items():
        stage = _stage(path, key)
        known = [trap.id for trap in assignments.traps(stage)]
        if not (isinstance(ids, list) and ids and all(id in known for id in ids)):
            raise BadCourse(f"{path}, asked {clean(key, 20)}: got {clean(ids, 60)}, expected a "
                            f"list of some of {', '.join(known)}, each as a text.")
        found[stage] = tuple(ids)
    return found


def _partial_trap(path: Path, facts: dict[str, Any]) -> float | None:
    """What the trap's own promise is worth with --partial, in percent; None if not given."""
    if "partial_trap" not in facts:
        return None
    percent = float(_matched(path, facts, "partial_trap", _PERCENT, (), "50%")[0])
    if percent > 100:
        raise BadCourse(f"{path}: got partial_trap = {percent:g}%, expected at most 100%.")
    return percent


def _dates(path: Path, table: dict[str, Any]) -> dict[int, datetime]:
    found: dict[int, datetime] = {}
    for key, value in table.items():
        stage = _stage(path, key)
        if stage in found:
            raise BadCourse(f"{path}: got two due dates for stage {stage}, expected one.")
        found[stage] = _date(f"{path}, due {clean(key, 20)}", value)
    return found


def _matched(path: Path, facts: dict[str, Any], name: str, form: re.Pattern,
             default: tuple[str, ...], example: str) -> tuple[str, ...]:
    if name not in facts:
        return default
    if not (match := form.fullmatch(str(facts[name]).replace(" ", ""))):
        raise BadCourse(f"{path}: got {name} = {clean(facts[name], 40)!r}, expected a text such as "
                        f"{example}")
    return match.groups()


def _stage(where: object, text: str) -> int:
    number = int(text[:6]) if text.isascii() and text.isdigit() else 0
    if not (assignments.is_known(number) or assignments.is_model(number)):
        raise BadCourse(f"{where}: got stage {clean(text, 20)!r}, expected the number of a stage "
                        "or of an exam sheet.")
    return int(text)


def _date(where: str, value: object) -> datetime:
    """A date with a time and an offset, from TOML or from text. Raises BadCourse."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if not (isinstance(value, datetime) and value.tzinfo):
        raise BadCourse(f"{where}: got {clean(value, 40)!r}, expected a date with a time and an "
                        f"offset, such as {EXAMPLE}")
    return value


def _extensions(path: Path) -> tuple[Extension, ...]:
    rows = tuple(_extension(path, number, row)
                 for number, row in numbered_rows(path, COLUMNS, BadCourse))
    for who in dict.fromkeys((row.learner, row.stage) for row in rows):
        for what in ("due", "handed_in"):
            _single_date(path, [row for row in rows if (row.learner, row.stage) == who], what)
    return rows


def _extension(path: Path, number: int, row: list[str]) -> Extension:
    where = f"{path}, row {number}"
    if len(row) != len(COLUMNS):
        raise BadCourse(f"{where}: got {len(row)} cells, expected {len(COLUMNS)}.")
    learner, stage, *dates = (cell.strip() for cell in row)
    if not any(dates):
        raise BadCourse(f"{where}: got no date, expected one in due or in handed_in.")
    until, handed_in = (_date(where, text) if text else None for text in dates)
    return Extension(number, learner, _stage(where, stage), until, handed_in)


def nbgrader_time(text: str) -> str:
    """The time in nbgrader's timestamp.txt as ISO 8601 with an offset; "" if there is none.

    The file holds "2027-01-15 23:59:00.5 UTC": a time and the name of a zone.
    """
    day, _, rest = text.strip().partition(" ")
    time, _, zone = rest.partition(" ")
    try:
        moment = datetime.fromisoformat(f"{day} {time}")
        return (moment if moment.tzinfo else moment.replace(tzinfo=_zone(zone))).isoformat()
    except (ValueError, KeyError, OSError):  # an unknown zone, or no time at all
        return ""


def _zone(name: str) -> tzinfo:
    return UTC if name in ("", "UTC") else ZoneInfo(name)


def moodle_time(text: str, zone: tzinfo | None) -> datetime | None:
    """The time in a cell of Moodle's sheet, "Friday, 15 January 2027, 11:59 PM", in that zone.

    None for a cell without a readable time: "-", or an unknown language.
    """
    match = _MOODLE.fullmatch(text.strip())
    if not match or match[2].casefold() not in _MONTHS:
        return None
    hour = int(match[4]) if not match[6] else int(match[4]) % 12 + 12 * (match[6] in "Pp")
    with suppress(ValueError):
        return datetime(int(match[3]), _MONTHS[match[2].casefold()], int(match[1]), hour,
                        int(match[5]), tzinfo=zone)
    return None


# ---- applying

def apply(results: Sequence[dict[str, Any]], course: Course | None,
            cells: dict[tuple[str, str, int | None], str]) -> list[dict[str, Any]]:
    """The results; where a stage has a due date, late points are deducted and a note says so.

    cells: what Moodle's sheets say about the time, by source, id and stage (or None for any).
    Raises BadCourse if an extension fits two people, or is a second one for the same person.
    """
    if not course:
        return list(results)
    stages = {result.get("stage") for result in results}
    for row in course.extensions:
        if row.stage in stages and (said := ambiguity(results, row.learner)):
            raise BadCourse(f"{EXTENSIONS}, row {row.row}: {said}")
    return [_with_due_date(result, course, cells) for result in results]


def remarks(results: Sequence[dict[str, Any]], course: Course | None) -> list[str]:
    """For the instructor: how many hand-in times are unknown, which extensions match no learner."""
    unknown = sum("due" in r and not r["due"]["handed_in"] for r in results)
    lines = [f"The time of handing in is not known for {unknown} of {len(results)}, so nothing is "
             f"deducted there. You can give a time in {EXTENSIONS}."] if unknown else []
    if strangers := unmatched_extensions(results, course):
        lines.append(f"{EXTENSIONS}: no learner of this run is called {first_few(strangers)}.")
    return lines


def unmatched_extensions(results: Sequence[dict[str, Any]], course: Course | None) -> list[str]:
    """The learners in extensions.csv who have no result for the stage of their row."""
    stages = {result.get("stage") for result in results}
    return [row.learner for row in (course.extensions if course else ()) if row.stage in stages
            and not any(_is_for(row, result) for result in results)]


def _is_for(row: Extension, result: dict[str, Any]) -> bool:
    return row.stage == result.get("stage") and is_called(result, row.learner)


def _with_due_date(result: dict[str, Any], course: Course,
                   cells: dict[tuple[str, str, int | None], str]) -> dict[str, Any]:
    rows = [row for row in course.extensions if _is_for(row, result)]
    extended, given = (_single_date(EXTENSIONS, rows, what) for what in ("due", "handed_in"))
    usual = course.due.get(result.get("stage", 0))
    until = extended or usual
    if result["status"] != "graded" or until is None:
        return result
    # An extension may be written in any zone; Moodle's times are in the zone of the course.
    zone = (usual or next(iter(course.due.values()), until)).tzinfo
    moment = given or _time_of_submission(result, zone, cells)
    facts: dict[str, Any] = {"due": until.isoformat(), "off": 0,
                             "handed_in": moment.isoformat() if moment else ""}
    if moment is None:
        note = ["It is not known when this was handed in, so nothing is deducted."
                ] if result.get("late") else []
        return {**result, "due": facts, "notes": [*result["notes"], *note]}
    off = course.deduction(moment - until, result["possible"])
    left = rounded(max(0, result["points"] - off))
    facts["off"] = rounded(result["points"] - left)
    note = [_note(moment - until, facts["off"], course)] if moment > until else []
    return {**result, "points": left, "due": facts, "notes": [*result["notes"], *note]}


def _single_date(where: object, rows: Sequence[Extension], what: str) -> datetime | None:
    """The date in a column of one learner's rows. Raises BadCourse for a second one."""
    found = [row for row in rows if getattr(row, what)]
    if len(found) > 1:
        first, second = found[:2]
        raise BadCourse(f"{where}, row {second.row}: got a second {what} for "
                        f"{clean(second.learner, 80)!r} and stage {second.stage}, after the one in "
                        f"row {first.row}. Remove one.")
    return getattr(found[0], what) if found else None


def _time_of_submission(result: dict[str, Any], zone: tzinfo | None,
                        cells: dict[tuple[str, str, int | None], str]) -> datetime | None:
    """The time that nbgrader noted, or that Moodle's sheet gives, read in this zone."""
    if result.get("handed_in"):
        return datetime.fromisoformat(result["handed_in"])
    learner = result["learner"]
    found = [cells[key] for stage in (result["stage"], None)
             if (key := (learner["source"], learner["id"], stage)) in cells]
    return moodle_time(found[0], zone) if found else None


def _note(late: timedelta, off: float, course: Course) -> str:
    if late <= course.grace:
        return f"Handed in {_words(late)} after the due date, within the grace period."
    return f"Handed in {_words(late)} after the due date: {off:g} points off."
