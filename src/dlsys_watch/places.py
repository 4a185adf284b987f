"""Where in the user's own files something happens."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from types import FrameType
from typing import NamedTuple

from dlsys_watch.frames import PASSED_OVER

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
SILENCED = re.compile(r"#\s*dlsys:\s*ok\s+([\w-]+(?:[\s,]+[\w-]+)*)")


class Place(NamedTuple):
    """A line of a file; `file` is the name that Python compiled it under."""

    file: str
    line: int


def _libraries() -> tuple[str, ...]:
    """Folders of code that is not the user's: the standard library and installed packages."""
    paths = sysconfig.get_paths()
    found = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (HERE, *(os.path.join(os.path.abspath(path), "") for path in found))


LIBRARIES = _libraries()
_theirs: dict[str, bool] = {}
main_file: list[str] = []  # the script that is watched: the user's, wherever it is


def is_theirs(file: str) -> bool:
    """Whether a file is the user's own."""
    known = _theirs.get(file)
    if known is None:
        known = _theirs[file] = file in main_file or not (
            file.startswith(("<frozen", PASSED_OVER)) or file == "<string>"
            or "site-packages" in file or "dist-packages" in file
            or os.path.abspath(file).startswith(LIBRARIES) or file.startswith("<eval_with_key>"))
    return known


def asking() -> str:
    """The file of the innermost frame that is not of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((HERE, PASSED_OVER)):
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else "<string>"


def here() -> Place | None:
    """The innermost line of the user's that is running, None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_theirs(frame.f_code.co_filename):
            return Place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def shown(file: str) -> str:
    """A file's name as people read it: relative to the working folder, or a notebook's cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cells = getattr(getattr(shell, "compile", None), "_filename_map", {})
    if file in cells:
        return f"In [{cells[file]}]"
    below = os.path.relpath(file) if os.path.isabs(file) else file
    return file if below.startswith("..") else below


def printable(text: str) -> str:
    """A text on one line, in which nothing steers the terminal: names may hold anything."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def silenced(place: Place | None) -> set[str]:
    """The rules that a comment on this line switches off."""
    if place is None:
        return set()
    linecache.checkcache(place.file)
    found = SILENCED.search(linecache.getline(*place))
    return set(re.split(r"[\s,]+", found[1])) if found else set()
