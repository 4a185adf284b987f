"""The training repository as text, with a change applied, and as modules that run."""

import importlib.util
import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from dlsys_helpers.errors import UserError

FOLDER = Path(__file__).with_name("trainer")
Files = Mapping[str, str]
_numbers = itertools.count()


class Edit(NamedTuple):
    """Replace a text that occurs exactly once in a file with another."""

    file: str
    old: str
    new: str


class EditRefused(UserError):
    """A text to replace is missing or occurs more than once."""


@cache
def files() -> Files:
    """The repository: text by file name."""
    return {path.name: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.py"))}


def edited(before: Files, edits: list[Edit]) -> dict[str, str]:
    """The files after these edits. Raises EditRefused."""
    after = dict(before)
    for edit in edits:
        if edit.file not in after:
            raise EditRefused(f"edit: got file {edit.file!r}, expected one of {', '.join(after)}.")
        if (found := after[edit.file].count(edit.old)) != 1:
            raise EditRefused(f"edit of {edit.file}: {edit.old!r} is there {found} times, "
                              "expected once. Make the text longer, or follow the file.")
        after[edit.file] = after[edit.file].replace(edit.old, edit.new)
    return after


@contextmanager
def loaded(source: Files) -> Iterator[ModuleType]:
    """The files as a runnable package with a unique name; nothing is written to disk."""
    name = f"dlsys_diffs_run_{next(_numbers)}"
    try:
        yield _package(name, source)
    finally:
        for known in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
            del sys.modules[known]


def _package(name: str, source: Files) -> ModuleType:
    package = ModuleType(name)
    package.__path__ = []
    sys.modules[name] = package
    finder = _Finder(name, source)
    sys.meta_path.insert(0, finder)
    try:
        for file in source:
            if file != "__init__.py":
                stem = file.removesuffix(".py")
                setattr(package, stem, importlib.import_module(f"{name}.{stem}"))
    finally:
        sys.meta_path.remove(finder)
    return package


class _Finder:
    """Finds the modules of one package in memory."""

    def __init__(self, name: str, source: Files) -> None:
        self.name, self.source = name, source

    def find_spec(self, full: str, *_):
        package, _, stem = full.rpartition(".")
        if package != self.name or f"{stem}.py" not in self.source:
            return None
        return importlib.util.spec_from_loader(full, _Loader(self.source[f"{stem}.py"], stem))


class _Loader:
    def __init__(self, text: str, stem: str) -> None:
        self.text, self.stem = text, stem

    def create_module(self, _):
        """None: Python makes a plain module."""

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.text, f"trainer/{self.stem}.py", "exec"), module.__dict__)
