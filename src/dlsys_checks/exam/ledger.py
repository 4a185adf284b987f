"""What a learner paid: each look of a notebook, and what checks refused. The grader has no ledger.

A refused name stands in the progress file beside the row that refused it, so that a check from the
terminal costs what one in the notebook does.
"""

from __future__ import annotations

from dlsys_checks.exam import sheet
from dlsys_helpers import progress
from dlsys_helpers.store import Store

STORE = Store(".exam.jsonl", "What you paid", lambda entry: (
    type(entry.get("sheet")) is int and type(entry.get("case")) is int
    and isinstance(entry.get("paid"), str)))
_HERE: list[dict] = []  # where nothing is kept: what was paid in this session

WRONG = {"faults": "wrong name", "evidence": "wrong evidence"}  # by the law that was broken


def pay(number: int, case: int, what: str) -> None:
    """Note a look."""
    entry = {"sheet": number, "case": case, "paid": what}
    STORE.append(entry)
    if STORE.path() is None:
        _HERE.append(entry)


def paid(number: int, case: int) -> list[str]:
    """What was looked at, and a line for each wrong name or evidence that a check refused."""
    looks = STORE.entries() if STORE.path() else _HERE
    mine = dict.fromkeys(entry["paid"] for entry in looks
                         if (entry["sheet"], entry["case"]) == (number, case))
    rows = {one.id for one in sheet.traps(number) if one.function == f"case_{case}"}
    refused = {entry["misconception"] for entry in progress.entries()
               if entry["id"] in rows and entry.get("misconception")}
    return [*mine, *sorted(cost_of(mistake) for mistake in refused)]


def mistake(law: str, got: str, names: dict[str, str]) -> str:
    """What is remembered of a refusal that costs; "" for another. names: of the faults, by id."""
    if law == "faults":
        return " and ".join(f"{id} {names[id]}" for id in got.split(", "))
    return f"evidence: {got}" if law == "evidence" else ""


def cost_of(mistake: str) -> str:
    """The word for such a mistake in the line `paid`."""
    return WRONG["evidence" if mistake.startswith("evidence: ") else "faults"]
