"""How long lessons and traps take to read, for the book; `dlsys.reading_time` counts."""

from __future__ import annotations

import math

from nbformat import NotebookNode

from dlsys.reading_time import NEW, PRACTISED, between, by_fives, core, facts, minutes

__all__ = ["between", "by_fives", "core", "formula", "minutes", "of_core", "of_lesson",
           "of_newcomer", "of_trap"]
SOURCE = ("[Brysbaert 2019](https://doi.org/10.1016/j.jml.2019.104047)", 238)


def of_lesson(lesson: NotebookNode) -> int:
    """Minutes for a whole lesson, rounded up to a multiple of five."""
    return by_fives(lesson.cells)


def of_newcomer(lesson: NotebookNode) -> int:
    """Minutes for a whole lesson whose ideas are new, rounded up to a multiple of five."""
    return by_fives(lesson.cells, NEW)


def of_core(lesson: NotebookNode) -> int:
    """Minutes for a lesson without the traps off its core path, rounded up to fives."""
    return by_fives(core(lesson.cells))


def of_trap(lesson: NotebookNode, trap: str) -> int:
    """Minutes for all cells of a trap, folded ones included, rounded up."""
    return math.ceil(minutes(c for c in lesson.cells if facts(c).get("trap") == trap))


def formula() -> str:
    """One sentence of Markdown on how the minutes are counted."""
    source, silent = SOURCE
    return (f"Reading times assume {PRACTISED.words} words and {PRACTISED.lines} lines of code a "
            f"minute, which is slower than the {silent} words a minute of silent reading "
            f"({source}). If a page gives two times, the longer time is for readers to whom the "
            "ideas are new, at "
            f"{NEW.words} words and {NEW.lines} lines a minute. Both speeds and the times for "
            "exercises are estimates.")
