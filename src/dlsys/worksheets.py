"""A learner's worksheet: finding it, and reading it whatever has happened to it since.

Reading never writes. What cannot be read gets a WorksheetError that says what to do; what can
be worked with all the same (a missing exercise, an older worksheet) gets a note.
"""

import functools
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dlsys import assignments, notebook_reader
from dlsys.notebook_reader import LARGEST, NotebookFile, Unreadable, oversize
from dlsys_helpers import catalog, paths
from dlsys_helpers.catalog import Trap
from dlsys_helpers.errors import UserError


class WorksheetError(UserError):
    """A worksheet cannot be read or started. The message says what to do."""


@dataclass(frozen=True)
class Worksheet:
    """A worksheet that can be run: ``cells`` are (number among the code cells, source).

    ``exercises`` are those that it asks for: of one that was begun with the core path, no others.
    """

    path: Path
    stage: int
    cells: list[tuple[int, str]]
    exercises: list[Trap]
    notes: list[str]


# ---- finding

# Copies that are read, not checked: the start page and lessons.
_TO_READ = re.compile(r"00_start_here|your_model|\d\d_lesson(_\d+)?")


def find(asked: str) -> Path:
    """The file that is meant: a path, a stage's number, or a name in my-work/ from any folder.

    A number means the worksheet of `of_stage`, and so does an exercise's, "09.1".
    """
    path, mine = Path(asked), paths.MY_WORK / Path(asked).name
    if os.path.lexists(path):
        return path
    number = re.fullmatch(r"(\d{1,2})(\.\d{1,2})?", asked)
    if number and assignments.is_known(int(number[1])):
        return of_stage(int(number[1]))
    named = str(path.parent) in (".", paths.MY_WORK.name)
    return mine if named and os.path.lexists(mine) else path


def exercise(asked: str) -> Trap | None:
    """The exercise that is meant, "9.1" or "09.1"; None for what names a file or a stage.

    Raises CatalogError for an id that is none.
    """
    if os.path.lexists(asked) or not re.fullmatch(r"\d{1,2}\.\d{1,2}", asked, re.A):
        return None
    id = catalog.as_id(asked)
    return assignments.trap(id) if assignments.is_known(int(id[:2])) else None


def of_stage(number: int) -> Path:
    """The worksheet in my-work/, or else the one here: a release is worked in where it lies.

    The course's own notebooks are nobody's worksheet.
    """
    here = Path(f"{assignments.stage(number).stem}.ipynb")
    mine = paths.MY_WORK / here
    own = Path.cwd() in (paths.EXERCISES, paths.SOLUTIONS, paths.NOTEBOOKS)
    return here if here.exists() and not own and not os.path.lexists(mine) else mine


def in_folder(folder: Path) -> list[Path]:
    """The notebooks of a folder that can be a worksheet, whatever their names."""
    return sorted(path for path in folder.glob("*.ipynb") if not is_read(path))


def is_read(path: Path) -> bool:
    """Whether this is, by its name, a copy of the start page or of a lesson."""
    return _TO_READ.fullmatch(path.stem) is not None


# ---- reading

_FRESH = "Your file is untouched; for a fresh one beside it: dlsys start NN --copy"
_ADVICE = {
    "damaged": _FRESH,
    "format": "Or convert a copy: jupyter nbconvert --to notebook --output new.ipynb {name}",
    "language": "Open it, choose Kernel > Change Kernel > Python 3, and save.",
    "large": "Open it, choose Edit > Clear Outputs of All Cells, and save.",
    "strange": "Make one with: dlsys start 1",
    "variant": "Or put your answers into a fresh one: dlsys start NN --copy",
}


def read(path: str | Path) -> Worksheet:
    """The worksheet in this file, whatever its name.

    Raises WorksheetError when it is not a notebook, truncated, too old, of another language, or
    not a worksheet of this course. Its ``notes`` say what is missing or out of date.
    """
    path = Path(path)
    found, name = load(path), _shown(path)
    with _advice(name):
        stage = found.known_stage()
    if found.view == "lesson":
        raise WorksheetError(f"{name}: is a lesson, expected a worksheet. Make one with: "
                             f"dlsys start {stage}")
    exercises = [trap for trap in assignments.traps(stage)
                 if trap.core or not found.core or trap.id in found.checked]
    if not exercises:
        raise WorksheetError(f"{name}: stage {stage} has no exercises here. Run: git pull")
    notes = _checks(found, [trap.id for trap in exercises], stage)
    return Worksheet(path, stage, found.cells, exercises, notes + _outdated(found, stage, name))


def only(worksheet: Worksheet, asked: Trap) -> Worksheet:
    """The worksheet with one exercise to check. Raises WorksheetError where it is left out."""
    if asked not in worksheet.exercises:
        raise WorksheetError(
            f"{asked.id}: {_shown(worksheet.path)} holds the core path alone. The other exercises, "
            f"beside your answers: dlsys start {worksheet.stage} --update")
    return replace(worksheet, exercises=[asked])


def is_core(path: Path) -> bool:
    """Whether this was begun with the core path alone; not so for what cannot be read."""
    with suppress(WorksheetError):
        return load(path).core
    return False


def load(path: Path) -> NotebookFile:
    """The notebook in this file, ours or not. Raises WorksheetError with what to do."""
    name = _shown(path)
    with _advice(name):
        return notebook_reader.parse(_bytes(path, name))


def stage_in(path: Path) -> int:
    """The stage of the worksheet in this file. Raises WorksheetError for another notebook."""
    found = load(path)
    with _advice(_shown(path)):
        return found.known_stage()


@contextmanager
def _advice(name: str) -> Iterator[None]:
    """Say of what is unreadable which file it is, and what to do with a file of one's own."""
    try:
        yield
    except Unreadable as error:
        advice = _ADVICE[error.kind].format(name=name)
        raise WorksheetError(f"{name}: {error} {advice}") from None


def _bytes(path: Path, name: str) -> bytes:
    """A regular file's bytes, one more than are allowed at most."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise WorksheetError(f"{name}: is a folder, expected a notebook. {_offer(path)}")
        if not stat.S_ISREG(mode):
            raise WorksheetError(f"{name}: is not a file, expected a notebook.")
        if path.stat().st_size > LARGEST:
            raise WorksheetError(f"{name}: {oversize(path.stat().st_size)} {_ADVICE['large']}")
        return path.read_bytes()
    except FileNotFoundError:
        raise WorksheetError(f"{name}: no such file. {_offer(paths.MY_WORK)}") from None
    except OSError as error:
        raise WorksheetError(f"{name}: cannot be read ({error.strerror}).") from None


def _offer(folder: Path) -> str:
    """Which notebooks the folder holds, or how to start one."""
    found = [path.name for path in in_folder(folder)]
    if not found:
        return "Start a worksheet with: dlsys start 1"
    return f"{folder.name}/ holds: {', '.join(found[:3])}{', ...' if len(found) > 3 else ''}"[:150]


def _checks(found: NotebookFile, known: list[str], stage: int) -> list[str]:
    """Notes about check cells that are missing, or of another stage."""
    notes = []
    if missing := [id for id in known if id not in found.checked]:
        notes.append(
            f"No check cell for {', '.join(missing)}; the function is still looked for. "
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
    """Whether the course's own worksheet is another version than the one this was made from."""
    source = paths.EXERCISES / f"{assignments.stage(stage).stem}.ipynb"
    shipped = _version(source, source.stat().st_mtime_ns) if source.exists() else ""
    return "" not in (shipped, found.version) and shipped != found.version


@functools.cache
def _version(source: Path, _changed: int) -> str:
    """A shipped worksheet's version: a class has hundreds that are compared with one."""
    return load(source).version


def _shown(path: Path) -> str:
    """A path short enough for a message: its last two parts."""
    return "/".join(path.parts[-2:])[-70:]
