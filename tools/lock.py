"""The installed packages that this one needs -> requirements.lock: every one, at its version.

python -m tools.lock

To move to newer versions: change the pins in pyproject.toml, install them, run this, then test.
"""

import tomllib
from functools import cache
from importlib import metadata
from itertools import chain

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from dlsys_helpers.paths import ROOT

LOCK = ROOT / "requirements.lock"
HEAD = "# Written by `make lock` from the direct pins in pyproject.toml. Do not edit.\n"
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


APART = {"hub"}  # an extra that `make hub` installs into an environment of its own


def direct() -> list[str]:
    """What pyproject.toml asks for in .venv: the dependencies, extras and the build backend."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    extras = chain.from_iterable(pins for name, pins in project["optional-dependencies"].items()
                                 if name not in APART)
    return [*project["dependencies"], *extras, *pyproject["build-system"]["requires"]]


def environment(platform: str, python: str) -> dict[str, str]:
    """The marker variables of one platform and Python; the rest are those of this machine."""
    return {**default_environment(), **PLATFORMS[platform],
            "python_version": python, "python_full_version": f"{python}.0"}


@cache
def installed(name: str) -> tuple[str, list[Requirement]]:
    """Version of an installed package and what it may need. Raises PackageNotFoundError, or
    LookupError for a package that an early patch release of PYTHONS cannot install."""
    found = metadata.distribution(name)
    allowed = SpecifierSet(found.metadata.get("Requires-Python", ""))
    if not all(allowed.contains(f"{python}.0") for python in PYTHONS):
        raise LookupError(f"{name} {found.version}: needs Python {allowed}, expected a version "
                          f"for all of {', '.join(PYTHONS)}. Install an older one, run again.")
    return found.version, [Requirement(line) for line in found.requires or []]


def needed_by(requirement: Requirement, where: dict[str, str]) -> list[Requirement]:
    """What one installed package needs there. Raises PackageNotFoundError, or LookupError for
    an installed version that the requirement does not allow."""
    version, wanted = installed(requirement.name)
    if not requirement.specifier.contains(version, prereleases=True):
        raise LookupError(f"{requirement}: got {version} in .venv. Install it, run again.")
    return [one for one in wanted if one.marker is None or any(
        one.marker.evaluate({**where, "extra": extra}) for extra in ("", *requirement.extras))]


def reached(requirements: list[str], where: dict[str, str]) -> set[str]:
    """Names of the installed packages that these need there, themselves among them.

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


def lock() -> str:
    """The text of requirements.lock for what is installed here, one pin a line, sorted.

    A package that only some Pythons need is pinned for all; one of some platforms has a marker.
    """
    needs = {platform: set().union(*(reached(direct(), environment(platform, python))
                                     for python in PYTHONS)) for platform in PLATFORMS}
    lines = []
    for name in sorted(set().union(*needs.values())):
        marker = MARKERS[frozenset(p for p in PLATFORMS if name in needs[p])]
        lines.append(f"{name}=={installed(name)[0]}{marker}\n")
    return HEAD + "".join(lines)


def main() -> None:
    text = lock()
    LOCK.write_text(text, encoding="utf-8")
    print(f"{LOCK.name}: {len(text.splitlines()) - 1} pins")


if __name__ == "__main__":
    main()
