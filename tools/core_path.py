"""Run each stage's core path alone, as `dlsys start --core` copies it, and record that it ran.

    python -m tools.core_path        the stages whose record is stale; 05 for one

The tests check that the record in tests/records/core.json is of today's cells, and run only one
path themselves, because all of them take five minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import papermill
from nbformat import NotebookNode

from dlsys import reading_time
from dlsys_helpers import catalog
from dlsys_helpers.paths import NOTEBOOKS
from tools import fingerprints, install_cell
from tools.records import Record

RECORD = Record("core.json", done="run alone",
                renew="make finish LESSON={key:.2}")


def lessons() -> list[Path]:
    return [NOTEBOOKS / f"{stage.stem}.ipynb" for stage in catalog.written()]


def core(path: Path) -> NotebookNode:
    """The lesson's core path, without explorers, which no cell uses."""
    book = nbformat.read(path, as_version=4)
    book.cells = [c for c in reading_time.core(book.cells) if c.metadata.dlsys.role != "explore"]
    return book


def traps(book: NotebookNode) -> set[str]:
    return {c.metadata.dlsys.trap for c in book.cells if "trap" in c.metadata.dlsys}


def is_short(path: Path) -> bool:
    """Whether the path leaves out a trap; otherwise it is the whole lesson, which nbval runs."""
    return traps(core(path)) != traps(nbformat.read(path, as_version=4))


def execute(book: NotebookNode, **parameters) -> NotebookNode:
    """Run a notebook in a fresh kernel; raises at the first cell that fails."""
    return papermill.execute_notebook(book, None, parameters, kernel_name="python3",
                                      cwd=str(NOTEBOOKS), progress_bar=False,
                                      request_save_on_cell_execute=False)


def run(path: Path) -> NotebookNode:
    """Run the core path alone."""
    return execute(core(path), DEVICE="cpu")


def rests_on(path: Path) -> dict[str, str]:
    """Fingerprints of everything that decides whether the path runs."""
    return fingerprints.rests_on({f"cell {c.id}": c.source for c in core(path).cells
                                  if c.cell_type == "code" and not install_cell.is_install(c)})


def stale(path: Path) -> str:
    """Why the record of a core path does not count, with the command that renews it; "" if it does.

    Also "" if the path leaves out no trap: then it is the whole lesson, which other tests run.
    """
    why = RECORD.stale(path.stem, rests_on(path)) if is_short(path) else ""
    return f"core path of {why}" if why else ""


def main() -> None:
    asked = {one.zfill(2) for one in sys.argv[1:]}
    for path in filter(is_short, lessons()):
        if path.stem[:2] in asked or (not asked and stale(path)):
            run(path)
            short = [lesson.stem for lesson in lessons() if is_short(lesson)]
            RECORD.write(path.stem, rests_on(path), {}, wanted=short)
            print(f"{path.stem}: its core path runs alone", flush=True)


if __name__ == "__main__":
    main()
