"""The shipped notebooks, run as their users run them: nbval, papermill, another seed, a stub."""

import ast
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import nbformat
import papermill
import pytest

from dlsys_helpers.paths import EXERCISES, NOTEBOOKS, ROOT, SOLUTIONS
from tools.lessons import PARAMETERS

LESSONS = sorted(NOTEBOOKS.glob("[0-9][1-9]_*.ipynb")) + sorted(NOTEBOOKS.glob("10_*.ipynb"))
NAMES = [path.stem for path in LESSONS]
STORED = sorted([*NOTEBOOKS.glob("*.ipynb"), *SOLUTIONS.glob("*.ipynb")])


def cells_of(path, kind="code"):
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == kind]


def run_lesson(path, **parameters):
    """Run a lesson through papermill; an undeclared parameter is an error, not a warning."""
    declared = papermill.inspect_notebook(str(path))
    unknown = parameters.keys() - declared.keys()
    if unknown:
        raise ValueError(f"{path.name}: got parameter {', '.join(sorted(unknown))}, expected one "
                         f"of {', '.join(declared)}.")
    return papermill.execute_notebook(str(path), None, parameters, kernel_name="python3",
                                      cwd=str(NOTEBOOKS), progress_bar=False,
                                      request_save_on_cell_execute=False)


@pytest.mark.parametrize("path", LESSONS, ids=NAMES)
def test_lesson_holds_at_another_seed_and_thread_count(path):
    """Every claim raises when it does not hold, so the run itself is the assertion."""
    done = run_lesson(path, SEED=3, THREADS=2, DEVICE="cpu")
    failed = [o for c in done.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert not failed
    assert all(c.execution_count for c in done.cells if c.cell_type == "code")


def test_undeclared_parameter_is_an_error():
    with pytest.raises(ValueError, match="SEEED"):
        run_lesson(LESSONS[0], SEEED=1)


@pytest.mark.parametrize("path", LESSONS, ids=NAMES)
def test_each_declared_parameter_is_used(path):
    declared = set(papermill.inspect_notebook(str(path)))
    others = [c for c in cells_of(path) if "parameters" not in c.metadata.tags]
    used = {n.id for c in others for n in ast.walk(ast.parse(c.source))
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert declared == set(PARAMETERS)
    assert declared <= used


def nbval(*paths, tmp_path):
    """Run pytest --nbval-lax as a learner would; returns the JUnit cases by cell number."""
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-cell-timeout=120", "-q",
               "-p", "no:cacheprovider", f"--junitxml={report}", *map(str, paths)]
    env = {**os.environ, "DLSYS_PROGRESS": "off", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    return done, list(ET.parse(report).iter("testcase"))


@pytest.mark.parametrize("path", sorted(EXERCISES.glob("*.ipynb")), ids=lambda p: p.stem)
def test_worksheet_as_shipped_fails_at_exactly_its_checks(path, tmp_path):
    done, cases = nbval(path, tmp_path=tmp_path)
    failed = {int(re.search(r"Cell (\d+)", c.get("name"))[1]) for c in cases
              if c.find("failure") is not None}
    checks = {n for n, c in enumerate(cells_of(path)) if c.metadata.dlsys.role == "check"}
    assert len(cases) == len(cells_of(path))
    assert failed == checks
    assert done.returncode == 1
    assert "is not written yet" in done.stdout


@pytest.mark.parametrize("path", STORED, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_stored_notebook_is_clean(path):
    """Numbered 1 to n, no errors, no stderr, no widget view without a kernel, no machine path."""
    cells = cells_of(path)
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    outputs = [o for c in cells for o in c.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    text = json.dumps([o for o in outputs if "image/png" not in o.get("data", {})])
    assert "widget-view" not in text
    assert str(ROOT) not in text
    assert "Warning" not in text


@pytest.mark.parametrize("path", LESSONS, ids=NAMES)
def test_every_figure_has_alt_text(path):
    for cell in cells_of(path):
        for out in cell.outputs:
            if "image/png" in out.get("data", {}) and cell.metadata.dlsys.role != "explore":
                assert out.metadata["image/png"]["alt"].strip(), cell.id
