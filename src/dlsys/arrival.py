"""What a notebook's first cell calls: install what is missing here, or say in one sentence why not.

If nothing is missing, it says nothing. It never installs torch, because only the machine's owner
knows which build fits.
"""

import importlib
import importlib.metadata as metadata
import os
import re
import shlex
import site
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dlsys import needed
from dlsys.needed import PACKAGE, Needed
from dlsys_files import locations
from dlsys_helpers import without_widgets
from dlsys_helpers.errors import UserError

BY_HAND = ("torch", "torchvision")
# Older versions are replaced: peft refuses Colab's torchao 0.10, and lesson 11 calls functions that
# it lacks.
REPLACED = {"torchao": "0.18"}
NETWORK = re.compile(r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|SSLError|"
                     r"ProxyError|Connection(?:Reset| )Error|[Tt]imed out|Max retries|Failed to "
                     r"(?:connect|establish)|connection-failed|No matching distribution")
READ_ONLY = re.compile(r"Errno 13|Errno 30|Permission denied|Read-only file system")


class CannotInstall(UserError):
    """Something a notebook needs cannot be installed here. The message says what to do."""


def arrive(version: str, needs: str = "", began: float | None = None) -> None:
    """Install what a notebook of this version of the course needs and this Python lacks.

    needs: names of packages, in addition to those that all lessons use. began: when the first cell
    began to install the course, from time.time(); None if the course was already installed.
    Raises CannotInstall.
    """
    since = began or time.time()
    asked = needed.project()
    _refuse_older_course(version)
    always, some = needed.read(asked["dependencies"]), _of_the_stage(needs.split(), asked)
    _leave_by_hand(always)
    new = [PACKAGE] * bool(began) + _install(always)
    try:
        new += _install(some)
    except CannotInstall as error:  # the notebook runs up to the cell that needs it
        print(f"A part of this notebook will not run. {error}")
    if new:
        said = ", ".join(f"{name} {needed.installed(name)}" for name in new)
        print(f"Installed in {time.time() - since:.0f} s: {said}. "
              f"torch {needed.installed('torch')} is unchanged.")
    for one in always + some:
        if one.too_old and one.name not in new:
            print(f"{one.name} {one.here} is older than {one.floor}, the oldest version that "
                  "was tested: some cells may fail.")


def _of_the_stage(names: list[str], asked: dict) -> list[Needed]:
    """What else the notebook needs; peft needs no torchao, but checks an installed one."""
    with_peft = [name for name in REPLACED if "peft" in names and needed.installed(name)]
    found = needed.named(list(dict.fromkeys(names + with_peft)), asked)
    return [one._replace(floor=REPLACED.get(one.name, one.floor)) for one in found]


def _leave_by_hand(packages: list[Needed]) -> None:
    if missing := [one.name for one in packages if one.name in BY_HAND and not one.here]:
        raise CannotInstall(
            f"{' and '.join(missing)}: not installed here, and this cell leaves that to you, "
            "because the right build depends on the machine. Run: pip install "
            f"{' '.join(BY_HAND)}; then run this cell again.")


def _refuse_older_course(version: str) -> None:
    here = needed.installed(PACKAGE)
    if (locations.is_checkout() or not here
            or needed.numbers(here) >= needed.numbers(version)):
        return
    raise CannotInstall(
        f"This notebook belongs to version {version} of the course, but {here} is installed. Run "
        f"pip install --force-reinstall --no-deps {wheel_name(version)}, with that file in this "
        "notebook's folder; then restart the kernel.")


def wheel_name(version: str) -> str:
    """The file name of the course's wheel."""
    return f"{PACKAGE.replace('-', '_')}-{version}-py3-none-any.whl"


# ---- pip

def _install(packages: list[Needed]) -> list[str]:
    """Install those that are missing, replace old ones in REPLACED, and return their names.

    Raises CannotInstall.
    """
    missing = [one for one in packages
               if not one.here or (one.name in REPLACED and one.too_old)]
    if not missing:
        return []
    names = [one.name for one in missing]
    with tempfile.TemporaryDirectory() as folder:
        as_they_are = Path(folder, "installed.txt")
        as_they_are.write_text("".join(sorted({
            f"{name}=={found.version}\n" for found in metadata.distributions()
            if (name := found.metadata["Name"]) and needed.normal(name) not in names})), "utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--retries=1", "--timeout=15",
             "--disable-pip-version-check",
             "--no-compile",  # half of pip's time; Python compiles what a notebook imports
             "-c", str(as_they_are), *(one.line for one in missing)],
            capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode:
        raise CannotInstall(explain(done.stderr, ", ".join(names)))
    find_new_packages()
    return names


def find_new_packages() -> None:
    """Let this running Python import what pip has just installed, even if only for this user."""
    user = site.getusersitepackages()
    if site.ENABLE_USER_SITE and os.path.isdir(user) and user not in sys.path:
        sys.path.append(user)
    importlib.invalidate_caches()
    _take_new_widgets()


def _take_new_widgets() -> None:
    """Replace the stand-in with the newly installed widget library.

    Importing the course created the stand-in, because the library was still missing.
    """
    there = sys.modules.get("anywidget")
    if there is not None and there.__spec__.loader is None:
        del sys.modules["anywidget"]
    without_widgets.stand_in()


def explain(said: str, what: str) -> str:
    """Why pip did not install this, judging by its output, and what to do: one or two sentences."""
    if "No module named pip" in said:
        return (f"{what}: cannot be installed, because this kernel's Python has no pip. "
                "Run in a terminal: "
                f"{shlex.quote(sys.executable)} -m ensurepip; then run this cell again.")
    if "externally-managed" in said:
        return (f"{what}: cannot be installed, because this kernel's Python belongs to the system. "
                "Choose a kernel of your own: python3 -m venv env.")
    if READ_ONLY.search(said):
        return (f"{what}: cannot be installed, because {sys.prefix} cannot be written. Use "
                "an environment of your own: python3 -m venv env.")
    if NETWORK.search(said):
        return (f"{what}: cannot be fetched, because the package index does not answer. "
                "Connect (behind a proxy, set HTTPS_PROXY), then run this cell again.")
    last = ([line for line in said.splitlines() if line.strip()] or ["no reason given"])[-1]
    return f"{what}: pip could not install it. It said: {last.strip()[:200]}"
