"""Who may import whom."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

from dlsys_helpers.paths import ROOT

SRC = ROOT / "src"
OURS = {"dlsys", "dlsys_checks", "dlsys_helpers", "dlsys_model", "dlsys_warm", "dlsys_watch"}
FINDS_LAWS = "checking.py"  # the one place where a helper looks upwards: it imports laws by id


def imported(path: Path) -> set[str]:
    """Modules that a file imports anywhere in it, functions included, by their full names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {module_of(node.module, alias.name) for alias in node.names}
    return found


def module_of(package: str, name: str) -> str:
    """The submodule where `name` is one, else the module that holds it."""
    inside = SRC / package.replace(".", "/") / name
    is_module = inside.with_suffix(".py").exists() or (inside / "__init__.py").exists()
    return f"{package}.{name}" if is_module else package


def packages(path: Path) -> set[str]:
    """The packages of this project that a file imports."""
    return {name.partition(".")[0] for name in imported(path)} & OURS


def named(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize(("files", "allowed"), [
    ("src/dlsys_helpers/**/*.py", {"dlsys_helpers"}),
    ("src/dlsys_checks/**/*.py", {"dlsys_helpers", "dlsys_checks"}),
    ("src/dlsys_warm/*.py", {"dlsys_warm"}),
    ("src/dlsys_watch/**/*.py", {"dlsys_watch"}),
    ("src/dlsys_model/*.py", {"dlsys_helpers", "dlsys_model", "dlsys"}),  # it reads worksheets
    ("lessons/0[0-9]_*.py", {"dlsys_helpers"}),
    ("lessons/1[0-2]_*.py", {"dlsys_helpers"}),
    ("lessons/13_*.py", {"dlsys_helpers", "dlsys_model"}),  # it serves the text of the model
    ("lessons/15_*.py", {"dlsys_helpers"}),
    ("lessons/your_model.py", {"dlsys_helpers", "dlsys_model"}),
])
def test_imports_point_downwards(files, allowed):
    found = {path.name: extra for path in ROOT.glob(files) if (extra := packages(path) - allowed)}
    found.pop("00_start_here.py", None)  # its map and menu are tools of the command
    assert found == ({FINDS_LAWS: {"dlsys_checks"}} if "helpers" in files else {})


def test_nothing_in_the_helpers_imports_in_a_circle():
    """Imports inside of functions count, too: they hide a circle, they do not undo it."""
    arrows = {named(path): {name for name in imported(path) if name.startswith("dlsys_helpers.")}
              for path in (SRC / "dlsys_helpers").rglob("*.py")}
    assert len(arrows) > 30
    assert list(graphlib.TopologicalSorter(arrows).static_order())


def test_a_hidden_import_is_seen(tmp_path):
    (tmp_path / "x.py").write_text("def f():\n    from dlsys_helpers import cards, claim\n"
                                   "    import dlsys.cli\n")
    assert imported(tmp_path / "x.py") == {"dlsys_helpers.cards", "dlsys_helpers", "dlsys.cli"}


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
    """Of the names `module:name` in a text those that no module of this project defines."""
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
