"""The answers of `dlsys placement`, in ``my-work/.placement.jsonl``."""

from datetime import UTC, datetime

from dlsys_helpers.json_lines import Store

# run: which one of the learner's placements. options: to choose from, 0 for a number.
STORE = Store(".placement.jsonl", "Your placement", lambda entry: (
    isinstance(entry.get("id"), str) and type(entry.get("run")) is int and entry["run"] > 0
    and all(isinstance(entry.get(name), bool) for name in ("right", "sure", "skipped"))
    and type(entry.get("options")) is int and 0 <= entry["options"] < 10))
END = "end"  # the id of the line that ends a placement


def record(id: str, *, run: int, right: bool = False, sure: bool = False, skipped: bool = False,
           options: int = 0, told: str = "") -> dict:
    """Append one answer and return it. Never raises OSError.

    told: for a wrong or skipped answer, the question, the right answer, and why.
    """
    entry = {"id": id, "run": run, "right": right, "sure": sure, "skipped": skipped,
             "options": options, "told": told,
             "time": datetime.now(UTC).isoformat(timespec="seconds")}
    STORE.append(entry)
    return entry


def end(run: int) -> None:
    """Append the line that ends a placement."""
    record(END, run=run)


def wrong() -> list[dict]:
    """The answers of all placements that were wrong or skipped."""
    return [entry for entry in STORE.entries() if entry["id"] != END and not entry["right"]]
