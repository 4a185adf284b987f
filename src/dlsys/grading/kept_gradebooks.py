"""The gradebooks that a run was given: copies in its folder, used again where none is given.

They hold people's names and Moodle's times; without them, --resume would take back what was taken
off for late hand-ins, and leave a gradebook that the other files contradict.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path

from dlsys.grading.cohort import RunError, write_private
from dlsys.grading.gradebooks import of_stage

FOLDER = "given"
CANVAS, COLUMNS = "canvas.csv", "columns.json"
_MOODLE = re.compile(r"moodle(?:_(\d+))?\.csv")
_FILLED = re.compile(r"canvas\.csv|moodle(?:_\d+)?\.csv")


def moodle_name(stage: int | None) -> str:
    """The file for Moodle's sheet of a stage, or of the only one."""
    return "moodle.csv" if stage is None else f"moodle_{stage:02d}.csv"


def again(args: argparse.Namespace) -> str:
    """Take up the gradebooks that the run in args.out was given before; returns a line about it.

    Canvas's one gives way to another of Canvas, a sheet of Moodle to another of its stage. Raises
    RunError.
    """
    folder = args.out / FOLDER
    taken = []
    if not args.canvas and (folder / CANVAS).exists():
        args.canvas = [[str(folder / CANVAS), column] for column in _columns(folder / COLUMNS)]
        taken.append(CANVAS)
    stages = {of_stage(argument)[0] for argument in args.moodle}
    for path in sorted(folder.glob("moodle*.csv")):
        if (match := _MOODLE.fullmatch(path.name)) and _goes_beside(match[1], stages):
            args.moodle = [*args.moodle, f"{match[1]}={path}" if match[1] else str(path)]
            taken.append(path.name)
    return f"Given before and used again: {folder}, {', '.join(taken)}." if taken else ""


def _goes_beside(stage: str | None, others: set[int | None]) -> bool:
    """Whether a kept sheet of this stage (None: of all) does not overlap with those given now."""
    return not others or bool(stage and not {None, int(stage)} & others)


def _columns(path: Path) -> list[str]:
    try:
        columns = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        columns = None
    if not (isinstance(columns, list) and columns and all(type(one) is str for one in columns)):
        raise RunError(f"{path}: got no list of columns. Give the gradebook again: --canvas CSV "
                       "COLUMN")
    return columns


def keep(args: argparse.Namespace) -> None:
    """Put copies of the gradebooks into the run's folder, and no others. Raises OSError."""
    folder = args.out / FOLDER
    files = {moodle_name(stage): Path(path).read_bytes()
             for stage, path in map(of_stage, args.moodle)}
    if args.canvas:
        files[CANVAS] = Path(args.canvas[0][0]).read_bytes()
        files[COLUMNS] = json.dumps([column for _, column in args.canvas]).encode()
    if files:
        folder.mkdir(mode=0o700, exist_ok=True)
    for path in folder.glob("*"):
        if path.name not in files and (_FILLED.fullmatch(path.name) or path.name == COLUMNS):
            path.unlink()
    for name, content in files.items():
        write_private(folder / name, content)


def stale(out: Path, written: Iterable[str]) -> list[str]:
    """A line where the folder holds filled-in gradebooks that this call did not write."""
    names = sorted(path.name for path in out.glob("*.csv")
                   if _FILLED.fullmatch(path.name) and path.name not in set(written))
    return [f"Not filled in this time, so grades.csv may say something else: {', '.join(names)}. "
            "Give --canvas or --moodle, or remove it."] if names else []
