"""Everything a lesson needs; slow imports wait until they are used."""

import importlib
from typing import Any

from dlsys_helpers import without_widgets

without_widgets.stand_in()

# Each public name and its home. Resolved on first use, so that `dlsys start` needs no torch.
_HOMES = {
    "accuracy": "train",
    "begin": "first_cell",
    "claim": "claims",
    "cost": "measure",
    "datasheet": "gpu",
    "device": "gpu",
    "digits": "data",
    "draw_backward": "gradient_graphs",
    "draw_blocks": "diagrams",
    "draw_boxes": "drawings",
    "draw_grids": "drawings",
    "draw_histogram": "number_lines",
    "draw_lanes": "drawings",
    "draw_line": "number_lines",
    "draw_ranks": "diagrams",
    "draw_tree": "diagrams",
    "fit": "train",
    "flops": "measure",
    "gpu_result": "gpu_records",
    "gpu_table": "gpu_records",
    "guess": "guesses",
    "measured": "guesses",
    "new_axes": "plots",
    "operations": "measure",
    "peak_bytes": "measure",
    "plot_bars": "plots",
    "plot_columns": "number_lines",
    "plot_lines": "plots",
    "saved_bytes": "measure",
    "seconds": "measure",
    "seconds_in_turns": "measure",
    "show": "plots",
    "xor_quadrants": "data",
}
# The full name of each home. `check` lives above this package, with the exercises. A worksheet
# imports it from here; the grader's sandbox has no check files, so the grader supplies its own.
HOMES = {name: f"{__name__}.{module}" for name, module in _HOMES.items()}
HOMES["check"] = "dlsys_checks.checking"
__all__ = sorted(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"dlsys_helpers: got {name!r}, expected one of {', '.join(__all__)}.")
    value = getattr(importlib.import_module(HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
