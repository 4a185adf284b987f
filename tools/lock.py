"""Pin the installed packages that this one needs in requirements.lock, and write the hashes of
their files in the package index to requirements.hashes.

The lock has two parts: the packages that the lessons need, directly or indirectly, then the rest.
tools/setup.sh installs the first part for `make lab`, and both for all other targets.

python -m tools.lock

To move to newer versions, install them into .venv, run this, then test. pyproject.toml has only
floors, the lowest versions that we tried. The hashes are in a separate file, because pip does not
take hashes as constraints: `pip install -c requirements.lock` would refuse the course.
"""

import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from itertools import chain, product

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from dlsys_helpers.paths import ROOT

LOCK, HASHES, SETUP = (ROOT / name for name in (
    "requirements.lock", "requirements.hashes", "tools/setup.sh"))
HEAD = "# Written by `make lock` from what pyproject.toml asks for. Do not edit.\n"
REST = "# Besides, for tests, builder, book and grader:\n"  # setup.sh also has the first word
PLATFORMS = {
    "Linux": {"platform_system": "Linux", "sys_platform": "linux", "os_name": "posix"},
    "Darwin": {"platform_system": "Darwin", "sys_platform": "darwin", "os_name": "posix"},
    "Windows": {"platform_system": "Windows", "sys_platform": "win32", "os_name": "nt"},
}
MARKERS = {
    frozenset(PLATFORMS): "",
    frozenset({"Linux"}): ' ; platform_system == "Linux"',
    frozenset({"Linux", "Darwin"}): ' ; platform_system != "Windows"',
}
PYTHONS = ("3.11", "3.12", "3.13")
# The extras of `make lab`: for lesson imports, for reading lessons, and for `dlsys room`.
LESSONS = {"lab", "jax", "language", "compress", "track", "room"}
APART = {"hub"}  # an extra that `make hub` installs into a separate environment


def direct(extras: set[str]) -> list[str]:
    """The requirements in pyproject.toml: dependencies, build backend and these extras."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    return [*project["dependencies"], *pyproject["build-system"]["requires"],
            *chain.from_iterable(project["optional-dependencies"][name] for name in extras)]


def extras() -> set[str]:
    """The names of all extras that belong in .venv."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return set(pyproject["project"]["optional-dependencies"]) - APART


def environment(platform: str, python: str) -> dict[str, str]:
    """The marker variables of one platform and Python; other variables come from this machine."""
    return {**default_environment(), **PLATFORMS[platform],
            "python_version": python, "python_full_version": f"{python}.0"}


@cache
def installed(name: str) -> tuple[str, list[Requirement]]:
    """The version of an installed package and its requirements.

    Raises PackageNotFoundError, or LookupError for a package that an early patch release of PYTHONS
    cannot install.
    """
    found = metadata.distribution(name)
    allowed = SpecifierSet(found.metadata.get("Requires-Python", ""))
    if not all(allowed.contains(f"{python}.0") for python in PYTHONS):
        raise LookupError(f"{name} {found.version}: needs Python {allowed}, expected a version "
                          f"for all of {', '.join(PYTHONS)}. Install an older one, run again.")
    return found.version, [Requirement(line) for line in found.requires or []]


def needed_by(requirement: Requirement, where: dict[str, str]) -> list[Requirement]:
    """The requirements of one installed package there.

    Raises PackageNotFoundError, or LookupError if the requirement forbids the installed version.
    """
    version, wanted = installed(requirement.name)
    if not requirement.specifier.contains(version, prereleases=True):
        raise LookupError(f"{requirement}: got {version} in .venv. Install it, run again.")
    return [one for one in wanted if one.marker is None or any(
        one.marker.evaluate({**where, "extra": extra}) for extra in ("", *requirement.extras))]


def reached(requirements: list[str], where: dict[str, str]) -> set[str]:
    """Names of the installed packages that these need there, including themselves.

    Only Linux's set must be complete here; pip finds the few that other platforms add.
    """
    todo, seen, names = [Requirement(line) for line in requirements], set(), set()
    while todo:
        requirement = todo.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        try:
            todo += needed_by(requirement, where)
        except metadata.PackageNotFoundError:
            if where["platform_system"] == "Linux":
                raise LookupError(f"{requirement}: not in .venv. Install it, run again.") from None
        else:
            names.add(canonicalize_name(requirement.name))
    return names


def platforms(requirements: list[str]) -> dict[str, set[str]]:
    """The packages that these need on any supported Python, each with its platforms."""
    found: dict[str, set[str]] = {}
    for platform, python in product(PLATFORMS, PYTHONS):
        for name in reached(requirements, environment(platform, python)):
            found.setdefault(name, set()).add(platform)
    return found


def lock() -> str:
    """The text of requirements.lock for the packages installed here, one pin per line, in parts.

    A package that only some Pythons need is pinned for all; one for some platforms has a marker.
    """
    every, learner = platforms(direct(extras())), platforms(direct(LESSONS))
    pins = {name: f"{name}=={installed(name)[0]}{MARKERS[frozenset(where)]}\n"
            for name, where in sorted(every.items())}
    first = "".join(pin for name, pin in pins.items() if name in learner)
    return HEAD + first + REST + "".join(pin for name, pin in pins.items() if name not in learner)


def pins(text: str) -> list[str]:
    """name==version from each line of a lock, and for uv, which installs them."""
    uv = re.search(r"^uv=(uv==\S+)", SETUP.read_text(encoding="utf-8"), re.M)[1]
    found = [uv, *(line.split()[0] for line in text.splitlines() if "==" in line)]
    return sorted(found, key=lambda pin: pin.partition("==")[0])


def hashed(text: str) -> str:
    """The text of requirements.hashes for a lock.

    It has a line for each pin, with the hashes of its files for all systems and Pythons. uv asks
    the index. Raises SystemExit if that fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", "-", "--no-deps", "--universal",
         "--python-version", PYTHONS[0], "--generate-hashes", "--no-annotate", "--no-header"],
        input="\n".join(pins(text)), capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"{HASHES.name}: uv got no hashes: {done.stderr.strip()[-300:]}")
    return done.stdout.replace(" \\\n    ", " ")


def main() -> None:
    text = lock()
    hashes = hashed(text)
    LOCK.write_text(text, encoding="utf-8")
    HASHES.write_text(hashes, encoding="utf-8")
    print(f"{LOCK.name}: {text.count('==')} pins; {HASHES.name}: {hashes.count('sha256')} hashes")


if __name__ == "__main__":
    main()
