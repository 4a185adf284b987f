"""course.toml as `dlsys release` writes it: what a class was asked to do, and when it is due.

An existing file keeps every line; new lines go below the heading of their table.
"""

import datetime
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dlsys_helpers.errors import UserError

NAME = "course.toml"
_BEGINNING = """\
# What the class was asked to do, and when it is due. dlsys grade reads this file.
# late = "10%/day"       # of the points asked for, per day or part of a day
# late_max = "50%"       # the largest deduction
# grace = "15min"        # no deduction within this time after the due date
# partial_trap = "50%"   # with --partial: what the promise of an exercise's trap is worth
"""


class CourseTaken(UserError):
    """A release's lines cannot be added to course.toml. The message says what to do."""


class Planned(NamedTuple):
    """A file and its future content."""

    path: Path
    text: str


def text(asked: Mapping[int, Sequence[str]]) -> str:
    """A course.toml that says what is asked for; "" if there is nothing to say."""
    return _with_rows(_BEGINNING, "asked", _asked_rows(asked)) if asked else ""


def _asked_rows(asked: Mapping[int, Sequence[str]]) -> dict[str, str]:
    return {str(number): "[" + ", ".join(f'"{id}"' for id in ids) + "]"
            for number, ids in asked.items()}


def planned(path: Path, stages: Sequence[int], due: datetime.datetime | None,
            asked: Mapping[int, Sequence[str]]) -> Planned | None:
    """The course.toml with these stages; None if there is nothing to add. Raises CourseTaken."""
    wanted = {"due": {str(n): due.isoformat() for n in stages} if due else {},
              "asked": _asked_rows(asked)}
    if not any(wanted.values()):
        return None
    try:
        made = path.read_text(encoding="utf-8-sig") if path.exists() else _BEGINNING
        before = tomllib.loads(made)
    except (OSError, ValueError) as error:
        raise CourseTaken(f"{path}: cannot be read ({type(error).__name__}). Nothing was "
                          "written. Name a different file: --course FILE") from None
    for table, rows in wanted.items():
        if taken := [n for n in rows if n in before.get(table, {})]:
            raise CourseTaken(f"{path}: already has stage {taken[0]} under [{table}]. Nothing was "
                              "written. Remove that line, or name a different file: --course FILE")
        made = _with_rows(made, table, rows)
    expected = {**before, **{table: {**before.get(table, {}), **tomllib.loads(_lines(rows))}
                             for table, rows in wanted.items() if rows}}
    try:
        fits = tomllib.loads(made) == expected
    except ValueError:
        fits = False
    if not fits:
        raise CourseTaken(f"{path}: has a form that dlsys cannot add lines to. Nothing was "
                          "written. Name a different file: --course FILE")
    return Planned(path, made)


def _lines(rows: Mapping[str, str]) -> str:
    return "".join(f"{number} = {value}\n" for number, value in rows.items())


def _with_rows(text: str, table: str, rows: Mapping[str, str]) -> str:
    """The text with rows below the heading of a table, which is added if it is missing."""
    if not rows:
        return text
    heading = re.search(rf"^\[{table}\][^\n]*\n?", text, re.M)
    if not heading:
        return f"{text.rstrip()}\n\n[{table}]\n{_lines(rows)}"
    start = heading.end()
    return f"{text[:start].rstrip()}\n{_lines(rows)}{text[start:]}"


def write(course: Planned) -> None:
    """Write the file, whole or not at all. Raises CourseTaken."""
    beside = course.path.with_name(f"{course.path.name}.new")
    try:
        beside.write_text(course.text, encoding="utf-8")
        beside.replace(course.path)
    except OSError as error:
        raise CourseTaken(f"{course.path}: cannot be written ({error.strerror}). It should hold:\n"
                          f"{course.text}") from None
