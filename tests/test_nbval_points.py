"""The pytest plugin: points for check cells, in the terminal and in JUnit."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from dlsys import nbval_points
from dlsys_helpers import catalog

# Behaves like the package's CheckFailed without importing torch.
SETUP = """
class CheckFailed(AssertionError):
    def _render_traceback_(self):
        return [str(self)]
def check(id, fn):
    value = fn()
    if value != 1:
        raise CheckFailed(f"exercise {id} wrong: value: got {value}, expected 1. Look at dim.")
"""


def code(source: str, **dlsys) -> dict:
    return {"cell_type": "code", "metadata": {"dlsys": dlsys} if dlsys else {}, "outputs": [],
            "execution_count": None, "source": source}


def check(id: str, answer: str) -> dict:
    """A check cell, recognised only by its call."""
    return code(f'check("{id}", {answer})')


POINTS = {trap.id: trap.points for trap in catalog.traps(1)}


def write(path, cells, **dlsys):
    path.parent.mkdir(exist_ok=True)
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "dlsys": dlsys}
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    path.write_text(json.dumps(
        {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}))
    return path


def run(folder, *args: str) -> subprocess.CompletedProcess:
    """Run pytest in a separate process; nbval's imports take seconds, so there are few runs."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider",
         "-p", "no:hypothesispytest", "--nbval-lax", *args],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def learner(tmp_path_factory):
    """One learner's renamed worksheet, run once: a pass, two failures, a skip, a slow cell."""
    folder = tmp_path_factory.mktemp("learner")
    write(folder / "my-work" / "renamed.ipynb", [
        code(SETUP),
        check("01.1", "lambda: 1"),
        check("01.2", "lambda: 7"),
        check("01.3", "lambda: undefined_name"),
        {**check("01.8", "lambda: 1"), "metadata": {"tags": ["nbval-skip"]}},
        code("while True: pass\ncheck('01.9', lambda: 1)"),
        code("check('01.4', lambda: 1)\ncheck('01.10', lambda: 1)"),
    ], stage=1)
    # With -n the scores have to come from another process; without it the path is shorter.
    return folder, run(folder, "-n", "1", "--nbval-cell-timeout=3", "my-work/renamed.ipynb")


def test_the_table_shows_points_and_short_messages(learner):
    _, result = learner
    assert result.returncode == 1
    table = result.stdout.partition("scores of my-work/renamed.ipynb")[2]
    rows = {line.split()[0]: line for line in table.splitlines() if line.strip()}
    assert rows["01.1"].split()[1:3] == ["pass", f"{POINTS['01.1']}/{POINTS['01.1']}"]
    assert rows["01.2"].split()[1:3] == ["wrong", f"0/{POINTS['01.2']}"]
    assert "value: got 7, expected 1. Look at dim." in table
    assert rows["01.3"].split()[1:3] == ["error", f"0/{POINTS['01.3']}"]
    assert "NameError: name 'undefined_name' is not defined" in table
    assert rows["01.8"].split()[1:3] == ["skipped", "0/1"]
    assert rows["01.9"].split()[1:3] == ["error", "0/1"]
    assert rows["01.4"].split()[1:3] == ["pass", f"{POINTS['01.4']}/{POINTS['01.4']}"]
    assert rows["01.10"].split()[1:3] == ["pass", "1/1"]
    assert "is there a loop that never ends?" in table


def test_a_failing_check_is_one_line_without_traceback(learner):
    _, result = learner
    assert "exercise 01.2 wrong: value: got 7, expected 1. Look at dim." in result.stdout
    assert "Traceback" not in result.stdout
    assert "renamed.ipynb::01.2 (Cell 2)" in result.stdout


def test_junit_is_written_by_default_and_named_by_the_metadata(learner):
    folder, result = learner
    path = folder / "my-work" / "01_scores.junit.xml"
    assert str(path) in result.stdout
    cases = ElementTree.parse(path).iter("testcase")
    points = {case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")}
              for case in cases}
    assert points["Cell 0"] == {}
    assert points["01.1 (Cell 1)"] == {
        "exercise": "01.1", "verdict": "pass", "points": str(POINTS["01.1"]),
        "max_points": str(POINTS["01.1"])}
    assert points["01.2 (Cell 2)"]["points"] == "0"
    assert points["01.4, 01.10 (Cell 6)"]["max_points"] == str(POINTS["01.4"] + 1)


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """A folder with an intact and a truncated worksheet, only collected; JUnit goes elsewhere."""
    folder = tmp_path_factory.mktemp("collected")
    sound = write(folder / "my-work" / "a.ipynb", [code(SETUP), check("01.1", "1")])
    (folder / "my-work" / "b.ipynb").write_text(sound.read_text()[:-30])
    write(folder / "my-work" / "01_lesson.ipynb", [code("1 / 0")], stage=1, view="lesson")
    return folder, run(folder, "--collect-only", "-q", "--junitxml=own.xml", "my-work")


def test_check_cells_are_named_after_their_exercise(collected):
    lines = collected[1].stdout.splitlines()
    assert [line for line in lines if "::" in line] == [
        "my-work/a.ipynb::Cell 0", "my-work/a.ipynb::01.1 (Cell 1)"]


def test_an_unreadable_worksheet_is_one_clear_line(collected):
    _, result = collected
    assert result.returncode == pytest.ExitCode.INTERRUPTED
    assert "my-work/b.ipynb: stops in the middle" in result.stdout
    assert "Traceback" not in result.stdout


def test_an_explicit_junit_path_is_left_alone(collected):
    assert list((collected[0] / "my-work").glob("*.xml")) == []


def test_several_notebooks_share_a_junit_file(tmp_path):
    pair = [tmp_path / "a.ipynb", tmp_path / "b.ipynb"]
    assert nbval_points.junit_path(pair) == tmp_path / "scores.junit.xml"


def test_other_runs_are_left_as_they_are(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("dlsys_points")
    assert not pytestconfig.pluginmanager.has_plugin("dlsys_scores")


def score(id: str, points: int, possible: int, message: str = "") -> dict:
    return {"id": id, "verdict": "pass" if points else "wrong", "points": points,
            "possible": possible, "message": message}


def test_an_exercise_without_check_cell_stays_in_the_total():
    declared = {id: replace(catalog.traps(1)[0], id=id, fault=f"fault {id}", points=4)
                for id in ("01.1", "01.2")}
    lines = nbval_points.score_lines([score("01.1", 4, 4), score("x", 0, 1, "m " * 80)], declared)
    assert lines[0] == "  01.1   pass           4/4  Fault 01.1"
    assert lines[1] == "  01.2   not checked    0/4  Fault 01.2"
    assert "check cell is missing" in lines[2]
    assert max(map(len, lines)) <= 100
    assert lines[-1].split() == ["total", "4/9"]
