"""Which packages may import which, and no import cycles anywhere."""

import ast
import functools
import graphlib
import re
from pathlib import Path

import pytest

import dlsys_helpers
from dlsys_helpers.paths import ROOT

SRC = ROOT / "src"
# Each package and those that it may import. A package is below every package that imports it.
BELOW = {
    "dlsys_helpers": set(),
    "dlsys_warm": set(),
    "dlsys_watch": set(),
    "dlsys_same": {"dlsys_watch"},
    "dlsys_checks": {"dlsys_helpers"},
    "dlsys_diffs": {"dlsys_helpers"},
    "dlsys_files": {"dlsys_helpers"},
    "dlsys_incidents": {"dlsys_helpers"},
    "dlsys_model": {"dlsys_helpers", "dlsys_files"},
    "dlsys": {"dlsys_helpers", "dlsys_checks", "dlsys_diffs", "dlsys_files", "dlsys_incidents",
              "dlsys_model", "dlsys_same", "dlsys_watch"},
    "tools": {"dlsys", "dlsys_checks", "dlsys_diffs", "dlsys_files", "dlsys_helpers",
              "dlsys_incidents", "dlsys_model", "dlsys_watch"},
    "benchmarks": {"dlsys", "dlsys_checks", "dlsys_diffs", "dlsys_helpers", "dlsys_model",
                   "dlsys_same", "dlsys_warm", "dlsys_watch", "tools"},
}
LESSONS = {
    "lessons/0[0-9]_*.py": {"dlsys_helpers"},
    "lessons/1[0-2]_*.py": {"dlsys_helpers"},
    "lessons/13_*.py": {"dlsys_helpers", "dlsys_model"},  # it serves the model's text
    "lessons/1[45]_*.py": {"dlsys_helpers"},
    "lessons/your_model.py": {"dlsys_helpers", "dlsys_model"},
}
# The one upward import: worksheets import `check` from the helpers, which look it up at first
# use.
UPWARDS = ("dlsys_helpers", "dlsys_checks.checking")


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the packages by its full name."""
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
            for package in BELOW for root in (SRC, ROOT)
            for path in (root / package).rglob("*.py")}


def imported(path: Path) -> set[str]:
    """The modules that a file imports anywhere in it, functions included, by their full names.

    `import_module` counts where its argument spells out a module.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {home(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Call) and called(node) == "import_module":
            found |= {text.value for text in ast.walk(node) if isinstance(text, ast.Constant)
                      and text.value in modules()}
    return found


def called(call: ast.Call) -> str:
    """The last part of the name that is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def home(package: str, name: str) -> str:
    """The module that `from package import name` takes the name from."""
    if package == "dlsys_helpers" and name in dlsys_helpers.HOMES:
        return dlsys_helpers.HOMES[name]
    return f"{package}.{name}" if f"{package}.{name}" in modules() else package


def package_of(module: str) -> str:
    return module.partition(".")[0]


@functools.cache
def arrows() -> dict[str, set[str]]:
    """Each module, with the modules of this project that it imports."""
    found = {name: imported(path) & modules().keys() - {name}
             for name, path in modules().items()}
    found["dlsys_helpers"] |= {*dlsys_helpers.HOMES.values()}
    return found


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """One import cycle, which ends with its first name; [] if there is none."""
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_every_package_is_on_a_floor():
    assert {path.parent.name for path in SRC.glob("*/__init__.py")} < BELOW.keys()
    assert circle(BELOW) == []
    assert len(modules()) > 500


def test_imports_point_downwards():
    """Imports inside functions count as well: they hide an arrow without removing it."""
    upwards = sorted((name, other) for name, others in arrows().items() for other in others
                     if package_of(other) not in BELOW[package_of(name)] | {package_of(name)})
    assert upwards == [UPWARDS]


def test_no_modules_import_each_other_in_a_circle():
    found = {name: others - {UPWARDS[1]} if name == UPWARDS[0] else others
             for name, others in arrows().items()}
    assert circle(found) == []


@pytest.mark.parametrize("files", LESSONS)
def test_a_lesson_imports_the_helpers_alone(files):
    found = {path.name: extra for path in ROOT.glob(files)
             if (extra := {*map(package_of, imported(path) - {UPWARDS[1]})} & BELOW.keys()
                 - LESSONS[files])}
    found.pop("00_start_here.py", None)  # its map and menu come from the command
    assert found == {}


def test_every_lesson_is_looked_at():
    looked_at = {path for files in LESSONS for path in ROOT.glob(files)}
    assert looked_at == {*(ROOT / "lessons").glob("*.py")}


def test_a_hidden_import_is_seen(tmp_path):
    (tmp_path / "x.py").write_text(
        "def f(is_exam):\n    from dlsys_helpers import cards, claim, stages\n"
        "    import dlsys.cli\n"
        "    importlib.import_module('dlsys_checks.exam.laws' if is_exam else 'json')\n")
    assert imported(tmp_path / "x.py") == {
        "dlsys_helpers.cards", "dlsys_helpers.claims", "dlsys_helpers.stages", "dlsys.cli",
        "dlsys_checks.exam.laws"}


def test_a_circle_is_found():
    assert sorted({*circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})}) == ["a", "b", "c"]


def defined(path: Path) -> set[str]:
    """The names that a module defines: functions, classes, their methods, and what it assigns."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found |= {node.name, *(f"{node.name}.{part.name}" for part in node.body
                                   if isinstance(part, ast.FunctionDef))}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def unknown(text: str) -> list[str]:
    """The names `module:name` in a text that no module of this project defines."""
    found = re.findall(r"\b((?:dlsys|tools)[\w.]*):([A-Za-z_][\w.]*\w)", text)
    homes = {module: next(root / f"{module.replace('.', '/')}.py" for root in (SRC, ROOT)
                          if (root / f"{module.replace('.', '/')}.py").exists())
             for module, _ in found}
    return [f"{module}:{name}" for module, name in found if name not in defined(homes[module])]


def test_the_ways_through_the_code_name_what_is_there():
    text = (SRC / "README.md").read_text("utf-8")
    assert len(re.findall(r"\b(?:dlsys|tools)[\w.]*:\w", text)) > 50
    assert unknown(text) == []
    assert unknown(f"{text} tools.build:nothing") == ["tools.build:nothing"]
