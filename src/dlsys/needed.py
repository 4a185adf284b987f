"""Which packages the course needs, which versions of them were tried, and which are here."""

import importlib.metadata as metadata
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from dlsys_files import locations
from dlsys_helpers import paths

PACKAGE = "dlsys-helpers"
_LINE = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?\s*(?:[>=]=\s*([\w.]+))?")


class Needed(NamedTuple):
    """A package by name, the lowest version that was tried, and the one that is installed here."""

    name: str
    floor: str
    here: str | None

    @property
    def line(self) -> str:
        """As pip takes it."""
        return f"{self.name}>={self.floor}" if self.floor else self.name

    @property
    def too_old(self) -> bool:
        return bool(self.here and self.floor and numbers(self.here) < numbers(self.floor))

    def untried(self, last: str | None) -> bool:
        """Whether the version here is older than the first that was tried, or newer than `last`."""
        return self.too_old or bool(self.here and last and numbers(self.here) > numbers(last))


def project() -> dict:
    """pyproject's [project] table; for a wheel, its copy; for bare sources, an empty one."""
    path = paths.ROOT / "pyproject.toml"
    if path.exists():
        return tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    try:
        lines, said = metadata.requires(PACKAGE) or [], metadata.metadata(PACKAGE)
    except metadata.PackageNotFoundError:
        return {"requires-python": "", "dependencies": [], "optional-dependencies": {}}
    extras: dict[str, list[str]] = {name: [] for name in said.get_all("Provides-Extra") or []}
    base = []
    for line in lines:
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)", line)
        (extras.setdefault(extra[1], []) if extra else base).append(line.partition(";")[0].strip())
    return {"requires-python": said["Requires-Python"], "dependencies": base,
            "optional-dependencies": extras}


def read(requirements: list[str]) -> list[Needed]:
    """The packages in requirements such as "torch>=2.11", with the versions installed here."""
    found = [_LINE.match(line).groups() for line in requirements]
    return [Needed(normal(name), floor or "", installed(name)) for name, floor in found]


def named(names: list[str], asked: dict) -> list[Needed]:
    """These packages with the floors that the course's metadata has for them."""
    lines = [*asked["dependencies"], *(line for extra in asked["optional-dependencies"].values()
                                       for line in extra)]
    known = {one.name: one for one in read(lines)}
    return [known.get(name) or Needed(name, "", installed(name)) for name in names]


def locked() -> dict[str, str]:
    """Name to version in the course's lock: what is tested every day. {} without a lock."""
    folder = paths.ROOT if locations.is_checkout() else locations.SHIPPED
    path = folder / "requirements.lock"
    return pinned(path) if path.exists() else {}


def pinned(lock: Path) -> dict[str, str]:
    """Name to version in a list of pins. Raises OSError."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    pins = (re.match(r"([\w.-]+)==([^\s;\\]+)", line) for line in lines)
    return {normal(pin[1]): pin[2] for pin in pins if pin}


def installed(name: str) -> str | None:
    """The version of an installed package; None if it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def numbers(version: str) -> tuple[int, ...]:
    """The release part of a version: (2, 11) of 2.11.0+cpu."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in found[0].split(".")] if found else [0]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return tuple(parts)
