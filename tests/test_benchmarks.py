"""The page of measurements reports what the records contain and what they lack."""

import json
import os
import sys

import pytest

from benchmarks import machine, page, weights
from benchmarks.grading import __main__ as graders
from benchmarks.grading import soak

RUN = {"date": "2026-01-02", "load": "0.3", "machine": "2 cores of X"}


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Start without any record; a test writes those that it needs."""
    for name in ("RECORD", "SUITE"):
        monkeypatch.setattr(page, name, tmp_path / f"{name.lower()}.json")
    monkeypatch.setattr(page, "KERNELS", [tmp_path / "WARM.md"])
    monkeypatch.setattr(page, "GRADING", [tmp_path / "RESULTS.md"])
    return tmp_path


def write(folder, name, value):
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")


def test_the_stored_page_is_what_the_records_say():
    """Run: python -m benchmarks page"""
    assert page.TARGET.read_text("utf-8") == page.page()


def test_without_a_record_each_part_says_that_it_was_not_measured(records):
    text = page.page()
    assert text.count("Not measured yet: `python -m benchmarks ") == len(page.PARTS)
    assert "**Machine" not in text


def test_a_part_is_shown_with_its_date_its_load_and_three_digits(records):
    write(records, "record.json", {"lessons": {"run": RUN, "rows": [
        ["01_activations", 0.71234, 1234.5, 9.8765, 1.25, 1.1]]}})
    text = page.page()
    assert "**Machine:** 2 cores of X." in text
    assert "Measured 2026-01-02, load 0.3." in text
    assert "| 01_activations | 0.712 | 1,234 | 9.88 | 1.25 | 1.1 |" in text
    assert len(page.PARTS["lessons"].head) == 6


def test_two_machines_are_told_apart(records):
    other = RUN | {"machine": "8 cores of Y"}
    write(records, "record.json", {name: {"run": run, "rows": [["x", 1.0]]}
                                   for name, run in (("setup", RUN), ("start", other),
                                                     ("building", RUN))})
    text = page.page()
    assert text.count("**Machine") == 2
    assert "**Machine 2:** 8 cores of Y." in text
    assert "Each step ran once, one after the other. Measured 2026-01-02 on machine 2, load" in text


def test_warm_kernels_stand_before_the_learners_where_they_were_measured(records):
    title = "## Ordinary and warm"
    assert title not in page.page()
    write(records, "WARM.md", "# Ordinary and warm\n\nText.\n")
    text = page.page()
    assert text.index("to the first cell") < text.index(title) < text.index("## Learners on one")


@pytest.mark.parametrize(("name", "text", "told"), [
    ("suite.json", "7", "suite.json: got int, expected an object"),
    ("record.json", "{", "record.json: got no JSON"),
    ("record.json", "[]", "record.json: got list, expected an object")])
def test_a_record_that_is_none_gets_one_line(records, name, text, told):
    write(records, name, text)
    with pytest.raises(SystemExit, match=told.replace(".", r"\.")) as stopped:
        page.page()
    assert "\n" not in str(stopped.value)


def test_the_suite_adds_up(records, monkeypatch):
    monkeypatch.setattr(page, "SHOWN", 1)
    parts = {"a": {"worker": 100.0, "cpu": 40.0, "tests": 3},
             "b": {"worker": 500.0, "cpu": 60.0, "tests": 4},
             "c": {"worker": 120.0, "cpu": 5.0, "tests": 1}}
    write(records, "suite.json", {"run": "today", "parts": parts})
    text = page.page()
    assert "| b | 500 | 60 | 4 |\n| 2 others | 220 | 45 | 4 |\n| all | 720 | 105 | 8 |" in text
    assert "3 workers take 4 minutes" in text  # 720 / 3 / 60


def test_the_graders_page_stands_one_level_down(records):
    write(records, "RESULTS.md", "# The grader\n\nText # here.\n\n## More\n")
    assert page.page().endswith("\n\n## The grader\n\nText # here.\n\n### More\n")


def test_the_graders_are_compared_by_cpu_and_by_elapsed_time():
    points = {"ada": 3.0, "bob": 0.0}
    found = {"dlsys grade": {"points": points, "cpu": 10.0, "seconds": 20.0},
             "otter-grader": {"points": points, "cpu": 300.0, "seconds": 500.0},
             "nbgrader": {"points": {"ada": 3.0, "bob": 1.0}, "cpu": 200.0, "seconds": 400.0}}
    few, many = ({"cpu": cpu, "seconds": cpu} for cpu in (8.0, 20.0))  # 60 more take 12 s
    text = graders.report(2, 0.05, found, few, many)
    assert "| otter-grader | 150.00 | 30.0 | 0.2 | 25.0 | 2 of 2 |" in text
    found["otter-grader"] = {"points": {"ada": 3.0}, "cpu": 150.0, "seconds": 250.0}
    sampled = graders.report(2, 0.05, found, few, many)
    assert "| otter-grader | 150.00 | 30.0 | 0.2 | 25.0 | 1 of 1 |" in sampled
    assert "| nbgrader | 100.00 | 20.0 | 0.3 | 20.0 | 1 of 2 |" in text
    assert "| dlsys grade, without its start | 0.20 |" in text
    assert "Above the learners' own code: 0.150 CPU s" in text
    assert "run and worker: 6.8 s" in text  # 8 less six of 0.2


def test_a_soak_counts_what_was_lost_and_what_was_doubled(tmp_path):
    graded = {"status": "graded", "cpu_seconds": 0.2, "peak_mib": 90, "judge_peak_mib": 700}
    results = [graded | {"points": 13}, graded | {"points": 4}, {"status": "refused", "points": 0}]
    write(tmp_path, "grades.json", {"results": results})
    lines = [{}, *({"name": name} for name in ("ada", "bob", "bob", "eve"))]
    write(tmp_path, "journal.jsonl", "\n".join(map(json.dumps, lines)) + "\n")
    text = soak.report(soak.measurements(tmp_path, 4, 30.0), RUN)
    assert "Lost: 1. Graded twice: 1." in text
    assert "3 results: 2 graded, 1 refused. Points: 1 with 4, 1 with 13." in text
    assert "30 s, three starts included: 8 submissions a minute" in text
    assert "0.200 CPU s" in text


def test_the_memory_of_a_process_is_at_least_what_it_holds():
    if sys.platform != "linux":
        pytest.skip("only Linux tells how much of its memory a process shares")
    held = bytearray(os.urandom(1)) * (64 << 20)
    assert machine.pss_mib(os.getpid()) > len(held) / 2**20


def test_a_page_that_only_leads_on_is_no_trap_page(tmp_path, monkeypatch):
    """The index of traps/ only redirects to the list of traps; it once counted as the lightest."""
    monkeypatch.setattr(weights, "HTML", tmp_path)
    (tmp_path / "index.html").touch()
    for folder in weights.KINDS:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "01.html").write_text("<p>A trap.</p>", "utf-8")
        (tmp_path / folder / "index.html").write_text(
            '<meta http-equiv="refresh" content="0; url=../list.html">', "utf-8")
    assert [row[1] for row in weights.rows()] == [1, 1]
