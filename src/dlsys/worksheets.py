"""A learner's worksheet: starting one, and reading it whatever has happened to it since.

Reading never writes. What cannot be read gets a WorksheetError that says what to do; what can
be worked with all the same (a missing exercise, an older worksheet) gets a note.
"""

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dlsys_helpers import catalog, paths
from dlsys_helpers.stages import STAGES, Stage

LARGEST = 50 * 2**20  # bytes; a worksheet has tens of kilobytes, its plots a few megabytes
_CHECK_CALL = re.compile(r"""^[ \t]*check\(\s*["'](\d\d\.\d+)["']\s*,\s*([A-Za-z_]\w*)""", re.M)


class WorksheetError(ValueError):
    """A worksheet cannot be read or started. The message says what to do."""


class Exercise(NamedTuple):
    """An exercise of the worksheet: its id, the learner's function, title and points."""

    id: str
    function: str
    title: str
    points: int


@dataclass(frozen=True)
class Worksheet:
    """A worksheet that can be run: ``cells`` are (number among the code cells, source)."""

    path: Path
    stage: int
    cells: list[tuple[int, str]]
    exercises: list[Exercise]
    notes: list[str]


class Started(NamedTuple):
    """The learner's worksheet, and whether it was made now or was there before."""

    path: Path
    created: bool


# ---- starting

def written() -> list[Stage]:
    """The stages whose worksheet exists."""
    return [stage for stage in STAGES if _source(stage).exists()]


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
    try:
        return _source(stage).read_bytes()
    except FileNotFoundError:
        ready = ", ".join(str(s.number) for s in written()) or "none"
        raise WorksheetError(
            f"stage {stage.number} has no worksheet yet; with a worksheet: {ready}."
        ) from None
    except OSError as error:
        raise WorksheetError(
            f"exercises/{stage.stem}.ipynb: cannot be read ({error.strerror})."
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

def read(path: str | Path) -> Worksheet:
    """The worksheet in this file, whatever its name.

    Raises WorksheetError when it is no notebook, truncated, too old, of another language, or
    not a worksheet of this course. Its ``notes`` say what is missing or out of date.
    """
    path = Path(path)
    notebook = load(path)
    name = _shown(path)
    code = _code(notebook)
    called = _called(code)
    if _own(notebook).get("view") == "lesson":
        raise WorksheetError(
            f"{name}: is a lesson, expected a worksheet. Make one with: "
            f"dlsys start {str(_own(notebook).get('stage'))[:2]}"
        )
    stage = stage_in(notebook, name)
    exercises, notes = _exercises(stage, called, name)
    cells = [(n, source) for n, source in enumerate(code, 1) if not _CHECK_CALL.search(source)]
    return Worksheet(path, stage, cells, exercises, notes + _outdated(notebook, stage, name))


def load(path: Path) -> dict:
    """A Python notebook's JSON, its cells known to be a list of dicts. Raises WorksheetError."""
    name = _shown(path)
    notebook = _json(_text(path, name), name)
    _version_4(notebook, name)
    _python_only(notebook, name)
    cells = notebook.get("cells")
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise WorksheetError(f"{name}: has no list of cells, expected a notebook. {_FRESH}")
    if not cells:
        raise WorksheetError(f"{name}: has no cells at all, expected a worksheet. {_FRESH}")
    return notebook


_FRESH = "Your file is untouched; for a fresh one beside it: dlsys start NN --copy"


def _text(path: Path, name: str) -> str:
    try:
        mode, size = path.stat().st_mode, path.stat().st_size
        if stat.S_ISDIR(mode):
            raise WorksheetError(f"{name}: is a folder, expected a notebook. {_offer(path)}")
        if not stat.S_ISREG(mode):
            raise WorksheetError(f"{name}: is not a file, expected a notebook.")
        if size > LARGEST:
            raise WorksheetError(
                f"{name}: has {size / 2**20:.0f} MB, expected at most {LARGEST / 2**20:.0f}. "
                "Open it, choose Edit > Clear Outputs of All Cells, and save."
            )
        data = path.read_bytes()
    except FileNotFoundError:
        raise WorksheetError(f"{name}: no such file. {_offer(paths.MY_WORK)}") from None
    except OSError as error:
        raise WorksheetError(f"{name}: cannot be read ({error.strerror}).") from None
    return _decode(data, name)


def _offer(folder: Path) -> str:
    """Which notebooks the folder holds, or how to start one."""
    found = sorted(path.name for path in folder.glob("*.ipynb"))
    if not found:
        return "Start a worksheet with: dlsys start 1"
    return f"{folder.name}/ holds: {', '.join(found[:3])}{', ...' if len(found) > 3 else ''}"[:150]


def _decode(data: bytes, name: str) -> str:
    if not data.strip():
        raise WorksheetError(f"{name}: is empty, expected a notebook. {_FRESH}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WorksheetError(
            f"{name}: is not UTF-8 text (byte {error.start}), expected a notebook. "
            "Open it in an editor and save it as UTF-8. " + _FRESH
        ) from None


def _json(text: str, name: str) -> dict:
    try:
        notebook = json.loads(text)
    except json.JSONDecodeError as error:
        raise WorksheetError(f"{name}: {_damage(text, error)} {_FRESH}") from None
    except RecursionError:
        raise WorksheetError(f"{name}: is nested too deep for a notebook. {_FRESH}") from None
    if not isinstance(notebook, dict):
        raise WorksheetError(
            f"{name}: is JSON but no notebook (got a {type(notebook).__name__}). {_FRESH}"
        )
    return notebook


def _damage(text: str, error: json.JSONDecodeError) -> str:
    """What happened to the file, as far as its text tells."""
    if re.search(r"^<<<<<<< ", text, re.M):
        return "holds git conflict marks (<<<<<<<). Resolve them in a text editor."
    at_end = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
    if text.lstrip().startswith("{") and at_end:
        return f"stops in the middle (line {error.lineno}): it was cut off while being saved."
    if not text.lstrip().startswith("{"):
        return "is no notebook (its text does not begin with a brace)."
    return f"is damaged at line {error.lineno}, column {error.colno}: {error.msg}."


def _version_4(notebook: dict, name: str) -> None:
    number = notebook.get("nbformat")
    if number == 4:
        return
    if isinstance(number, int) and number > 4:
        advice = "Open it in the program that made it and save it as version 4."
    elif isinstance(number, int) or "worksheets" in notebook:
        advice = f"Convert a copy: jupyter nbconvert --to notebook --output new.ipynb {name}"
    else:
        advice = _FRESH
    raise WorksheetError(
        f"{name}: got notebook format {str(number)[:20]}, expected 4. {advice}"
    )


def _python_only(notebook: dict, name: str) -> None:
    metadata = _dict(notebook.get("metadata"))
    spec, info = _dict(metadata.get("kernelspec")), _dict(metadata.get("language_info"))
    language = str(spec.get("language") or info.get("name") or "python")
    if not language.lower().startswith(("python", "ipython")):
        raise WorksheetError(
            f"{name}: its kernel speaks {language[:30]}, expected Python. "
            "Open it, choose Kernel > Change Kernel > Python 3, and save."
        )


def stage_in(notebook: dict, name: str = "notebook") -> int:
    """The stage in the metadata; where a tool dropped it, the one that the checks speak of.

    Raises WorksheetError when there is neither.
    """
    number = _own(notebook).get("stage")
    called = _called(_code(notebook))
    if number is None and called:
        number = int(min(called).partition(".")[0])
    if not isinstance(number, int) or not 1 <= number <= len(STAGES):
        raise WorksheetError(
            f"{name}: is no worksheet of this course (no stage in its metadata, no check). "
            "Make one with: dlsys start 1"
        )
    return number


def _exercises(stage: int, called: dict, name: str) -> tuple[list[Exercise], list[str]]:
    """Every exercise of the stage, checked on the function that the check cell names."""
    declared = catalog.traps(stage)
    if not declared:
        raise WorksheetError(f"{name}: stage {stage} has no exercises here. Run: git pull")
    known = [trap["id"] for trap in declared]
    notes = []
    if missing := [id for id in known if id not in called]:
        notes.append(
            f"No check cell for {', '.join(missing)}; the function is still looked for. "
            f"A complete worksheet: dlsys start {stage} --copy"
        )
    if strange := sorted(set(called) - set(known)):
        notes.append(f"{', '.join(strange)[:80]}: no exercise of stage {stage}; left out.")
    return [
        Exercise(t["id"], called.get(t["id"], t["function"]), t["title"], t["points"])
        for t in declared
    ], notes


def _outdated(notebook: dict, stage: int, name: str) -> list[str]:
    """A note when the shipped exercises changed since this worksheet was made."""
    source = _source(STAGES[stage - 1])
    if not source.exists():
        return []
    now, mine = (_own(n).get("version") for n in (load(source), notebook))
    if mine is None or now is None or mine == now:
        return []
    return [
        f"{name} is older than the exercises, which have changed since. It is checked as it "
        f"is. A fresh one beside it: dlsys start {stage} --copy"
    ]


def _own(notebook: dict) -> dict:
    """What the builder wrote into the notebook's metadata: stage, view, version."""
    return _dict(_dict(notebook.get("metadata")).get("dlsys"))


def _code(notebook: dict) -> list[str]:
    return [_source_of(cell) for cell in notebook["cells"] if cell.get("cell_type") == "code"]


def _called(code: list[str]) -> dict[str, str]:
    """Exercise id to the function that its check cell names."""
    return dict(call for source in code for call in _CHECK_CALL.findall(source))


def _source_of(cell: dict) -> str:
    """A cell's text; the format allows a string or a list of lines."""
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _dict(value) -> dict:
    return value if isinstance(value, dict) else {}


def _shown(path: Path) -> str:
    """A path short enough for a message: its last two parts."""
    return "/".join(path.parts[-2:])[-70:]
