"""One page for several runs: who, what and which mistakes, with each learner counted once."""

from __future__ import annotations

import csv
import io
import json

import pytest
from test_grading_reports import EVIL, Tags, result

from dlsys import cli
from dlsys.grading.books import pages, term
from dlsys.grading.books.run_folder import SCHEMA


def mistaken(name: str, mistake: str, id: str = "", source: str = "") -> dict:
    given = result(name, "pwppp", id, source)
    given["exercises"][1] |= {"misconception": mistake, "trap": "01.2"}
    return given


@pytest.fixture
def folders(tmp_path):
    """Two runs of stage 1, a week apart; Moodle gives Eve a different number each time."""
    runs = {"week2": ("2027-01-22T10:00:00+00:00",
                      [result("ada", "ppppp"), mistaken("Eve", "softmax over dim 0", "5", "moodle"),
                       {**result("Eve", "pp", "6", "moodle"), "stage": 2}]),
            "week1": ("2027-01-15T10:00:00+00:00",
                      [mistaken("ada", EVIL), mistaken("Eve", "softmax over dim 0", "9", "moodle"),
                       mistaken("Max", "softmax over dim 0")])}
    for name, (begun, results) in runs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "grades.json").write_text(json.dumps(
            {"schema": SCHEMA, "run": {"begun": begun}, "results": results}), "utf-8")
    return [tmp_path / name for name in runs]


def test_mistakes_are_counted_run_by_run_in_the_order_of_time(folders):
    runs = sorted(map(term.read, folders), key=lambda one: one.begun)

    assert [one.day for one in runs] == ["15 Jan", "22 Jan"]
    assert [(row["id"], row["name"], row["total"], row["by_run"]) for row in term.mistakes(runs)
            ] == [("01.2", "softmax over dim 0", 3, [2, 1]), ("01.2", EVIL, 1, [1, 0])]


def test_each_learner_counts_once_with_the_best(folders):
    facts = term.facts([term.read(folder) for folder in folders])

    assert [(row["name"], row["points"], row["possible"]) for row in facts["people"]] == [
        ("ada", 15, 15), ("Eve", 18, 21), ("Max", 12, 15)]
    assert [row["solved"] for row in facts["solved"]][:5] == [3, 1, 3, 3, 3]
    assert [row["n"] for row in facts["solved"]][:5] == [3] * 5


def test_two_people_of_one_name_in_one_run_stay_two(folders):
    path = folders[0] / "grades.json"
    grades = json.loads(path.read_text("utf-8"))
    grades["results"].append(result("Eve", "ttttt", "77", "moodle"))
    path.write_text(json.dumps(grades), "utf-8")

    facts = term.facts([term.read(folder) for folder in folders])

    assert [row["name"] for row in facts["people"]] == [
        "ada", "Eve (5)", "Eve (6)", "Eve (77)", "Eve (9)", "Max"]
    assert facts["matched"].endswith(
        "Two people in one run have the same name, so there is a row for each number: Eve.")


def test_the_numbers_of_learners_who_are_matched_by_name_are_shown(folders, tmp_path, capsys):
    line = ("Moodle renumbers people for each assignment, so its learners are matched by "
            "name. 1 with different numbers: Eve (9, 5, 6).")

    assert cli.main(["term", *map(str, folders), "--out", str(tmp_path / "out")]) == 0

    assert capsys.readouterr().out.splitlines()[1] == line
    assert line in (tmp_path / "out" / term.PAGE).read_text("utf-8")
    assert term.matched([term.read(folders[0])]).endswith("1 with different numbers: Eve (5, 6).")


def test_people_of_one_name_without_numbers_show_their_paths(folders):
    path = folders[0] / "grades.json"
    grades = json.loads(path.read_text("utf-8"))
    for k in "ab":
        given = result("kim", "ppppp")
        grades["results"].append({**given, "name": f"{k}/kim.ipynb",
                                  "learner": {**given["learner"], "raw": k}})
    path.write_text(json.dumps(grades), "utf-8")

    people = term.facts([term.read(folder) for folder in folders])["people"]

    assert [row["name"] for row in people][2:4] == ["kim (a/kim.ipynb)", "kim (b/kim.ipynb)"]


def test_the_command_writes_a_page_and_a_table(folders, tmp_path, capsys):
    out = tmp_path / "out"

    assert cli.main(["term", *map(str, folders), "--out", str(out)]) == 0

    assert "2 runs: " in capsys.readouterr().out
    page, table = (out / term.PAGE).read_text("utf-8"), (out / term.TABLE).read_text("utf-8-sig")
    assert not Tags(page).tags & {"script", "img", "link", "iframe"}
    assert "&lt;script&gt;" in page
    rows = list(csv.reader(io.StringIO(table)))
    assert ["week1", "2027-01-15T10:00:00+00:00", "01.2", pages.assignments.traps(1)[1].name,
            "3", "0", "softmax over dim 0", "2"] in rows
    assert {path.stat().st_mode & 0o077 for path in out.iterdir()} == {0}


@pytest.mark.parametrize(("content", "said"), [
    (None, "No such file or directory. Give the folders of finished runs"),
    ("{", "has no results that can be read"), ("[]", "has no results"),
    ('{"schema": 7}', "has no results"),
    (f'{{"schema": {SCHEMA}, "run": {{}}}}', "has no results")])
def test_a_folder_that_is_no_run_is_named(tmp_path, capsys, content, said):
    if content is not None:
        (tmp_path / "grades.json").write_text(content)

    assert cli.main(["term", str(tmp_path), "--out", str(tmp_path / "out")]) == 2

    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()


def test_exercises_stand_in_their_own_order():
    assert sorted(["08.10", "08.2", "11.1"], key=term.id_order) == ["08.2", "08.10", "11.1"]
