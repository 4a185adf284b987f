"""A learner's worksheet: finding it, and reading it whatever has happened to it since.

Reading never writes. An unreadable worksheet raises a WorksheetError that says what to do; one
that is still usable (a missing exercise, an older version) gets a note.
"""

import functools
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dlsys import assignments
from dlsys_checks.exam import sheet
from dlsys_files.notebook_file import WorksheetError, advice_on, load, short_name
from dlsys_files.notebook_reader import NotebookFile
from dlsys_helpers import catalog, paths
from dlsys_helpers.catalog import Trap


@dataclass(frozen=True)
class Worksheet:
    """A worksheet that can be run: ``cells`` are (number among the code cells, source).

    ``exercises`` are those that it asks for, only the core ones if it was begun with the core path.
    """

    path: Path
    stage: int
    cells: list[tuple[int, str]]
    exercises: list[Trap]
    notes: list[str]


# ---- finding

def find(asked: str) -> Path:
    """The file that is meant: a path, a stage's number, or a name in my-work/ from any folder.

    A number means the worksheet of `of_stage`, and so does an exercise's, "09.1". "exam-a" means
    the learner's last sheet of that form. Raises WorksheetError if there is none.
    """
    path, mine = Path(asked), paths.MY_WORK / Path(asked).name
    if os.path.lexists(path):
        return path
    if form := re.fullmatch(r"exam[-_ ]?([ab])", asked.lower()):
        return _last_exam(form[1])
    number = re.fullmatch(r"(\d{1,2})(\.\d{1,2})?", asked)
    if number and assignments.is_known(int(number[1])):
        return of_stage(int(number[1]))
    named = str(path.parent) in (".", paths.MY_WORK.name)
    return mine if named and os.path.lexists(mine) else path


def _last_exam(form: str) -> Path:
    """The sheet of this form that was changed last, in my-work/ or else in the current folder.

    A sheet of an earlier exam is found only if there is no other.
    """
    for folder in (paths.MY_WORK, Path()):
        found = sorted(folder.glob(f"[0-9][0-9]_exam_{form}.ipynb"),
                       key=lambda path: (assignments.is_exam(int(path.name[:2])),
                                         path.stat().st_mtime))
        if found:
            return found[-1]
    raise WorksheetError(f"exam-{form}: no sheet of this form in {paths.MY_WORK.name}. Make one "
                         f"with: dlsys exam {form}")


def exercise(asked: str) -> Trap | None:
    """The exercise that is meant, "9.1" or "09.1"; None for what names a file or a stage.

    Raises CatalogError for an unknown id.
    """
    if os.path.lexists(asked) or not re.fullmatch(r"\d{1,2}\.\d{1,2}", asked, re.A):
        return None
    id = catalog.as_id(asked)
    return assignments.trap(id) if assignments.is_known(int(id[:2])) else None


def of_stage(number: int) -> Path:
    """The worksheet in my-work/, or else in the current folder, where learners work on a release.

    The course's own notebooks do not count as worksheets.
    """
    here = Path(f"{assignments.stage(number).stem}.ipynb")
    mine = paths.MY_WORK / here
    own = Path.cwd() in (paths.EXERCISES, paths.SOLUTIONS, paths.NOTEBOOKS)
    return here if here.exists() and not own and not os.path.lexists(mine) else mine


# ---- reading

def read(path: str | Path) -> Worksheet:
    """The worksheet in this file, whatever its name.

    Raises WorksheetError if it is not a notebook, truncated, too old, of another language, or
    not a worksheet of this course. Its ``notes`` say what is missing or out of date.
    """
    path = Path(path)
    found, name = load(path), short_name(path)
    with advice_on(name):
        stage = assignments.stage_of(found)
    if found.view == "lesson":
        raise WorksheetError(f"{name}: is a lesson, expected a worksheet. Make one with: "
                             f"dlsys start {stage}")
    if assignments.is_exam(stage) and any(sheet.opened(source) for _, source in found.cells):
        raise WorksheetError(f"{name}: is a sheet of your class's exam, and only its desk knows "
                             "what is right. Hand it in: your instructor's grader checks it.")
    exercises = [trap for trap in assignments.traps(stage)
                 if trap.id in (found.asked or [trap.id] * (trap.core or not found.core))
                 or trap.id in found.checked]
    if not exercises:
        raise WorksheetError(f"{name}: stage {stage} has no exercises here. Run: git pull")
    notes = _checks(found, [trap.id for trap in exercises], stage)
    return Worksheet(path, stage, found.cells, exercises, notes + _outdated(found, stage, name))


def with_one_exercise(worksheet: Worksheet, asked: Trap) -> Worksheet:
    """The worksheet with one exercise to check. Raises WorksheetError if it is left out."""
    if asked not in worksheet.exercises:
        raise WorksheetError(
            f"{asked.id}: {short_name(worksheet.path)} holds only the core path. To add the "
            f"other exercises to your answers: dlsys start {worksheet.stage} --update")
    return replace(worksheet, exercises=[asked])


def is_core(path: Path) -> bool:
    """Whether this was begun with the core path alone; False if it cannot be read."""
    with suppress(WorksheetError):
        return load(path).core
    return False


def stage_in(path: Path) -> int:
    """The stage of the worksheet in this file. Raises WorksheetError for another notebook."""
    found = load(path)
    with advice_on(short_name(path)):
        return assignments.stage_of(found)


def _checks(found: NotebookFile, known: list[str], stage: int) -> list[str]:
    """Notes about check cells that are missing, or of another stage."""
    notes = []
    if missing := [id for id in known if id not in found.checked]:
        notes.append(
            f"No check cell for {', '.join(missing)}; the function is looked up anyway. "
            f"A complete worksheet: {assignments.how_to_begin(stage)}"
        )
    if strange := sorted(set(found.checked) - set(known)):
        notes.append(f"{', '.join(strange)[:80]}: not an exercise of stage {stage}; left out.")
    return notes


def _outdated(found: NotebookFile, stage: int, name: str) -> list[str]:
    """A note when the shipped exercises changed since this worksheet was made."""
    if not is_outdated(found, stage):
        return []
    return [
        f"{name} is older than the exercises, which have changed since. It is checked as it "
        f"is. A new one with your answers in it: dlsys start {stage} --update"
        f"{' --core' if found.core else ''}"
    ]


def is_outdated(found: NotebookFile, stage: int) -> bool:
    """Whether the course's worksheet is a different version from the one this was made from."""
    source = paths.EXERCISES / f"{assignments.stage(stage).stem}.ipynb"
    shipped = _version(source, source.stat().st_mtime_ns) if source.exists() else ""
    return "" not in (shipped, found.version) and shipped != found.version


@functools.cache
def _version(source: Path, _changed: int) -> str:
    """A shipped worksheet's version, cached: a class's hundreds are compared with one."""
    return load(source).version
