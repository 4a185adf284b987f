"""Rows of a table of what a trap still lacks: the place to edit, and what to do there."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dlsys_helpers.paths import ROOT

NARROWEST = 120  # columns if the output is not a terminal, such as a log
LONGEST = 330  # the most characters in a row's text


class Row(NamedTuple):
    """place: "src/dlsys_checks/s05/e6_rescale.py:12", without the line if it is unknown."""

    place: str
    says: str


def screen() -> Console:
    """Standard output at its current width; NARROWEST columns if it is not a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=NARROWEST)


@contextmanager
def step(console: Console, name: str) -> Iterator[Callable[[str], None]]:
    """Show that a step runs, then one line with its result and its seconds.

    The block passes its result to the function that it gets.
    """
    began, said = time.perf_counter(), []
    if not console.is_terminal:
        console.print(f"{name} ...", markup=False)
    with console.status(f"{name} ..."):
        yield said.append
    console.print(f"{name:8} {' '.join(said)} ({time.perf_counter() - began:.0f} s)",
                  markup=False, soft_wrap=True)


def count(found: Collection, noun: str) -> str:
    """"1 row", "2 rows"."""
    return f"{len(found)} {noun}{'s' * (len(found) != 1)}"


def show(console: Console, rows: Iterable[Row]) -> None:
    """Print the table, each place on one line, so that a terminal can open it."""
    table = Table(box=box.SIMPLE, padding=(0, 1), pad_edge=False)
    table.add_column("place to edit", no_wrap=True, overflow="fold")
    table.add_column("what is missing, and what to do")
    for place, says in rows:
        text = " ".join(says.split())
        table.add_row(Text(place), Text(text if len(text) <= LONGEST else
                                        f"{text[:LONGEST - 4]} ..."))
    console.print(table)


def line_of(path: Path, *words: str) -> str:
    """The place of the first line of a file that contains one of these words, in their order.

    Only the start of a long word has to match, because the file may break it.
    """
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    for word in filter(None, words):
        for number, line in enumerate(lines, 1):
            if word[:30] in line:
                return f"{name}:{number}"
    return name


def in_order(rows: Iterable[Row], files: Iterable[str]) -> list[Row]:
    """The rows without repeats, sorted by file, in this order and then by name, and by line."""
    known = list(files)

    def key(row: Row) -> tuple:
        name, _, line = row.place.partition(":")
        return known.index(name) if name in known else len(known), name, int(line or 0)
    return sorted(dict.fromkeys(rows), key=key)
