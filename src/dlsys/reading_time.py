"""How long a lesson takes to read, counted from its words and lines of code."""

import functools
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dlsys_helpers import catalog, paths
from dlsys_helpers.stages import Stage


class Pace(NamedTuple):
    """How much one reads in a minute."""

    words: int
    lines: int


# People read plain English prose at 238 words (Brysbaert 2019). Prose about code, with formulas to
# think over, is slower, and so is code; both are slower still if ideas and calls are new. Both
# paces are estimates: a beginner needed 200 minutes for stage 1, where PRACTISED promises 150.
PRACTISED, NEW = Pace(150, 8), Pace(110, 6)
IDLE = {"install", "setup", "explore"}  # roles whose code nobody has to read
LOOKED_UP = "words"  # the role of the list of words, in which readers look things up
Cells = Iterable[Mapping[str, Any]]


def minutes(cells: Cells, pace: Pace = PRACTISED) -> float:
    """Minutes for words and lines of code."""
    words = lines = 0
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and facts(cell).get("role") != LOOKED_UP:
            words += len(source.split())
        elif cell["cell_type"] == "code" and facts(cell).get("role") not in IDLE:
            lines += len(source.splitlines())
    return words / pace.words + lines / pace.lines


def by_fives(cells: Cells, pace: Pace = PRACTISED) -> int:
    """Minutes for these cells, rounded up to a multiple of five."""
    return 5 * math.ceil(minutes(cells, pace) / 5)


def between(cells: Cells) -> str:
    """Minutes for these cells at both paces, as in "145 to 200"."""
    cells = list(cells)
    return spread(by_fives(cells), by_fives(cells, NEW))


def spread(read: int, slow: int) -> str:
    """Two numbers of minutes as one range."""
    return f"{read}" if read == slow else f"{read} to {slow}"


def core(cells: Cells) -> list:
    """The cells of a lesson without the traps off its core path."""
    return [cell for cell in cells if not facts(cell).get("aside")]


def facts(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the course wrote into the metadata of a cell."""
    return cell["metadata"].get("dlsys", {})


class Times(NamedTuple):
    """Minutes of a stage, or of its core path: to read at both paces, and for the exercises."""

    read: int
    slow: int
    solve: int

    def __str__(self) -> str:
        return f"{spread(self.read, self.slow)} minutes to read, {self.solve} for the exercises"


def times(stage: Stage) -> tuple[Times, Times]:
    """Minutes for the core path and for all of a stage; 0 to read if its lesson is not here."""
    path, traps = paths.NOTEBOOKS / f"{stage.stem}.ipynb", catalog.traps(stage.number)
    short, whole = _read(path, path.stat().st_mtime_ns) if path.exists() else ((0, 0), (0, 0))
    return (Times(*short, sum(trap.minutes for trap in traps if trap.core)),
            Times(*whole, sum(trap.minutes for trap in traps)))


@functools.cache
def _read(path: Path, _changed: int) -> list[tuple[int, int]]:
    """Minutes to read a shipped lesson, its core path and all of it, each at both paces."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [(by_fives(part), by_fives(part, NEW)) for part in (core(cells), cells)]
