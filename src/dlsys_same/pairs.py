"""Pairs of programs that must agree, from a command line or a file. Torch is not imported here."""

from __future__ import annotations

import shlex
import sys
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path


class SameError(Exception):
    """Says what keeps two programs from being compared, and what to do about it."""


@dataclass(frozen=True)
class Pair:
    """Two programs that must agree. Paths count from `folder`. Raises SameError for bad values."""

    first: str
    second: str
    name: str = ""
    steps: int = 3               # optimizer steps that are compared
    after: int = 0               # steps that the first makes before the second begins
    whole: bool = False          # let both run to their end, for the evaluation that follows
    limit: float = 600.0         # seconds for one run
    folder: Path = Path(".")

    def __post_init__(self):
        for name, least in (("steps", 1), ("after", 0)):
            got = getattr(self, name)
            if type(got) is not int or got < least:
                raise SameError(f"{name}: got {got!r}, expected a whole number, at least {least}.")
        for name, kind in (("first", str), ("second", str), ("name", str), ("whole", bool)):
            if not isinstance(getattr(self, name), kind):
                raise SameError(f"{name}: got {getattr(self, name)!r}, expected a {kind.__name__}.")
        if not isinstance(self.limit, int | float) or not self.limit > 0:
            raise SameError(f"limit: got {self.limit!r}, expected seconds above 0.")
        for command in (self.first, self.second):
            self.look_for(words(command))

    def look_for(self, command: list[str]) -> None:
        """Raises SameError for a missing script, before any of the three runs starts."""
        script = command[1] if command[0] == sys.executable and len(command) > 1 else ""
        if script.endswith(".py") and not (self.folder / script).is_file():
            raise SameError(f"got {script}, expected the file of a script. Check the path.")


def words(command: str) -> list[str]:
    """A command as a list. A script without an interpreter is run by this Python."""
    try:
        found = shlex.split(command)
    except ValueError as error:
        raise SameError(f"got {command!r}, expected a command ({error}). Check its "
                        "quotes.") from None
    if not found:
        raise SameError("got an empty command, expected one such as 'train.py --bs 8'.")
    if found[0].endswith(".py"):
        return [sys.executable, *found]
    return [sys.executable, *found[1:]] if found[0] in ("python", "python3") else found


def read(file: Path) -> list[Pair]:
    """The pairs of a file. Raises SameError."""
    if file.suffix != ".toml":
        raise SameError(f"got one command, {str(file)!r}, expected two that must agree, or a file "
                        "of pairs such as same.toml. See: dlsys same --help")
    try:
        found = tomllib.loads(file.read_text("utf-8")).get("pair")
    except OSError as error:
        raise SameError(f"{file}: {error.strerror}. Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SameError(f"{file} is not valid TOML: {error}.") from None
    if not isinstance(found, list) or not found:
        raise SameError(f"{file}: got no [[pair]], expected one or more, with first and second.")
    return [pair_of(file, place, table) for place, table in enumerate(found, 1)]


def pair_of(file: Path, place: int, table: dict) -> Pair:
    known = {field.name for field in fields(Pair)} - {"folder"}
    if wrong := set(table) - known:
        raise SameError(f"{file}, pair {place}: got {min(wrong)!r}, expected some of "
                        f"{', '.join(sorted(known))}.")
    if missing := {"first", "second"} - set(table):
        raise SameError(f"{file}, pair {place}: {min(missing)} is missing.")
    try:
        return Pair(**{"name": f"pair {place}", **table, "folder": file.absolute().parent})
    except SameError as error:
        raise SameError(f"{file}, pair {place}: {error}") from None
