"""How long cells take to read, counted from their words and lines of code."""

from __future__ import annotations

import math
from collections.abc import Iterable

from nbformat import NotebookNode

# What one reads in a minute. Plain English prose goes at 238 words (Brysbaert 2019); prose about
# code, with formulas to think over, goes slower, and so does code. Both are estimates.
WORDS, LINES = 150, 8
SOURCE = ("[Brysbaert 2019](https://doi.org/10.1016/j.jml.2019.104047)", 238)
IDLE = {"setup", "explore"}  # roles whose code nobody has to read


def minutes(cells: Iterable[NotebookNode]) -> float:
    """Minutes for words and lines of code."""
    cells = list(cells)
    words = sum(len(c.source.split()) for c in cells if c.cell_type == "markdown")
    lines = sum(len(c.source.splitlines()) for c in cells if c.cell_type == "code"
                and c.metadata.get("dlsys", {}).get("role") not in IDLE)
    return words / WORDS + lines / LINES


def of_lesson(lesson: NotebookNode) -> int:
    """Minutes for a whole lesson, by fives."""
    return by_fives(lesson.cells)


def of_core(lesson: NotebookNode) -> int:
    """Minutes for a lesson without the traps off its core path, by fives."""
    return by_fives(c for c in lesson.cells if not c.metadata.get("dlsys", {}).get("aside"))


def by_fives(cells: Iterable[NotebookNode]) -> int:
    """Minutes for these cells, by fives, rounded up."""
    return 5 * math.ceil(minutes(cells) / 5)


def of_trap(lesson: NotebookNode, trap: str) -> int:
    """Minutes for all cells of a trap, folded ones included, rounded up."""
    return math.ceil(minutes(c for c in lesson.cells
                             if c.metadata.get("dlsys", {}).get("trap") == trap))


def formula() -> str:
    """How the minutes are counted, in one sentence of Markdown."""
    source, silent = SOURCE
    return (f"Reading times are counted at {WORDS} words and {LINES} lines of code a minute, "
            f"slower than the {silent} words of silent reading ({source}); exercise times are "
            "estimates.")
