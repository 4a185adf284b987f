"""Imports between the grader's modules: walls and books import neither each other nor a judge."""

import ast
import graphlib
from pathlib import Path

import pytest

from dlsys_helpers.paths import ROOT

SRC = ROOT / "src"
GROUND = {"dlsys.grading", *(f"dlsys.grading.{name}" for name in (
    "options", "settings", "shapes", "text"))}


def module(path: Path) -> str:
    """The full name of the module in a file; for an __init__.py, the package's."""
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path): path for path in (SRC / "dlsys" / "grading").rglob("*.py")}


def imported(path: Path) -> set[str]:
    """The grader's modules that a file imports anywhere in it, functions included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found & MODULES.keys()


def arrows() -> dict[str, set[str]]:
    return {name: imported(path) for name, path in MODULES.items()}


@pytest.mark.parametrize("package", ["dlsys.grading.walls", "dlsys.grading.books"])
def test_walls_and_books_import_only_themselves_and_the_ground(package):
    inside = {name: found for name, found in arrows().items() if name.startswith(package)}

    assert len(inside) > 10
    above = {name: extra for name, found in inside.items()
             if (extra := {one for one in found if not one.startswith(package)} - GROUND)}
    assert above == {}


def test_the_ground_imports_nothing_of_the_grader():
    assert {name: found for name, found in arrows().items() if name in GROUND and found} == {}


def test_nothing_in_the_grader_imports_in_a_circle():
    assert list(graphlib.TopologicalSorter(arrows()).static_order())


def test_an_import_inside_a_function_is_seen(tmp_path):
    (tmp_path / "x.py").write_text("def f():\n    from dlsys.grading import judge\n"
                                   "    from dlsys.grading.books.people import owner\n")
    assert imported(tmp_path / "x.py") == {"dlsys.grading.judge", "dlsys.grading.books.people"}
