"""The worksheets as shipped: each check fails with its message for an unwritten answer.

The first and the newest run as users run them, through nbval. All come from one builder, so the
cells of the others run in this process, without starting a kernel for each.
"""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import matplotlib as mpl
import nbformat
import pytest

from dlsys_checks.checking import CheckFailed
from dlsys_helpers.paths import EXERCISES, ROOT
from tools.run_cells import run_cell

WORKSHEETS = sorted(EXERCISES.glob("*.ipynb"))
BY_NBVAL = [WORKSHEETS[0], WORKSHEETS[-1]]
NOT_WRITTEN = "Write the body of"


def cells_of(path):
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


def checks_of(path):
    """The numbers of the check cells among the code cells."""
    return {n for n, c in enumerate(cells_of(path)) if c.metadata.dlsys.role == "check"}


@pytest.fixture(scope="module")
def worksheets_as_shipped(tmp_path_factory):
    """Worksheets in one pytest --nbval-lax, as a learner would run them; the JUnit cases."""
    report = tmp_path_factory.mktemp("nbval") / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "tools.nbval_numbers", "--nbval-lax", "-q",
               "--nbval-cell-timeout=120", "-p", "no:cacheprovider",
               f"--junitxml={report}", *map(str, BY_NBVAL)]
    env = {**os.environ, "DLSYS_PROGRESS": "off", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    return done, list(ET.parse(report).iter("testcase"))


@pytest.mark.parametrize("path", BY_NBVAL, ids=lambda p: p.stem)
def test_worksheet_as_shipped_fails_at_exactly_its_checks(path, worksheets_as_shipped):
    done, every = worksheets_as_shipped
    cases = [c for c in every if path.stem in c.get("classname")]
    failed = {int(re.search(r"Cell (\d+)", c.get("name"))[1]): c.find("failure").text
              for c in cases if c.find("failure") is not None}
    assert len(cases) == len(cells_of(path))
    assert failed.keys() == checks_of(path)
    assert all(NOT_WRITTEN in text for text in failed.values())
    assert done.returncode == 1


def failures(cells) -> dict[int, str]:
    """Run the cells one after another; return those whose check fails, with its message."""
    found, names = {}, {"__name__": "__main__"}
    with mpl.rc_context():
        for n, cell in enumerate(cells):
            try:
                run_cell(cell.source, f"<cell {n}>", names)
            except CheckFailed as failed:
                found[n] = str(failed)
    return found


@pytest.mark.parametrize("path", [p for p in WORKSHEETS if p not in BY_NBVAL], ids=lambda p: p.stem)
def test_the_cells_of_a_worksheet_fail_at_exactly_its_checks(path):
    found = failures(cells_of(path))
    assert found.keys() == checks_of(path)
    assert all(NOT_WRITTEN in text for text in found.values())


def test_a_check_that_an_answer_passes_is_none_of_the_failures():
    cells = cells_of(WORKSHEETS[0])
    n = next(n for n, cell in enumerate(cells) if 'check("01.4"' in cell.source)
    cells[n - 1].source = "def dead_units(h):\n    return int((h == 0).all(0).sum())"
    cells[n].source = "from dlsys_checks import checking\nchecking.run_check('01.4', dead_units)"
    assert failures(cells).keys() == checks_of(WORKSHEETS[0]) - {n}
