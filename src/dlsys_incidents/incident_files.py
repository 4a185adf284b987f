"""The incidents as data: cases/*.toml with the texts, recorded.json with what was measured.

A text names a measured number as {name}, with a format such as {healthy:.2f}. An incident that
names a number or curve that was never recorded fails loudly.
"""

import hashlib
import json
import random
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("cases")
RECORDED = Path(__file__).with_name("recorded.json")
ORDER = ("restart", "throughput", "launch", "quantization", "preference", "memory")
BUDGET = 120  # GPU hours for one search
DOLLARS = 2.5  # per hour of a rented GPU
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


class Curve(NamedTuple):
    """Lines over one axis. lines: name -> values."""

    title: str
    axis: str
    x: list[float]
    lines: dict[str, list[float]]


class Probe(NamedTuple):
    """A question that costs GPU hours. shows: its answer; lines of a log keep their breaks."""

    id: str
    does: str
    hours: int
    shows: str
    curves: tuple[Curve, ...]


class Cause(NamedTuple):
    """A plausible cause. against: why it is wrong. probe: which probe shows that.

    also: other probes that rule it out. shown_by: for the right cause, the probes that show it.
    """

    id: str
    says: str
    against: str
    probe: str
    also: tuple[str, ...] = ()
    shown_by: tuple[str, ...] = ()

    @property
    def ruled_out_by(self) -> set[str]:
        return {self.probe, *self.also} - {""}


class Step(NamedTuple):
    """One probe of an expert's search: what was believed before it, and what was left after it."""

    probe: str
    believes: str
    left: str


class Source(NamedTuple):
    """A public text that an incident is based on, and what it says, in our words."""

    title: str
    address: str
    says: str


@dataclass(frozen=True)
class Incident:
    """One incident. causes: the first is right."""

    id: str
    title: str
    situation: tuple[str, ...]
    chat: tuple[tuple[str, str], ...]
    bill: str
    curves: tuple[Curve, ...]
    probes: tuple[Probe, ...]
    causes: tuple[Cause, ...]
    expert: tuple[Step, ...]
    why: str
    repair: str
    sources: tuple[Source, ...]

    @property
    def number(self) -> int:
        return 1 + ORDER.index(self.id)

    @property
    def digest(self) -> str:
        """A hash of what decides a search; a search of another version cannot be continued."""
        seen = repr([(probe.id, probe.hours) for probe in self.probes]) + repr(
            [cause.id for cause in self.causes])
        return hashlib.sha256(seen.encode()).hexdigest()[:12]

    @property
    def listed(self) -> list[Cause]:
        """The causes in an order that gives nothing away."""
        return random.Random(f"{self.id} {self.digest}").sample(self.causes, len(self.causes))

    @property
    def expert_hours(self) -> int:
        return sum(self.probe(step.probe).hours for step in self.expert)

    def probe(self, name: str) -> Probe:
        """The probe with this id. Raises KeyError."""
        return {probe.id: probe for probe in self.probes}[name]

    def cause(self, name: str) -> Cause:
        """The cause with this id. Raises KeyError."""
        return {cause.id: cause for cause in self.causes}[name]


def gpu_hours(count: int) -> str:
    return f"{count} GPU hour{'' if count == 1 else 's'}"


@cache
def recorded() -> dict[str, dict]:
    """What was measured: {incident: {"numbers": ..., "curves": ...}}."""
    return json.loads(RECORDED.read_text("utf-8"))


@cache
def incidents() -> dict[str, Incident]:
    """All incidents by id, in the order of ORDER."""
    return {name: _incident(name, tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8")))
            for name in ORDER}


def _incident(name: str, row: dict) -> Incident:
    measured = recorded()[name]

    def filled(text: str) -> str:
        return text.strip("\n").format(**measured["numbers"])

    def curves(rows: list[list[str]]) -> tuple[Curve, ...]:
        return tuple(_curve(measured["curves"][key], title, axis) for key, title, axis in rows)

    probes = tuple(Probe(one["id"], one["does"], one["hours"], filled(one["shows"]),
                         curves(one.get("curves", []))) for one in row["probe"])
    causes = tuple(Cause(one["id"], one["says"], filled(one.get("against", "")),
                         one.get("probe", ""), tuple(one.get("also", ())),
                         tuple(one.get("shown_by", ()))) for one in row["cause"])
    steps = tuple(Step(one["probe"], one["believes"], filled(one["left"])) for one in row["expert"])
    sources = tuple(Source(one["title"], one["address"], one["says"]) for one in row["source"])
    return Incident(name, row["title"], tuple(map(filled, row["situation"])),
                    tuple((who, filled(says)) for who, says in row["chat"]), filled(row["bill"]),
                    curves(row["curves"]), probes, causes, steps, filled(row["why"]),
                    filled(row["repair"]), sources)


def _curve(measured: dict, title: str, axis: str) -> Curve:
    lines = {name: values for name, values in measured.items() if name != "x"}
    return Curve(title, axis, measured["x"], lines)
