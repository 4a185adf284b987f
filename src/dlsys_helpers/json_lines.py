"""The learner's own files: one JSON object per line, in ``my-work/`` or where DLSYS_PROGRESS says.

A line is appended under a lock with a single write, so a crash or a second notebook never damages
earlier lines. ``DLSYS_PROGRESS`` names another folder; with ``off`` nothing is stored. These files
are a convenience: a failure here is reported once and never stops a lesson. Only the learner may
read them.
"""

import errno
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

from dlsys_helpers import paths

try:
    from fcntl import LOCK_EX, LOCK_UN, flock
except ModuleNotFoundError:  # Windows
    import msvcrt

    LOCK_EX, LOCK_UN = msvcrt.LK_LOCK, msvcrt.LK_UNLCK

    def flock(file, how):
        msvcrt.locking(file.fileno(), how, 1)  # OSError when it was not free for ten seconds

MODE = 0o600

notes_given = set()


class Store:
    """One such file: its name, its contents, and which entries are valid.

    ``valid`` judges a dict; a line that it refuses counts as damage.
    """

    def __init__(self, name: str, what: str, valid: Callable[[dict], bool]) -> None:
        self.name, self.what, self.valid = name, what, valid

    def path(self) -> Path | None:
        """The file, or None when ``DLSYS_PROGRESS=off``."""
        setting = os.environ.get("DLSYS_PROGRESS", "")
        if setting.lower() == "off":
            return None
        return Path(setting or paths.MY_WORK) / self.name

    def append(self, *entries: dict) -> None:
        """Append whole entries with one write. Never raises OSError."""
        path = self.path()
        if path is None or not entries:
            return
        try:
            with _locked(path):
                _append(path, _lines(entries))
        except OSError as error:
            _note(
                f"{self.what} was not saved in {path.parent} ({error.strerror}). Your work is not "
                "touched. Free some space or make the folder writable, or set DLSYS_PROGRESS "
                "to another folder."
            )

    def entries(self) -> list[dict]:
        """All readable entries, oldest first. A damaged file is set aside, its good lines kept."""
        path = self.path()
        try:
            good, bad = self._parse(path.read_bytes()) if path else ([], 0)
        except FileNotFoundError:
            return []
        except OSError as error:
            _note(f"{self.what} cannot be read from {path} ({error.strerror}); "
                  "it counts as empty.")
            return []
        if bad:
            self._set_aside(path)
        return good

    def _parse(self, data: bytes) -> tuple[list[dict], int]:
        """The readable entries and the number of lines that are not entries."""
        found = [self._entry(line) for line in data.split(b"\n") if line]
        good = [entry for entry in found if entry]
        return good, len(found) - len(good)

    def _entry(self, line: bytes) -> dict | None:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return entry if isinstance(entry, dict) and self.valid(entry) else None

    def _set_aside(self, path: Path) -> None:
        """Keep the damaged file under a new name and go on with its good lines."""
        try:
            with _locked(path):
                data = path.read_bytes()
                good, bad = self._parse(data)
                if not bad:
                    return  # seen while another notebook was writing, or repaired by it
                aside = _write_new(path, data)
                _replace(path, good)
        except OSError as error:
            _note(f"{path} is damaged and could not be mended ({error.strerror}).")
            return
        _note(
            f"{bad} unreadable line(s) in {path.name}: the file is kept as {aside.name}, "
            f"the {len(good)} good line(s) stay. Nothing to do."
        )


def _lines(entries) -> bytes:
    return b"".join((json.dumps(entry) + "\n").encode() for entry in entries)


def _append(path: Path, lines: bytes) -> None:
    """Append with one write and fsync; a short write is undone by truncating."""
    with open(path, "ab+", buffering=0, opener=_private) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        if file.read(1) not in (b"", b"\n"):
            lines = b"\n" + lines  # after an incomplete line, begin a new one
        if os.write(file.fileno(), lines) != len(lines):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())


@contextmanager
def _locked(path: Path):
    """Hold the file's lock, which is a separate file so that the store can be replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "ab") as lock:
        flock(lock, LOCK_EX)
        try:
            yield
        finally:
            flock(lock, LOCK_UN)


def _private(path: str, flags: int) -> int:
    """An opener for `open` whose new files only the learner can read."""
    return os.open(path, flags, MODE)


def _write_new(path: Path, data: bytes) -> Path:
    """Write data next to path under the first free name, such as ``.progress.damaged-N.jsonl``."""
    number = 1
    while True:
        aside = path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")
        try:
            with open(aside, "xb", opener=_private) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            return aside
        except FileExistsError:
            number += 1


def _replace(path: Path, good: list[dict]) -> None:
    fresh = path.with_suffix(".new")
    with open(fresh, "wb", opener=_private) as file:
        file.write(_lines(good))
        file.flush()
        os.fsync(file.fileno())
    for pause in (0.1, 1):
        with suppress(PermissionError):  # Windows refuses while another notebook reads the file
            return os.replace(fresh, path)
        time.sleep(pause)
    os.replace(fresh, path)


def _note(text: str) -> None:
    """Print the note once per process: repeated at every check, it would hide the feedback."""
    if text not in notes_given:
        notes_given.add(text)
        print(f"Note: {text}", file=sys.stderr)
