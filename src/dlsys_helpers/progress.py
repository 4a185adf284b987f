"""What the learner has solved and tried: the verdicts in ``my-work/.progress.jsonl``."""

from datetime import UTC, datetime
from pathlib import Path

from dlsys_helpers.store import Store

_STORE = Store(".progress.jsonl", "Progress", lambda entry: all(
    isinstance(entry.get(field), str) for field in ("id", "status")))


def store() -> Path | None:
    """The progress file, or None when ``DLSYS_PROGRESS=off``."""
    return _STORE.path()


def record(id: str, status: str, misconception: str | None = None) -> None:
    """Append one verdict (``pass``, ``todo``, ``wrong``, ``error``). Never raises OSError."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    _STORE.append({"id": id, "status": status, "misconception": misconception, "time": when})


def entries() -> list[dict]:
    """All readable verdicts, oldest first. A damaged file is set aside, its good lines kept."""
    return _STORE.entries()


def failures(id: str) -> int:
    """How often an answer to this exercise was judged and did not pass."""
    return sum(entry["id"] == id and entry["status"] in ("wrong", "error") for entry in entries())


def solved() -> set[str]:
    """Ids that passed at least once."""
    return {entry["id"] for entry in entries() if entry["status"] == "pass"}
