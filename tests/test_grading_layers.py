"""Who may import whom in the grader: walls and books know nothing of each other or of a judge."""

import graphlib

import pytest
from test_house import imported, named

from dlsys_helpers.paths import ROOT

GRADING = ROOT / "src" / "dlsys" / "grading"
GROUND = {"dlsys.grading", "dlsys.grading.options", "dlsys.grading.settings", "dlsys.grading.text"}


def arrows() -> dict[str, set[str]]:
    """Each module of the grader with the modules of the grader that it imports."""
    return {named(path): {name for name in imported(path) if name.startswith("dlsys.grading")}
            for path in GRADING.rglob("*.py")}


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
