"""The timeline of two ranks that lesson 15 reads, recorded by tools/timeline.py."""

import json
from pathlib import Path
from typing import NamedTuple

PATH = Path(__file__).parent / "two_ranks.json"


class Event(NamedTuple):
    """A bar of a timeline. start, end: ms, on a clock that all ranks share."""

    rank: int
    lane: str   # "compute" or "network"
    name: str   # a "network" event has the same name on every rank
    start: float
    end: float


def recorded_timeline() -> list[Event]:
    """Four steps of two ranks, in order of rank and start; operations lie inside their phase."""
    rows = json.loads(PATH.read_text("utf-8"))["events"]
    return [Event(rank, lane, name, start / 1000, end / 1000)
            for rank, lane, name, start, end in rows]
