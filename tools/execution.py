"""Run a notebook from its first cell to its last, and name the cell and line that failed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from dlsys_helpers.paths import ROOT

TIMEOUT = 300  # seconds for one cell; a lesson as a whole takes less
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class CellFailed(SystemExit):
    """A cell raised or wrote to stderr; the message names notebook, cell, line and error."""


def run(book: NotebookNode, name: str) -> None:
    """Execute the notebook with this path in place, in its folder. Raises CellFailed."""
    env = {**os.environ, "DLSYS_PROGRESS": "off"}
    client = NotebookClient(book, timeout=TIMEOUT, kernel_name="python3",
                            extra_arguments=["--IPKernelApp.log_level=ERROR"],
                            resources={"metadata": {"path": str((ROOT / name).parent)}})
    try:
        client.execute(env=env)
    except CellExecutionError as failed:
        raise CellFailed(f"{name}, {failure(book) or failed}") from None
    for cell in book.cells:
        noise = [o for o in cell.get("outputs", []) if o.get("name") == "stderr"]
        if noise:
            raise CellFailed(f"{name}, cell {cell['id']}: it writes to stderr: "
                             f"{noise[0].text[:200]!r}. Mend the cause; a lesson is silent.")


def failure(book: NotebookNode) -> str:
    """The cell that raised, its line, and the error's type and text; "" if none did."""
    for cell in book.cells:
        for error in cell.get("outputs", []):
            if error.output_type == "error":
                return (f"cell {cell['id']}{line_of(cell, error)}: {error.ename}: "
                        f"{error.evalue}{raised_in(error)}")
    return ""


def line_of(cell: NotebookNode, error: NotebookNode) -> str:
    """Number and text of the line at which a cell failed; "" if the error does not say.

    A failed claim shows no traceback, but the cell contains its text.
    """
    lines = cell.source.splitlines()
    found = re.search(rf"Cell In\[{cell.execution_count}\], line (\d+)", traceback(error))
    claimed = error.evalue.partition(": got ")[0][:30]
    at = int(found[1]) if found else next(
        (n for n, line in enumerate(lines, 1) if claimed and claimed in line), 0)
    return f", line {at}, `{lines[at - 1].strip()}`" if at else ""


def raised_in(error: NotebookNode) -> str:
    """Where in a file the error was raised; "" if a cell did it."""
    frames = re.findall(r"^(?:File (\S+?):(\d+)|Cell In)", traceback(error), re.M)
    path, line = frames[-1] if frames else ("", "")
    return f" (raised in {Path(path).name}, line {line})" if path else ""


def traceback(error: NotebookNode) -> str:
    return COLOURS.sub("", "\n".join(error.traceback))
