"""Run a notebook's code cells in plain Python, for a GPU machine without Jupyter."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from dlsys_files import run_source

LESSON = "lesson"  # the module of a notebook's functions
ON_GPU = "used-on-gpu"  # tag of a cell of any role that the GPU section builds on


def run_cells(path: Path, roles: Collection[str] = ()) -> dict[str, Any]:
    """Run the cells of these roles (all if none is given), in order; returns their names.

    Cells tagged ON_GPU run with those of role "gpu". A cell's error ends the run and is raised
    unchanged.
    """
    # torch.compile looks up its guards' names in a function's `__module__`.
    module = sys.modules[LESSON] = ModuleType(LESSON)
    module.display = print
    names = vars(module)
    for n, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        if cell["cell_type"] == "code" and _wanted(cell["metadata"], roles):
            start = time.perf_counter()
            value = run_cell(_plain("".join(cell["source"])), f"<{path.name} cell {n}>", names)
            if value is not None:
                print(value)
            print(f"[{path.name} cell {n}: {time.perf_counter() - start:.2f} s]", flush=True)
    return names


def run_cell(source: str, name: str, names: dict[str, Any]) -> Any:
    """Run one cell; returns the value of its last line if that is an expression, else None.

    Remembers the source under `name`, where triton.jit and gpu_result find it.
    """
    run_source.remember(source, name)
    return run_source.run(source, name, lambda code: eval(code, names))


def _wanted(metadata: dict[str, Any], roles: Collection[str]) -> bool:
    return (not roles or metadata.get("dlsys", {}).get("role") in roles
            or ("gpu" in roles and ON_GPU in metadata.get("tags", [])))


def _plain(source: str) -> str:
    """The cell with empty lines for magics and shell commands, so line numbers stay."""
    return "\n".join("" if line.startswith(("%", "!")) else line for line in source.split("\n"))
