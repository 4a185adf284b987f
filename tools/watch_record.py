"""The findings of `dlsys watch` in its recorded runs of lessons and of faults without a trap."""

from __future__ import annotations

import functools

import yaml

from dlsys_helpers.paths import ROOT
from tools.records import Record

LESSONS = Record("watch_lessons.json", done="run under the watch",
                 renew=".venv/bin/python -m benchmarks.watch_lessons {key}")
NEIGHBOURS = ROOT / "book" / "neighbours.yml"


@functools.cache
def findings() -> dict[str, list[dict]]:
    """The findings in the recorded runs of the lessons, by trap, without those in other cells."""
    found: dict[str, list[dict]] = {}
    for lesson in LESSONS.entries().values():
        for row in lesson["findings"]:
            stage, number, *_ = f"{row['cell']}--".split("-")
            if row["trap"] == f"{stage}.{number}":
                found.setdefault(row["trap"], []).append(row)
    return found


@functools.cache
def neighbours() -> list[dict]:
    """The faults that no trap teaches, each with the trap next to it."""
    return yaml.safe_load(NEIGHBOURS.read_text("utf-8"))


def detection(neighbour: dict) -> str:
    """A sentence that says by which rule the watch detects a neighbour, or why it cannot."""
    if rules := neighbour.get("rules"):
        return f"`dlsys watch` says {' or '.join(f'`{rule}`' for rule in rules)}."
    return f"`dlsys watch` cannot tell: {neighbour['why']}."
