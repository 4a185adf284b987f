"""The gallery's record, and which instruments show a fault: computed, never written.

`make gallery` makes the record; nothing here trains.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from dlsys_model.faults import BY_KEY, Fault

RECORD = Path(__file__).parent / "recorded" / "gallery.json"
# Standard deviations of healthy runs that the band goes to either side of their mean. A number that
# is read once, at five seeds, says little about its spread, and no second reading confirms it.
SPREADS, SPREADS_ONCE = 3, 5
LEAST = 0.01  # and at least this share of the mean: a count may not vary at all


class Instrument(NamedTuple):
    """name: as readers see it. unit: of its readings. step: from one reading to the next; 0 for
    a number of the delivered model, read once.
    """

    name: str
    unit: str
    step: int


INSTRUMENTS = {
    "loss": Instrument("training loss", "nats a letter, mean of 20 steps", 20),
    "validation": Instrument("validation loss", "nats a letter, as the program says it", 50),
    "norm": Instrument("gradient norm", "before clipping, mean of 20 steps", 20),
    "moved": Instrument("weights that move", "thousands that a step changes", 50),
    "ratio": Instrument("update over weights", "norm of the change over that of the weights", 50),
    "work": Instrument("work", "MFLOP of a step", 50),
    "memory": Instrument("memory", "kB of gradients, optimizer and kept activations", 50),
    "delivered": Instrument("loss in use", "nats a letter, of the model in 4 bits", 0),
    "adapted": Instrument("loss with its adapter", "nats a letter, on the text in capitals", 0),
}
CURVES = tuple(name for name, one in INSTRUMENTS.items() if one.step)
NUMBERS = tuple(name for name, one in INSTRUMENTS.items() if not one.step)


class Seen(NamedTuple):
    """How an instrument leaves the healthy band: from which step on (0: in use), above or not."""

    step: int
    above: bool


# ---- from runs to findings: `make gallery` condenses its runs with these

def band(runs: list[dict], name: str) -> list[tuple[float, float]]:
    """Lowest and highest of an instrument at each reading, from two or more healthy runs.

    The spread is relative to the mean and the same for all readings of an instrument: five runs are
    too few to estimate it for each.
    """
    rows = list(zip(*(readings(run, name) for run in runs), strict=True))
    means = [fmean(values) for values in rows]
    squares = [(value / mean - 1) ** 2 for values, mean in zip(rows, means, strict=True)
               for value in values]
    wide = SPREADS if INSTRUMENTS[name].step else SPREADS_ONCE
    more = max(wide * (sum(squares) / len(rows) / (len(runs) - 1)) ** 0.5, LEAST)
    return [(mean * (1 - more), mean * (1 + more)) for mean in means]


def readings(run: dict, name: str) -> list[float | None]:
    """All readings of an instrument in a run; a number of the delivered model is a list of one."""
    return run["curves"][name] if INSTRUMENTS[name].step else [run[name]]


def seen(run: dict, name: str, within: list[tuple[float, float]]) -> Seen | None:
    """Where a run leaves the band: for two readings in a row, or at its last one.

    A run that ended early delivers nothing, and that shows.
    """
    step = INSTRUMENTS[name].step
    sides = [side(*pair) for pair in zip(readings(run, name), within, strict=False)]
    for place, which in enumerate(sides):
        if which and which in (sides[place + 1:] or [which])[:1]:
            return Seen(step * (place + 1), which > 0)
    return None


def side(value: float | None, limits: tuple[float, float]) -> int:
    """0 inside the band, 1 above it, -1 below; what is not finite is above."""
    return 1 if value is None or value > limits[1] else -1 if value < limits[0] else 0


def shown(run: dict, bands: dict[str, list[tuple[float, float]]]) -> dict[str, Seen]:
    """The instruments that show that a run is not healthy, by name."""
    found = {name: seen(run, name, bands[name]) for name in INSTRUMENTS}
    return {name: where for name, where in found.items() if where}


def agreed(all_shown: list[dict[str, Seen]]) -> dict[str, Seen]:
    """What the runs of all seeds show alike, each from its latest step on."""
    first, *others = all_shown
    return {name: Seen(max(found[name].step for found in all_shown), where.above)
            for name, where in first.items()
            if all(name in o and o[name].above == where.above for o in others)}


# ---- what was recorded

@cache
def record() -> dict:
    """The record: the healthy runs' `run` and `bands`, and of each of `faults` the same run with
    `shown` and its `seeds`. A run keeps the curves that differ from the healthy one's.
    """
    return json.loads(RECORD.read_text("utf-8"))


def recorded() -> list[Fault]:
    """The faults of the record, by trap."""
    return sorted((BY_KEY[key] for key in record()["faults"]), key=lambda one: trap_order(one.trap))


def trap_order(trap: str) -> tuple[int, ...]:
    return tuple(map(int, trap.split(".")))


def findings(key: str) -> dict[str, Seen]:
    """The instruments that show a fault at every recorded seed, in the order of INSTRUMENTS."""
    found = record()["faults"][key]["shown"]
    return {name: Seen(*found[name]) for name in INSTRUMENTS if name in found}


def curve(key: str, name: str) -> list[float]:
    """The readings of an instrument in the run with a fault, up to the first that is not finite."""
    own = record()["faults"][key]["curves"] if key != "healthy" else {}
    values = own.get(name, record()["healthy"]["curves"][name])
    return values[:values.index(None)] if None in values else values


def limits(name: str) -> tuple[list[float], list[float]]:
    """Lowest and highest of the healthy band at each reading."""
    low, high = zip(*record()["healthy"]["bands"][name], strict=True)
    return list(low), list(high)


def steps(name: str, count: int) -> list[int]:
    """The steps of the first `count` readings of an instrument."""
    every = INSTRUMENTS[name].step
    return [every * (place + 1) for place in range(count)]


def when(where: Seen) -> str:
    return f"{'above' if where.above else 'below'} from step {where.step}"


def ending(key: str) -> str:
    """What ended a run before its last step, or before it delivered; "" for a whole one."""
    whole = record()["healthy"]["curves"]["validation"]
    read = len(record()["faults"][key]["curves"].get("validation", whole))
    early = f"early stopping, step {steps('validation', read)[-1]}" if 0 < read < len(whole) else ""
    return record()["faults"][key]["ended"] or early


def in_numbers(key: str, name: str) -> str:
    """A number of the delivered model, next to its band."""
    (low,), (high,) = limits(name)
    return (f"{INSTRUMENTS[name].name}, {record()['faults'][key][name]:.3g}, healthy {low:.3g} to "
            f"{high:.3g}")


def evidence_of(key: str) -> str:
    """What shows a fault, in a sentence or two without its name."""
    found, ended = findings(key), ending(key)
    curves = [f"{INSTRUMENTS[name].name}, {when(where)}" for name, where in found.items()
              if where.step]
    in_use = [in_numbers(key, name) for name, where in found.items()
              if not where.step and record()["faults"][key][name] is not None]
    parts = [f"It ends by itself: {ended}."] if ended else []
    parts += [f"It shows in: {'; '.join(curves)}."] if curves else []
    parts += [f"In use it shows in: {'; '.join(in_use)}."] if in_use else []
    return " ".join(parts) or "No instrument shows it: all stay within the healthy runs."
