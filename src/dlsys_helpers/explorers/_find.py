"""Explorers by name: a module of this package without a leading underscore holds one."""

from importlib import import_module
from pathlib import Path

from dlsys_helpers.explorers._explorer import Explorer


def names() -> list[str]:
    """The names of all explorers, sorted."""
    return sorted(p.stem for p in Path(__file__).parent.glob("[a-z]*.py"))


def load(name: str) -> Explorer:
    """The explorer of this name. Raises ValueError for any other name."""
    if name not in names():
        raise ValueError(f"explorer: got {name!r}, expected one of {', '.join(names())}.")
    return getattr(import_module(f"dlsys_helpers.explorers.{name}"), name)
