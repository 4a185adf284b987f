"""What a stored result rests on: its code, the modules of this repository it uses, pinned packages.

    rests_on(["from dlsys_helpers import fit\\nfit(model, x, y)"])
    -> {"code": "1c9f...", "dlsys_helpers.train": "77ab...", "torch": "2.14.1", ...}

A record keeps this mapping. Where it differs from today's, the record is stale, and the names that
differ say why. Prose does not count: comments, docstrings and blank lines are taken out first.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import dlsys_helpers
from dlsys_helpers.paths import ROOT

SRC = ROOT / "src"
PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "jax")
# They keep and show what a learner did, and no number of a lesson passes through them.
BESIDE = {"dlsys_helpers.cards", "dlsys_helpers.progress", "dlsys_helpers.store"}
FRONT_END = ("explorers/explorer.js", "explorers/explorer.css")


def rests_on(code: Iterable[str]) -> dict[str, str]:
    """The parts that these cells' results rest on, each with its fingerprint or version."""
    cells = list(code)
    whole = "\n".join(cells)
    modules = reached(used_modules(whole)) - BESIDE
    parts = {"code": fingerprint("\0".join(map(without_prose, cells)))}
    parts |= {name: _module_fingerprint(name) for name in sorted(modules)}
    if "dlsys_helpers.explorers" in modules:
        parts |= {name: fingerprint((SRC / "dlsys_helpers" / name).read_text("utf-8"))
                  for name in FRONT_END}
    return parts | pinned()


def changes(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The names of the parts that differ, sorted."""
    return sorted(name for name in stored.keys() | now.keys() if stored.get(name) != now.get(name))


def pinned() -> dict[str, str]:
    """The versions in requirements.lock of the packages that numbers come from."""
    lines = (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    versions = dict(re.match(r"([\w.-]+)==(\S+)", line).groups() for line in lines if "==" in line)
    return {name: versions[name] for name in PACKAGES}


def fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@functools.cache
def without_prose(code: str) -> str:
    """Python code without comments, docstrings, blank lines and trailing blanks."""
    lines = code.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for first, last in _docstrings(ast.parse(code)):
        lines[first - 1:last] = [""] * (last - first + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """First and last line of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
                ast.get_docstring(node, clean=False) is not None):
            yield node.body[0].lineno, node.body[0].end_lineno


def used_modules(code: str) -> set[str]:
    """The modules under src/ that lesson code imports something from and then uses it."""
    tree = ast.parse(code)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return {module for name, module in _imports(tree) if name in used}


def reached(modules: Iterable[str]) -> set[str]:
    """These modules and all that they import, directly or not."""
    found: set[str] = set()
    left = list(modules)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += _imported_by(name)
    return found


@functools.cache
def _imported_by(module: str) -> list[str]:
    return [name for _, name in _imports(ast.parse(_file(module).read_text("utf-8")))]


@functools.cache
def _module_fingerprint(module: str) -> str:
    return fingerprint(without_prose(_file(module).read_text("utf-8")))


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each import from a module under src/: the name it binds, and the module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and _file(node.module or ""):
            yield from ((a.asname or a.name, _home(node.module, a.name)) for a in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.asname or a.name.partition(".")[0], a.name)
                        for a in node.names if _file(a.name))
        yield from _imports(node)


def _home(module: str, name: str) -> str:
    """The module that `from module import name` takes the name from."""
    if _file(f"{module}.{name}"):
        return f"{module}.{name}"
    if module == "dlsys_helpers" and name in dlsys_helpers._HOMES:
        return f"{module}.{dlsys_helpers._HOMES[name]}"
    return module


@functools.cache
def _file(module: str) -> Path | None:
    """The file of a module under src/; None for a module that is not ours."""
    path = SRC.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if module and file.is_file():
            return file
    return None
