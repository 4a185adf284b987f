"""What a learner paid: each look of a notebook, and what checks refused; and how an exam ended.

The grader has no ledger.

A refused name stands in the progress file beside the row that refused it, so that a check from the
terminal costs what one in the notebook does.
"""

from __future__ import annotations

from datetime import UTC, datetime

from dlsys_checks.exam import sheet
from dlsys_helpers import progress
from dlsys_helpers.json_lines import Store

STORE = Store(".exam.jsonl", "What you paid", lambda entry: (
    type(entry.get("sheet")) is int and type(entry.get("case")) is int
    and (isinstance(entry.get("paid"), str) or isinstance(entry.get("missed"), list))))
_HERE: list[dict] = []  # where nothing is kept: what was paid in this session

WRONG = {"faults": "wrong name", "evidence": "wrong evidence"}  # by the law that was broken


def pay(number: int, case: int, what: str) -> None:
    """Note a look."""
    _note({"sheet": number, "case": case, "paid": what})


def end(number: int, case: int, missed: list[str]) -> None:
    """Note that a learner was told a case, and the faults not named by then; once."""
    if not is_told(number, case):
        now = datetime.now(UTC).isoformat(timespec="seconds")
        _note({"sheet": number, "case": case, "missed": missed, "time": now})


def is_told(number: int, case: int) -> bool:
    """Whether a learner was told what is planted in a case."""
    return any((entry["sheet"], entry["case"]) == (number, case) for entry in _entries()
               if "missed" in entry)


def missed() -> list[dict]:
    """For each fault that was not named when its exam ended: the trap's `id`, and the `time`."""
    return [{"id": id, "time": entry.get("time")} for entry in _entries()
            for id in entry.get("missed", ())]


def _note(entry: dict) -> None:
    STORE.append(entry)
    if STORE.path() is None:
        _HERE.append(entry)


def _entries() -> list[dict]:
    return STORE.entries() if STORE.path() else _HERE


def paid(number: int, case: int) -> list[str]:
    """What was looked at, and a line for each wrong name or evidence that a check refused."""
    mine = dict.fromkeys(entry["paid"] for entry in _entries() if "paid" in entry
                         and (entry["sheet"], entry["case"]) == (number, case))
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
