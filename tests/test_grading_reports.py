"""One JSON becomes every report, and in none of them does a learner's text become markup."""

from __future__ import annotations

import csv
import html.parser
import io
import os
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from dlsys import assignments
from dlsys.grading import cohort
from dlsys.grading.books import gradebooks, pages, reports, scoring, summary
from dlsys.grading.books.run_folder import SCHEMA
from dlsys_files import locations
from dlsys_helpers import catalog, paths

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>=HYPERLINK(1)"
TRAPS = assignments.traps(1)
PIN = next(line for line in (paths.ROOT / "requirements.lock").read_text("utf-8").splitlines()
           if line.startswith("torchao=="))


def exercise(k: int, status: str, **more: Any) -> dict[str, Any]:
    trap = TRAPS[k]
    return {"id": trap.id, "title": trap.name, "function": trap.function,
            "status": status, "points": trap.points if status == "pass" else 0,
            "possible": trap.points, "message": "" if status == "pass" else "got 1, expected 2",
            "misconception": "", "trap": "", "case": "", "notebook_shows": "nothing",
            "differs": False, **more}


def result(name: str, statuses: str, id: str = "", source: str = "", **more: Any) -> dict:
    words = {"p": "pass", "t": "todo", "w": "wrong", "e": "error"}
    entries = [exercise(k, words[letter]) for k, letter in enumerate(statuses)]
    return {"name": f"{name}.ipynb", "sha256": "0" * 64,
            "learner": {"name": name, "id": id, "source": source, "raw": ""}, "status": "graded",
            "stage": 1, "points": sum(e["points"] for e in entries),
            "possible": sum(e["possible"] for e in entries), "exercises": entries, "cells": [],
            "notes": [], "wall": "Linux namespaces", "ended_by": "", "seconds": 0.3,
            "cpu_seconds": 0.1, "peak_mib": 400, "judge_peak_mib": 500, **more}


@pytest.fixture
def grades() -> dict[str, Any]:
    return sample()


def sample() -> dict[str, Any]:
    """A run of four: one all right, one half right, one with hostile markup, one refused."""
    ada = result("ada", "ppppp", "7", "canvas")
    bob = result("bob", "pwtep", "8", "canvas")
    bob["exercises"][1] |= {"misconception": "softmax for everything", "trap": "01.2",
                            "notebook_shows": "pass", "differs": True}
    bob["cells"] = [{"number": 4, "line": 2, "error": EVIL}]
    evil = result(EVIL, "wwwww", "9", "moodle", notes=[EVIL])
    for entry in evil["exercises"]:
        entry |= {"message": EVIL, "misconception": "softmax for everything"}
    broken = {"name": f"{EVIL}.ipynb", "sha256": "",
              "learner": {"name": "@cmd", "id": "", "source": "", "raw": ""},
              **cohort.refused(EVIL)}
    run = {"begun": "2026-01-01T00:00:00+00:00", "settings": {"key": "5ec2e7" * 5}}
    return {"schema": SCHEMA, "run": run, "results": [ada, bob, evil, broken]}


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_all_files_are_written_for_their_owner_only(tmp_path, grades):
    reports.write_all(grades, tmp_path)
    pages.write_all(grades, tmp_path)

    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"grades.csv", "exercises.csv", "junit.xml", "nbgrader.csv",
                     "canvas_01_activations.csv", "moodle_01_activations.csv", "overview.html",
                     "similar.csv", "marking",
                     "feedback", "feedback_canvas_01_activations.zip",
                     "feedback_moodle_01_activations.zip"}
    assert len(list((tmp_path / "feedback").iterdir())) == 4
    for path in tmp_path.rglob("*"):
        assert os.stat(path).st_mode & 0o077 == 0


def test_what_a_class_lacks_and_who_handed_in_alike_is_said_once(grades):
    ada, bob, evil, _ = grades["results"]
    gone = {"number": 2, "line": 1, "error": "ModuleNotFoundError: No module named 'pandas'"}
    bob["cells"] = ada["cells"] = [gone, gone]
    ada["code"] = bob["code"] = "1" * 64
    evil["code"] = "1" * 64  # no points for it, so it may be an untouched worksheet

    assert reports.missing_packages(grades["results"]) == [("pandas", "", ["ada", "bob"])]
    assert reports.with_the_same_code(grades["results"]) == [["ada", "bob"]]
    assert reports.with_the_same_code([ada, {**bob, "stage": 2}]) == []
    taken_away = {**bob, "points": 0}  # points taken away by hand
    assert reports.with_the_same_code([ada, taken_away]) == [["ada", "bob"]]
    twin = {**bob, "learner": {**bob["learner"], "name": "ada"}}
    assert reports.with_the_same_code([ada, twin]) == [["ada (7)", "ada (8)"]]
    assert reports.with_the_same_code([ada, bob, {**twin, "code": "2"}]) == [["ada (7)", "bob"]]
    assert ">ada (8)</a>" in pages.overview({**grades, "results": [ada, twin]})
    page, said = pages.overview(grades), "\n".join(summary.about([ada, bob]))
    for text in (page, said):
        assert "pandas" in text
        assert "ada, bob" in text
        assert "nstall it" not in text
    assert "2 learners need the package pandas" in said


def test_only_a_package_that_the_course_pins_is_recommended(grades):
    """A learner can raise an error of that name that mentions any package."""
    ada, bob, *_ = grades["results"]
    for one, name in ((ada, "torchao.quantization"), (bob, "torchvlsion-cuda")):
        one["cells"] = [{"number": 2, "line": 1,
                         "error": f"ModuleNotFoundError: No module named '{name}'"}]

    for text in (pages.overview(grades), "\n".join(summary.about([ada, bob]))):
        assert re.findall(r"pip install ([\w.=+-]*)", text) == [PIN]
        assert "torchvlsion-cuda" in text


def test_an_installed_grader_knows_the_pins_that_came_with_it(grades, monkeypatch, tmp_path):
    (tmp_path / "requirements.lock").write_text('Some_Package==1.2 ; platform_system == "Linux"\n')
    monkeypatch.setattr(locations, "SHIPPED", tmp_path)
    ada = grades["results"][0]
    ada["cells"] = [{"number": 2, "line": 1,
                     "error": "ModuleNotFoundError: No module named 'some_package'"}]

    assert reports.missing_packages([ada]) == [("some_package", "some-package==1.2", ["ada"])]


def test_who_asks_for_the_checks_lacks_no_package(grades):
    ada, bob, evil, _ = grades["results"]
    said = "No module named 'dlsys_checks.s01'"
    ada["cells"] = [{"number": 2, "line": 1, "error": f"ModuleNotFoundError: {said}"}]
    bob["exercises"][1]["message"] = f"raised ModuleNotFoundError: {said} (cell 5, line 2)"
    evil["cells"] = [{"number": 2, "line": 1, "error": "ImportError: cannot import name 's01' from "
                      "'dlsys_checks' (unknown location)"}]

    assert reports.missing_packages(grades["results"]) == []
    assert reports.asked_for_checks([ada, bob]) == ["ada", "bob"]
    assert reports.asked_for_checks([evil]) == [EVIL]
    assert reports.asked_for_checks([result("eve", "pw")]) == []
    assert "ada, bob: the sandbox hides the checks" in pages.overview(
        {**grades, "results": [ada, bob]})
    assert ("2 learners tried to import the checks, which the sandbox hides: ada, bob. Look at the "
            "code." in summary.about([ada, bob]))


def test_the_overview_has_the_notes(grades):
    grades["results"][0]["notes"] = ["According to the LMS, this was handed in late."]

    assert ("ada, ada.ipynb: According to the LMS, this was handed in late."
            in pages.overview(grades))


def test_no_cell_of_any_csv_is_a_formula(tmp_path, grades):
    grades["results"][0]["learner"]["name"] = "=1+1"
    reports.write_all(grades, tmp_path)

    for path in tmp_path.glob("*.csv"):
        cells = [cell for row in rows(path.read_text()) for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t"))], path
    assert "'=1+1" in (tmp_path / "grades.csv").read_text()


def test_excel_knows_what_it_opens_as_utf8(tmp_path, grades):
    reports.write_all(grades, tmp_path)

    begun = {path.name: path.read_bytes().startswith(b"\xef\xbb\xbf")
             for path in tmp_path.glob("*.csv")}
    assert begun.pop("nbgrader.csv") is False  # for programs
    assert len(begun) == 5
    assert all(begun.values())


def test_a_number_of_the_lms_is_text_in_every_table(grades):
    grades["results"][0]["learner"]["id"] = "007"

    assert '"007"' in reports.rows_as_csv(reports.table(grades["results"], grades["run"]))


def test_no_cell_is_a_formula_where_semicolons_separate(grades):
    """There a quote protects a cell only at its beginning, and the row's second cell has none."""
    grades["results"][0]["learner"]["name"] = "x;=1+1;"
    grades["results"][0]["name"] = 'a;=1+1; "-2;x.ipynb'
    text = reports.rows_as_csv(reports.table(grades["results"], grades["run"]))

    for row in csv.reader(io.StringIO(text), delimiter=";"):
        assert [cell for cell in row if cell.lstrip(" \"").startswith(("=", "+", "-", "@"))] == []


def test_a_comment_for_moodle_holds_no_html(grades):
    assert EVIL in grades["results"][2]["exercises"][0]["message"]
    comments = [row[-1] for row in gradebooks.moodle(grades["results"])[1:]]

    assert not any("<" in comment for comment in comments)
    assert any("&lt;script&gt;" in comment for comment in comments)


def test_csv_has_a_row_for_each_submission_and_exercise(grades):
    table = reports.table(grades["results"], grades["run"])
    assert [row[5] for row in table[1:]] == [15, 5, 0, 0]
    assert len(reports.exercises(grades["results"])) == 1 + 15


def test_the_best_of_several_submissions_goes_into_the_gradebook(grades):
    again = result("ada", "ptttt", "7", "canvas")
    chosen = scoring.best([again, *grades["results"]])

    assert [r["points"] for r in chosen if r["learner"]["name"] == "ada"] == [15]
    assert len(chosen) == 3


def test_junit_counts_failures_errors_and_skips(grades):
    root = ElementTree.fromstring(reports.junit(grades["results"]))

    bob = root[1].attrib
    assert (bob["tests"], bob["failures"], bob["errors"], bob["skipped"]) == ("5", "1", "1", "1")
    assert root[3].attrib["errors"] == "1"
    assert root[3].find("testcase/error") is not None


def test_nbgrader_columns_are_those_of_its_own_export(grades):
    exported = reports.nbgrader(grades["results"])

    assert exported[0] == ["assignment", "duedate", "timestamp", "student_id", "last_name",
                           "first_name", "email", "raw_score", "late_submission_penalty", "score",
                           "max_score"]
    assert exported[1] == ["01_activations", "", "", "7", "", "ada", "", 15, 0, 15, 15]
    when = {"due": "2027-01-15T23:59:00+01:00", "handed_in": "2027-01-16T08:00:00+01:00",
            "off": 1.5}
    late = {**result("ada", "ppppp"), "points": 13.5, "due": when, "assignment": "ps1"}
    assert reports.nbgrader([late])[1] == ["ps1", when["due"], when["handed_in"], "ada", "", "ada",
                                           "", 15, 1.5, 13.5, 15]


# ---- pages

class Tags(html.parser.HTMLParser):
    """Every tag and attribute of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_strangers_words_make_no_tags(grades):
    texts = [pages.overview(grades), *(pages.feedback([r], grades) for r in grades["results"])]
    for text in texts:
        found = Tags(text)
        assert not found.tags & {"script", "img", "svg", "iframe", "object", "a:script"}
        assert not [name for name in found.attributes if name.startswith("on") or name == "src"]
        assert "default-src 'none'" in text
    assert "&lt;script&gt;" in texts[0]


def test_feedback_holds_neither_the_key_nor_another_learner(grades):
    text = pages.feedback([grades["results"][1]], grades)

    assert grades["run"]["settings"]["key"] not in text
    assert "ada" not in text
    assert "not written yet" in text
    assert "Your notebook shows a pass" in text
    assert "cell 4, line 2" in text


def test_the_overview_counts_misconceptions_and_names_what_nobody_solved(grades):
    del grades["results"][0]
    text = " ".join(pages.overview(grades).split())

    assert "2 &times; softmax for everything" in text
    assert "Nobody solved 01.2, 01.3, 01.4." in text
    assert "2 learners, 2.5 of 15 points on average" in text
    assert '<span class="wrong">2 not right yet' in text
    assert "the notebook shows a pass" in text


def test_the_overview_has_one_row_for_each_learner_and_a_column_for_each_stage(grades):
    again = {**result("ada", "ptttt", "7", "canvas"), "name": "ada2.ipynb"}
    later = {**result("ada", "pp", "7", "canvas"), "stage": 2}
    grades["results"] += [again, later]
    text = pages.overview(grades)

    row = text[text.index(">ada</a>"):].partition("</tr>")[0]
    assert [int(n) for n in re.findall(r"(\d+) of \d+", row)] == [15, 6]
    assert row.rstrip().endswith('<td class="n">3</td>')
    assert text.count(">ada</a>") == 1


def test_a_hint_shows_its_code_as_code(grades):
    assert "`" in catalog.trap("01.5").hints[0]
    given = result("bob", "ppppw")
    given["exercises"][4]["misconception"] = "looping over elements"
    text = pages.feedback([given], grades)
    assert "<code>abs</code>" in text
    assert pages.code_html("`<b>` & `x`") == "<code>&lt;b&gt;</code> &amp; <code>x</code>"


def test_feedback_names_the_lesson_to_read_again(grades):
    text = pages.feedback([grades["results"][1]], grades)
    assert f"01.2 {TRAPS[1].name}, in the lesson of Stage 1: " in text
    assert ".ipynb" not in text.replace("bob.ipynb", "")  # a class may use its own file names


def test_page_names_are_safe_and_differ():
    runs = [{"settings": {"key": key * 16}} for key in ("00", "01")]
    names = {reports.page_name(key, run) for run in runs for key in (
        ("", "", "../../etc/passwd"), ("moodle", "1", "Ada"), ("moodle", "2", "Ada"),
        ("", "", "学生"), ("", "", ""))}
    assert len(names) == 10
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.") for name in names)
    assert not any(".." in name or "/" in name for name in names)
    assert reports.page_name(("", "", "Jörg Weiß, Élodie Čapek"), runs[0]).startswith(
        "joerg-weiss-elodie-capek-")


def test_two_people_of_one_name_are_told_apart_everywhere(grades, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    twins = [result("Ada Ada", "ppppw", id, "canvas") for id in ("4711", "4712")]
    twins[1]["exercises"][4]["request"] = "my loop is right"
    summary.show({**grades, "results": twins}, tmp_path, [])
    out = capsys.readouterr().out
    assert "Ada Ada (4711)" in out
    assert "another look, see the folder marking: Ada Ada (4712) (01.5)." in out
    page = pages.overview({**grades, "results": twins})
    assert re.search(r"<li>Ada Ada \(4712\), <a [^>]*>01.5</a>", page)


def test_the_terminal_shows_the_words_as_they_are(grades, tmp_path, capsys):
    summary.show(grades, tmp_path, ["canvas.csv: 1 of 3 learners filled in."])

    out = capsys.readouterr().out
    assert "3 of 4 graded." in out
    assert "Sandbox: Linux namespaces." in out
    assert "canvas.csv: 1 of 3" in out
    assert "\x1b" not in out
