"""Open a learner's notebook file, or say what to do with one that cannot be read."""

import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlsys_files import notebook_reader
from dlsys_files.notebook_reader import LARGEST, NotebookFile, Unreadable, oversize
from dlsys_helpers import paths
from dlsys_helpers.errors import UserError


class WorksheetError(UserError):
    """A worksheet cannot be read or started. The message says what to do."""


# Copies that are read, not checked: the start page and lessons.
_TO_READ = re.compile(r"00_start_here|your_model|\d\d_lesson(_\d+)?")
_FRESH = "Your file is untouched; for a fresh one next to it: dlsys start NN --copy"
_ADVICE = {
    "damaged": _FRESH,
    "earlier": "",
    "format": "Or convert a copy: jupyter nbconvert --to notebook --output new.ipynb {name}",
    "language": "Open it, choose Kernel > Change Kernel > Python 3, and save.",
    "large": "Open it, choose Edit > Clear Outputs of All Cells, and save.",
    "strange": "Make one with: dlsys start 1",
    "variant": "Or put your answers into a fresh one: dlsys start NN --copy",
}


def load(path: Path) -> NotebookFile:
    """The notebook in this file, ours or not. Raises WorksheetError with what to do."""
    name = short_name(path)
    with advice_on(name):
        return notebook_reader.parse(_bytes(path, name))


@contextmanager
def advice_on(name: str) -> Iterator[None]:
    """Add to an Unreadable error which file it is about, and what its owner can do."""
    try:
        yield
    except Unreadable as error:
        advice = _ADVICE[error.kind].format(name=name)
        raise WorksheetError(f"{name}: {error} {advice}".rstrip()) from None


def _bytes(path: Path, name: str) -> bytes:
    """A regular file's bytes, at most LARGEST. Raises WorksheetError."""
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
        raise WorksheetError(f"{name}: no such file. {_offer(paths.MY_WORK, path)}") from None
    except OSError as error:
        raise WorksheetError(f"{name}: cannot be read ({error.strerror}).") from None


def _offer(folder: Path, asked: Path = Path()) -> str:
    """Which notebooks the folder holds, or how to start one, if possible the one asked for."""
    found = [path.name for path in in_folder(folder)]
    if not found:
        stage = re.match(r"0?([1-9]|1\d)_", asked.name, re.A)
        return f"Start a worksheet with: dlsys start {stage[1] if stage else 1}"
    return f"{folder.name}/ holds: {', '.join(found[:3])}{', ...' if len(found) > 3 else ''}"[:150]


def in_folder(folder: Path) -> list[Path]:
    """The notebooks of a folder that can be a worksheet, whatever their names."""
    return sorted(path for path in folder.glob("*.ipynb") if not is_read(path))


def is_read(path: Path) -> bool:
    """Whether this is, by its name, a copy of the start page or of a lesson."""
    return _TO_READ.fullmatch(path.stem) is not None


def short_name(path: Path) -> str:
    """A path short enough for a message: its last two parts."""
    return "/".join(path.parts[-2:])[-70:]
