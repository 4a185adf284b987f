"""What happened to a sheet: looks that were paid, names that were tried, what was told at the end.

A learner's own record is in my-work/; a class's is in the folder of its server. Each entry names
the sheet by number and ticket.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from dlsys_helpers.json_lines import Store

TRIES = 2  # names for a case


def _whole(entry: dict) -> bool:
    missed = entry.get("missed", [])
    return (type(entry.get("sheet")) is int and type(entry.get("case")) is int
            and type(entry.get("ticket", "")) is str
            and isinstance(missed, list) and all(isinstance(id, str) for id in missed)
            and ("missed" in entry or any(
                isinstance(entry.get(kind), str) for kind in ("paid", "said", "begun"))))


STORE = Store(".exam.jsonl", "What you paid", _whole)


@dataclass(frozen=True)
class Happened:
    """What happened to one case: what was bought, each name that was tried, the end.

    free: of `paid`, the parts that were read after the right name. They cost nothing, so that a
    fix never costs points.
    """

    paid: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # as they were understood, in their order
    said: tuple[str, ...] = ()  # as they were written
    over: bool = False
    free: tuple[str, ...] = ()

    @property
    def charged(self) -> tuple[str, ...]:
        """What counts towards the price."""
        return tuple(word for word in self.paid if word not in self.free)

    def tried_out(self, right: str) -> bool:
        """Whether no further name counts."""
        return right in self.names or len(self.names) >= TRIES or self.over


def happened(entries: Iterable[dict], number: int, ticket: str, case: int) -> Happened:
    """What the entries say of a case."""
    mine = [entry for entry in entries if entry.get("sheet") == number
            and entry.get("ticket") == ticket and entry.get("case") in (case, 0)]
    named = [entry for entry in mine if "said" in entry and entry["case"] == case]
    return Happened(
        tuple(dict.fromkeys(entry["paid"] for entry in mine
                            if "paid" in entry and entry["case"] == case)),
        tuple(str(entry.get("heard", "")) for entry in named),
        tuple(entry["said"] for entry in named), any("missed" in entry for entry in mine),
        tuple(entry["paid"] for entry in mine if entry.get("free") is True and "paid" in entry))


def now() -> str:
    """The time of an entry."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def missed() -> list[dict]:
    """For each fault that was not named when its exam ended: the trap's `id`, and the `time`."""
    return [{"id": id, "time": entry.get("time")} for entry in STORE.entries()
            for id in entry.get("missed", ())]
