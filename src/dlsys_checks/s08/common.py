"""What the exercises of stage 8 share: how a message shows what 32 threads do."""

from __future__ import annotations

from itertools import groupby

from dlsys_helpers.expect import show


def brief(values):
    """A list in few words: even steps as "0, 4 to 124", repeats as "31 x a", else its start."""
    steps = {b - a for a, b in zip(values, values[1:])} if all(
        type(v) is int for v in values) else set()
    if len(values) > 3 and len(steps) == 1 and steps != {0}:
        return f"[{values[0]}, {values[1]} to {values[-1]}]"
    runs = [(key, len(list(run))) for key, run in groupby(values)]
    if len(runs) < len(values) - 3:
        return show([f"{count} x {key}" for key, count in runs]).replace("'", "")
    return show(values)
