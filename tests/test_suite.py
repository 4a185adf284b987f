"""How the suite is split between workers, and its table of minutes."""

import json

import pytest

from tools import suite

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(("nodeid", "part", "group"), [
    ("notebooks/03_losses.ipynb::Cell 4", "nbval notebooks", "notebooks/03_losses.ipynb"),
    ("solutions/03_losses.ipynb::03.1 (Cell 4)", "nbval solutions", "solutions/03_losses.ipynb"),
    ("tests/test_notebooks.py::test_a[notebooks-03_losses]", "notebooks", "notebooks 03"),
    ("tests/test_checks.py::test_a[03.2-what]", "checks", "checks 03"),
    ("tests/test_checks.py::test_b", "checks", "checks"),
    ("tests/test_hostile.py::test_c[03.2]", "hostile", "hostile")])
def test_a_test_belongs_to_a_part_and_to_a_group(nodeid, part, group):
    assert (suite.part(nodeid), suite.group(nodeid)) == (part, group)


BURN = """
import subprocess, sys
CODE = "import time\\nwhile time.process_time() < 0.5: pass"
def test_child():
    subprocess.run([sys.executable, "-c", CODE], check=True)
"""
FOUR = """
import pytest
@pytest.mark.parametrize("k", range(4))
def test_it(k):
    pass
"""


@pytest.fixture
def record(pytester, monkeypatch):
    """The record of runs in pytester's folder; the worker processes find it by a plugin."""
    path = pytester.path / "suite.json"
    monkeypatch.setenv("PYTHONPATH", str(suite.ROOT))
    pytester.makepyfile(own_record=f"from pathlib import Path\nfrom tools import suite\n"
                                   f"suite.RECORD = Path({str(path)!r})\n"
                                   f"suite.ROOT = suite.RECORD.parent\n")
    return path


def test_two_workers_keep_files_whole_start_with_the_longest_and_add_up_the_cost(
        pytester, record):
    record.write_text(json.dumps({"groups": {"c": {"worker": 9}, "b": {"worker": 5}}}))
    pytester.makepyfile(test_a=FOUR, test_b=FOUR, test_c=FOUR, test_hot=BURN)
    done = pytester.runpytest_subprocess(
        "-v", "-p", "own_record", "-p", "tools.suite", "-n", "2", "--dist", "loadscope",
        "--suite-record")
    done.assert_outcomes(passed=13)
    ran = [(words[0], words[-1].split(".py")[0]) for line in done.outlines
           if " PASSED " in line and (words := line.split())]
    workers = {file: {worker for worker, other in ran if other == file} for _, file in ran}
    assert all(len(mine) == 1 for mine in workers.values())
    assert workers["test_b"] != workers["test_c"]
    files = [file for _, file in ran]
    assert files.index("test_a") > min(files.index("test_b"), files.index("test_c"))
    done.stdout.fnmatch_lines(["*where the minutes go*", "*hot *", "*all *"])
    parts = json.loads(record.read_text())["parts"]
    assert {name: row["tests"] for name, row in parts.items()} == {"a": 4, "b": 4, "c": 4, "hot": 1}
    assert parts["hot"]["cpu"] >= 0.5  # the time of its child, which it waited for


HANGS = """
import time
def test_before(): pass
def test_hangs(): time.sleep(300)
def test_behind(): pass
"""


def test_a_test_that_hangs_ends_once_and_costs_no_other(pytester, record):
    pytester.makepyfile(test_a=HANGS, test_b=FOUR)
    done = pytester.runpytest_subprocess(
        "-p", "own_record", "-p", "tools.suite", "-n", "2", "--dist", "loadscope",
        "-o", "faulthandler_timeout=5", "-o", "faulthandler_exit_on_timeout=true")
    done.assert_outcomes(passed=6, failed=1)
    done.stdout.fnmatch_lines(["FAILED test_a.py::test_hangs*crashed while running*"])
    assert "in test_hangs" in done.stderr.str()  # where it hung


def test_the_table_ends_with_the_others_and_the_sum():
    parts = {f"part{k:02}": {"worker": float(k), "cpu": 1.0, "tests": 2} for k in range(17)}
    head, *rows = suite.lines(parts)
    assert head.split() == ["part", "worker", "s", "CPU", "s", "tests"]
    assert rows[0].split() == ["part16", "16", "1", "2"]
    assert rows[-2].split() == ["3", "others", "3", "3", "6"]
    assert rows[-1].split() == ["all", "136", "17", "34"]


def test_what_is_split_by_stage_has_its_tests():
    files = {suite.part(f"tests/{path.name}") for path in (suite.ROOT / "tests").glob("test_*.py")}
    assert files >= suite.BY_STAGE
