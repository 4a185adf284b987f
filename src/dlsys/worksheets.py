"""A learner's worksheet: starting one, and reading it whatever has happened to it since.

Reading never writes. What cannot be read gets a WorksheetError that says what to do; what can
be worked with all the same (a missing exercise, an older worksheet) gets a note.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dlsys import notebook_file
from dlsys.notebook_file import LARGEST, NotebookFile, Unreadable, oversize
from dlsys_helpers import catalog, paths
from dlsys_helpers.catalog import Trap
from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import STAGES, Stage


class WorksheetError(UserError):
    """A worksheet cannot be read or started. The message says what to do."""


@dataclass(frozen=True)
class Worksheet:
    """A worksheet that can be run: ``cells`` are (number among the code cells, source)."""

    path: Path
    stage: int
    cells: list[tuple[int, str]]
    exercises: list[Trap]
    notes: list[str]


class Started(NamedTuple):
    """The learner's worksheet, and whether it was made now or was there before."""

    path: Path
    created: bool


# ---- starting

def start(stage: int | str, copy: bool = False) -> Started:
    """Copy a stage's worksheet to ``my-work/``; an existing one stays as it is.

    ``copy=True`` makes a fresh copy beside it under the next free name, ``01_activations_2``.
    Raises WorksheetError for an unknown stage, one without worksheet, or a full or read-only disk.
    """
    chosen = _stage(stage)
    data = _shipped(chosen)
    folder = paths.MY_WORK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in _names(folder, chosen.stem):
            if _create(path, data):
                return Started(path, True)
            if not copy:
                return Started(path, False)
    except OSError as error:
        raise WorksheetError(
            f"{folder.name}: cannot write the worksheet ({error.strerror}). "
            "Free some space or make the folder writable; dlsys doctor says more."
        ) from None


def _stage(asked: int | str) -> Stage:
    match = re.fullmatch(r"0*(\d{1,2})(_\w+)?", str(asked))
    number = int(match[1]) if match else 0
    if not 1 <= number <= len(STAGES):
        raise WorksheetError(
            f"stage: got {str(asked)[:40]!r}, expected 1 to {len(STAGES)}. Try: dlsys start 1"
        )
    return STAGES[number - 1]


def _source(stage: Stage) -> Path:
    return paths.EXERCISES / f"{stage.stem}.ipynb"


def _shipped(stage: Stage) -> bytes:
    written = catalog.written()
    if stage not in written:
        ready = ", ".join(str(s.number) for s in written)
        raise WorksheetError(
            f"stage {stage.number} has no worksheet yet; with a worksheet: {ready}."
        )
    try:
        return _source(stage).read_bytes()
    except OSError as error:
        raise WorksheetError(
            f"exercises/{stage.stem}.ipynb: cannot be read ({error.strerror}). Run: git checkout "
            f"-- exercises/{stage.stem}.ipynb"
        ) from None


def _names(folder: Path, stem: str):
    """stem.ipynb, then stem_2.ipynb, stem_3.ipynb, ... without end."""
    yield folder / f"{stem}.ipynb"
    number = 2
    while True:
        yield folder / f"{stem}_{number}.ipynb"
        number += 1


def _create(path: Path, data: bytes) -> bool:
    """Write a new file; False, and nothing touched, where the name is taken."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink()  # ours, and only half written
        raise
    return True


# ---- reading

_FRESH = "Your file is untouched; for a fresh one beside it: dlsys start NN --copy"
_ADVICE = {
    "damaged": _FRESH,
    "format": "Or convert a copy: jupyter nbconvert --to notebook --output new.ipynb {name}",
    "language": "Open it, choose Kernel > Change Kernel > Python 3, and save.",
    "large": "Open it, choose Edit > Clear Outputs of All Cells, and save.",
    "strange": "Make one with: dlsys start 1",
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
    exercises = catalog.traps(stage)
    if not exercises:
        raise WorksheetError(f"{name}: stage {stage} has no exercises here. Run: git pull")
    notes = _checks(found, [exercise.id for exercise in exercises], stage)
    return Worksheet(path, stage, found.cells, exercises, notes + _outdated(found, stage, name))


def load(path: Path) -> NotebookFile:
    """The notebook in this file, ours or not. Raises WorksheetError with what to do."""
    name = _shown(path)
    with _advice(name):
        return notebook_file.parse(_bytes(path, name))


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
    found = sorted(path.name for path in folder.glob("*.ipynb"))
    if not found:
        return "Start a worksheet with: dlsys start 1"
    return f"{folder.name}/ holds: {', '.join(found[:3])}{', ...' if len(found) > 3 else ''}"[:150]


def _checks(found: NotebookFile, known: list[str], stage: int) -> list[str]:
    """Notes about check cells that are missing, or of another stage."""
    notes = []
    if missing := [id for id in known if id not in found.checked]:
        notes.append(
            f"No check cell for {', '.join(missing)}; the function is still looked for. "
            f"A complete worksheet: dlsys start {stage} --copy"
        )
    if strange := sorted(set(found.checked) - set(known)):
        notes.append(f"{', '.join(strange)[:80]}: not an exercise of stage {stage}; left out.")
    return notes


def _outdated(found: NotebookFile, stage: int, name: str) -> list[str]:
    """A note when the shipped exercises changed since this worksheet was made."""
    source = _source(STAGES[stage - 1])
    shipped = load(source).version if source.exists() else ""
    if "" in (shipped, found.version) or shipped == found.version:
        return []
    return [
        f"{name} is older than the exercises, which have changed since. It is checked as it "
        f"is. A fresh one beside it: dlsys start {stage} --copy"
    ]


def _shown(path: Path) -> str:
    """A path short enough for a message: its last two parts."""
    return "/".join(path.parts[-2:])[-70:]
