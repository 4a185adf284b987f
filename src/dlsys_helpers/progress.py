"""The learner's verdicts (``my-work/.progress.jsonl``) and guesses (``my-work/.guesses.jsonl``)."""

from datetime import UTC, datetime
from pathlib import Path

from dlsys_helpers.json_lines import Store

_STORE = Store(".progress.jsonl", "Progress", lambda entry: all(
    isinstance(entry.get(field), str) for field in ("id", "status")))

# right: None until it was measured.
GUESSES = Store(".guesses.jsonl", "Your guess", lambda entry: (
    isinstance(entry.get("id"), str) and isinstance(entry.get("sure"), bool)
    and isinstance(entry.get("right"), bool | None)))


def store() -> Path | None:
    """The progress file, or None when ``DLSYS_PROGRESS=off``."""
    return _STORE.path()


def record(id: str, status: str, misconception: str | None = None) -> None:
    """Append one verdict (``pass``, ``todo``, ``wrong``, ``error``). Never raises OSError."""
    _STORE.append({"id": id, "status": status, "misconception": misconception, "time": _now()})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def entries() -> list[dict]:
    """All readable verdicts, oldest first. A damaged file is set aside, its good lines kept."""
    return _STORE.entries()


def failures(id: str) -> int:
    """How often an answer to this exercise was judged and did not pass."""
    return sum(entry["id"] == id and entry["status"] in ("wrong", "error") for entry in entries())


def solved() -> set[str]:
    """Ids that passed at least once."""
    return {entry["id"] for entry in entries() if entry["status"] == "pass"}


def record_guess(id: str, guess: str | float, sure: bool, right: bool | None = None) -> None:
    """Append one guess. Never raises OSError."""
    GUESSES.append({"id": id, "guess": guess, "right": right, "sure": sure, "time": _now()})


def guesses() -> dict[str, dict]:
    """The last guess of each trap, by id. A damaged file is set aside, its good lines kept."""
    return {entry["id"]: entry for entry in GUESSES.entries()
            if isinstance(entry.get("guess"), str | int | float)}
