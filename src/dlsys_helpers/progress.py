"""The store of what the learner has solved.

The store is ``my-work/.progress.jsonl``, one JSON object a line, appended under a lock with a
single write, so that a crash or a second notebook costs nothing that was already written.
``DLSYS_PROGRESS`` names another folder; the value ``off`` keeps nothing. Progress is a
convenience: no failure here ever stops a check, it is said once and the lesson goes on.
"""

import errno
import fcntl
import json
import os
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from dlsys_helpers import paths

_said = set()


def store() -> Path | None:
    """The progress file, or None when ``DLSYS_PROGRESS=off``."""
    setting = os.environ.get("DLSYS_PROGRESS", "")
    if setting.lower() == "off":
        return None
    return Path(setting or paths.MY_WORK) / ".progress.jsonl"


def record(id: str, status: str, misconception: str | None = None) -> None:
    """Append one verdict (``pass``, ``todo``, ``wrong``, ``error``). Never raises OSError."""
    path = store()
    if path is None:
        return
    when = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"id": id, "status": status, "misconception": misconception, "time": when}
    line = (json.dumps(entry) + "\n").encode()
    try:
        with _locked(path):
            _append(path, line)
    except OSError as error:
        _note(
            f"Progress was not saved in {path.parent} ({error.strerror}). Your work is not "
            "touched. Free some space or make the folder writable, or set DLSYS_PROGRESS "
            "to another folder."
        )


def entries() -> list[dict]:
    """All readable verdicts, oldest first. A damaged file is set aside, its good lines kept."""
    path = store()
    try:
        good, bad = _parse(path.read_bytes()) if path else ([], 0)
    except FileNotFoundError:
        return []
    except OSError as error:
        _note(f"Progress cannot be read from {path} ({error.strerror}); it counts as empty.")
        return []
    if bad:
        _set_aside(path)
    return good


def solved() -> set[str]:
    """Ids that passed at least once."""
    return {entry["id"] for entry in entries() if entry["status"] == "pass"}


def _append(path: Path, line: bytes) -> None:
    """One write of one whole line, on disk when this returns; a short write is taken back."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line  # a torn line before this one costs only itself
        if os.write(fd, line) != len(line):
            os.ftruncate(fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _locked(path: Path):
    """Hold the folder's lock. It is a file of its own, so that the store can be replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _parse(data: bytes) -> tuple[list[dict], int]:
    """The readable entries and the number of lines that are not entries."""
    found = [_entry(line) for line in data.split(b"\n") if line]
    good = [entry for entry in found if entry]
    return good, len(found) - len(good)


def _entry(line: bytes) -> dict | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    fields = isinstance(entry, dict) and (entry.get("id"), entry.get("status"))
    return entry if fields and all(isinstance(field, str) for field in fields) else None


def _set_aside(path: Path) -> None:
    """Keep the damaged file under a new name and go on with its good lines."""
    try:
        with _locked(path):
            data = path.read_bytes()
            good, bad = _parse(data)
            if not bad:
                return  # seen while another notebook was writing, or mended by it
            aside = _write_new(path, data)
            _replace(path, good)
    except OSError as error:
        _note(f"{path} is damaged and could not be mended ({error.strerror}).")
        return
    _note(
        f"{bad} unreadable line(s) in {path.name}: the file is kept as {aside.name}, "
        f"the {len(good)} good line(s) stay. Nothing to do."
    )


def _write_new(path: Path, data: bytes) -> Path:
    """Write data beside path under the first free name ``.progress.damaged-N.jsonl``."""
    number = 1
    while True:
        aside = path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")
        try:
            with open(aside, "xb") as file:
                file.write(data)
                os.fsync(file.fileno())
            return aside
        except FileExistsError:
            number += 1


def _replace(path: Path, good: list[dict]) -> None:
    fresh = path.with_suffix(".new")
    with open(fresh, "wb") as file:
        file.writelines((json.dumps(entry) + "\n").encode() for entry in good)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def _note(text: str) -> None:
    """Say it once in this process; a note that repeats at every check hides the feedback."""
    if text not in _said:
        _said.add(text)
        print(f"Note: {text}", file=sys.stderr)
