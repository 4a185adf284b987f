"""What a notebook's first cell calls: install what is missing here, or say in one sentence why not.

Where nothing is missing it says nothing. torch is left alone: which build fits, the machine's owner
knows.
"""

import importlib
import importlib.metadata as metadata
import os
import re
import site
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path

from dlsys_files import locations
from dlsys_helpers import paths
from dlsys_helpers.errors import UserError

PACKAGE = "dlsys-helpers"
BY_HAND = ("torch", "torchvision")
NETWORK = re.compile(r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|"
                     r"SSLError|Connection(?:Reset| )Error|[Tt]imed out|Max retries|Failed to "
                     r"(?:connect|establish)|connection-failed|No matching distribution")
READ_ONLY = re.compile(r"Errno 13|Errno 30|Permission denied|Read-only file system")


class CannotInstall(UserError):
    """What a notebook needs is missing and cannot be had here. The message says what to do."""


def arrive(version: str, needs: str = "", began: float | None = None) -> None:
    """Install what a notebook of this version of the course needs and this Python lacks.

    needs: names of packages, beside those that all lessons use. began: when the first cell began to
    install the course, as time.time() tells; None where it was there. Raises CannotInstall.
    """
    since = began or time.time()
    requirements = _requirements()
    _refuse_older_course(version)
    base = [r for r in requirements.get("", []) if not _version(_name(r))]
    if by_hand := [name for name in map(_name, base) if name in BY_HAND]:
        raise CannotInstall(
            f"{' and '.join(by_hand)}: not installed here, and this cell leaves that to you, as the "
            f"build depends on the machine. Run: pip install {' '.join(BY_HAND)}; then run this cell "
            "again.")
    if base:
        _install(base)
    more = [r for r in _asked(needs.split(), requirements) if not _version(_name(r))]
    if more:
        try:
            _install(more)
        except CannotInstall as error:  # the notebook runs up to the cell that needs it
            print(f"Not installed, a part of this notebook needs it: {', '.join(map(_name, more))}. "
                  f"{error}")
            more = []
    if began or base or more:
        _tell([PACKAGE] * bool(began) + [_name(r) for r in base + more], time.time() - since)
    for line in _older(requirements.get("", []) + _asked(needs.split(), requirements)):
        print(line)


def _tell(names: list[str], seconds: float) -> None:
    installed = ", ".join(f"{name} {_version(name)}" for name in names)
    print(f"Installed in {seconds:.0f} s: {installed}. torch {_version('torch')} is as it was.")


def _refuse_older_course(version: str) -> None:
    here = _version(PACKAGE)
    if locations.is_checkout() or not here or _numbers(here) >= _numbers(version):
        return
    raise CannotInstall(
        f"This notebook is of version {version} of the course, and {here} is installed here. Put the "
        f"newer wheel beside this notebook, run: pip install --force-reinstall --no-deps "
        f"{wheel_name(version)}; then restart the kernel.")


def wheel_name(version: str) -> str:
    """The file name of the course's wheel."""
    return f"{PACKAGE.replace('-', '_')}-{version}-py3-none-any.whl"


# ---- what is needed, and what is here

def _requirements() -> dict[str, list[str]]:
    """What the course asks for, "torch>=2.11", by extra; "" for what all lessons use."""
    if locations.is_checkout():
        project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        return {"": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, list[str]] = {}
    for line in _lines():
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)", marker)
        found.setdefault(extra[1] if extra else "", []).append(requirement.strip())
    return found


def _lines() -> list[str]:
    try:
        return metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:  # run from its sources: nobody said what it needs
        return []


def _asked(names: Iterable[str], requirements: dict[str, list[str]]) -> list[str]:
    """These packages with the floors that the course's extras give them."""
    floors = {_name(line): line for lines in requirements.values() for line in lines}
    return [floors.get(name, name) for name in names]


def _name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower()


def _version(name: str) -> str | None:
    """The version of an installed package; None where it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _older(requirements: Iterable[str]) -> Iterable[str]:
    """A line for each package that is older than any that was tried."""
    for line in requirements:
        floor, here = re.search(r">=([\d.]+)", line), _version(_name(line))
        if floor and here and _numbers(here) < _numbers(floor[1]):
            yield (f"{_name(line)} {here} is older than {floor[1]}, the oldest that was tried with "
                   "this course: some cells may fail.")


def _numbers(version: str) -> tuple[int, ...]:
    """The release part of a version: (2, 11, 0) of 2.11.0+cpu."""
    return tuple(int(part) for part in re.match(r"[\d.]*\d", version)[0].split("."))


# ---- pip

def _install(requirements: list[str]) -> None:
    """Install these; nothing that is here changes its version. Raises CannotInstall."""
    here = {(d.metadata["Name"], d.version) for d in metadata.distributions()}
    with tempfile.TemporaryDirectory() as folder:
        as_they_are = Path(folder, "installed.txt")
        as_they_are.write_text("".join(f"{name}=={version}\n" for name, version in sorted(
            pair for pair in here if all(pair))), "utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--retries=1", "--timeout=15",
             "--disable-pip-version-check", "-c", str(as_they_are), *requirements],
            capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode:
        raise CannotInstall(explain(done.stderr, " ".join(map(_name, requirements))))
    find_new_packages()


def find_new_packages() -> None:
    """Let this running Python import what pip has just installed, be it for this user alone."""
    user = site.getusersitepackages()
    if os.path.isdir(user) and user not in sys.path and site.ENABLE_USER_SITE is not False:
        sys.path.append(user)
    importlib.invalidate_caches()


def explain(said: str, what: str) -> str:
    """Why pip did not install this, by what it said, and what to do: one sentence or two."""
    if "No module named pip" in said:
        return (f"{what}: cannot be installed, this kernel's Python has no pip. Run in a terminal: "
                f"{sys.executable} -m ensurepip; then run this cell again.")
    if READ_ONLY.search(said):
        return (f"{what}: cannot be installed, {sys.prefix} cannot be written. Use an environment of "
                "your own: python3 -m venv env.")
    if NETWORK.search(said):
        return (f"{what}: cannot be fetched, the package index does not answer. Connect, or behind a "
                "proxy set HTTPS_PROXY, then run this cell again.")
    last = ([line for line in said.splitlines() if line.strip()] or ["no word why"])[-1]
    return f"{what}: pip could not install it. It said: {last.strip()[:200]}"
