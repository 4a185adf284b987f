"""The worksheets as shipped, run as their users run them: each check fails, and nothing else.

A file of its own: all worksheets run in one pytest, so all these tests belong to one worker.
"""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import nbformat
import pytest

from dlsys_helpers.paths import EXERCISES, ROOT

WORKSHEETS = sorted(EXERCISES.glob("*.ipynb"))


def cells_of(path):
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


@pytest.fixture(scope="module")
def worksheets_as_shipped(tmp_path_factory):
    """All worksheets in one pytest --nbval-lax, as a learner would run them; the JUnit cases."""
    report = tmp_path_factory.mktemp("nbval") / "report.xml"
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-cell-timeout=120", "-q",
               "-p", "no:cacheprovider", f"--junitxml={report}", *map(str, WORKSHEETS)]
    env = {**os.environ, "DLSYS_PROGRESS": "off", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    return done, list(ET.parse(report).iter("testcase"))


@pytest.mark.parametrize("path", WORKSHEETS, ids=lambda p: p.stem)
def test_worksheet_as_shipped_fails_at_exactly_its_checks(path, worksheets_as_shipped):
    done, every = worksheets_as_shipped
    cases = [c for c in every if path.stem in c.get("classname")]
    failed = {int(re.search(r"Cell (\d+)", c.get("name"))[1]): c.find("failure").text
              for c in cases if c.find("failure") is not None}
    checks = {n for n, c in enumerate(cells_of(path)) if c.metadata.dlsys.role == "check"}
    assert len(cases) == len(cells_of(path))
    assert failed.keys() == checks
    assert all("Write the body of" in text for text in failed.values())
    assert done.returncode == 1
