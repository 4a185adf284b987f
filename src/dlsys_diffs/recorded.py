"""The runs that a reviewer may ask for: recorded, one seed, with and without each change.

`make diffs` writes recorded.json; see tools/diffs.py.
"""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("recorded.json")


class Row(NamedTuple):
    """A number of a run, without and with the change."""

    name: str
    before: float | str
    after: float | str


@cache
def all_of() -> dict:
    """The file: {"before": runs, "after": {case: what differs}}."""
    return json.loads(FILE.read_text("utf-8"))


def stopped(case: str, run: str) -> str:
    """Why the run stopped with the change; "" where it did not."""
    return all_of()["after"][case][run].get("stopped", "")


def numbers(case: str, run: str) -> list[Row]:
    """Every number of a run, in its order."""
    plain, changed = all_of()["before"][run]["numbers"], all_of()["after"][case][run]
    other = plain | changed.get("numbers", {})
    return [Row(name, plain.get(name, "-"), value) for name, value in other.items()]


def curves(case: str, run: str) -> dict[str, tuple[list[float], list[float]]]:
    """Every curve of a run, without and with the change."""
    plain, changed = all_of()["before"][run]["curves"], all_of()["after"][case][run]
    return {name: (values, changed.get("curves", {}).get(name, values))
            for name, values in plain.items()}
