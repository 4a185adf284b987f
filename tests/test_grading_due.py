"""Due dates: read from one file for a course, and compared only with known times."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from test_grading_reports import result

from dlsys.grading.books import due, pages, scoring, submissions
from dlsys.grading.books.due import BadCourse
from dlsys.grading.books.run_folder import COURSE
from dlsys.grading.books.scoring import Scoring

RULE = 'late = "10%/day"\nlate_max = "50%"\ngrace = "15min"\n'
DATES = "[due]\n1 = 2027-01-15T23:59:00+01:00\n2 = 2027-01-22T23:59:00+01:00\n"
UNTIL = datetime.fromisoformat("2027-01-15T23:59:00+01:00")
HEAD = "learner,stage,due,handed_in\n"


def course(folder, text: str = RULE + DATES, extensions: str = "") -> due.Course:
    folder.mkdir(exist_ok=True)
    (folder / COURSE).write_text(text, "utf-8")
    if extensions:
        (folder / due.EXTENSIONS).write_text(extensions, "utf-8")
    return due.read(folder / COURSE)


def late(folder, after: timedelta, points: str = "ppppp", **more) -> dict:
    """The scored result of a hand-in submitted this long after the due date."""
    given = result("ada", points, "7", handed_in=(UNTIL + after).isoformat(), **more)
    (scored,) = scoring.scored([given], [], Scoring(course=course(folder)))
    return scored


@pytest.mark.parametrize(("after", "points"), [  # of 15; 1.5 off for each day begun
    (timedelta(hours=-2), 15), (timedelta(minutes=15), 15), (timedelta(minutes=16), 13.5),
    (timedelta(days=1), 13.5), (timedelta(days=1, seconds=1), 12), (timedelta(days=40), 7.5)])
def test_each_day_that_has_begun_costs_its_share(tmp_path, after, points):
    scored = late(tmp_path, after)

    assert scored["points"] == points
    assert scored["due"]["off"] == 15 - points
    assert bool(scored["notes"]) == (after > timedelta())


def test_a_day_costs_a_share_of_what_was_asked_for(tmp_path):
    """Two days cost 10 % each of 7 points, not of 15, which includes exercises not asked for."""
    rules = Scoring(course=course(tmp_path, RULE + DATES + '[asked]\n1 = ["01.1", "01.3"]\n'))
    given = result("ada", "ptptt", "7", handed_in=(UNTIL + timedelta(hours=46)).isoformat())
    (scored,) = scoring.scored([given], [], rules)

    assert (scored["points"], scored["possible"], scored["due"]["off"]) == (5.6, 7, 1.4)


def test_a_late_submission_says_how_late_and_never_goes_below_nothing(tmp_path):
    scored = late(tmp_path, timedelta(days=2, hours=3), "ptttt")  # 3 points, and 4.5 off

    assert scored["points"] == 0
    assert scored["notes"] == ["Handed in 2 d 3 h after the due date: 3 points off."]
    assert scored["exercises"][0]["points"] == 3


def test_a_page_says_when_it_was_due_and_the_rule(tmp_path):
    rules = Scoring(course=course(tmp_path))
    page = " ".join(pages.feedback([late(tmp_path, timedelta(days=2))], {
        "run": {"begun": "2027-01-20T10:00:00+00:00"}, "scoring": rules.plain()}).split())

    assert ("Due 15 January 2027, 23:59 UTC+01:00. Late: 10 % of the points asked for, for each "
            "day or part of one, at most 50 %; nothing within 15 min.") in page
    assert due.Course({}).rule() == "nothing is deducted"


def test_without_a_time_nothing_is_taken_off_and_a_late_one_says_so(tmp_path):
    rules = Scoring(course=course(tmp_path))
    ada, bob = scoring.scored([result("ada", "ppppp", late=True), result("bob", "ppppp")], [],
                              rules)

    assert ada["points"] == bob["points"] == 15
    assert ada["notes"] == ["It is not known when this was handed in, so nothing is deducted."]
    assert ada["due"] == {"due": UNTIL.isoformat(), "handed_in": "", "off": 0}


def test_an_extension_moves_one_learners_date_and_a_time_can_be_given(tmp_path):
    rules = course(tmp_path, extensions=HEAD + "7,1,2027-01-18T23:59:00+01:00,\n"
                   "bob,1,,2027-01-16T10:00:00+01:00\nnobody,1,2027-01-18T23:59:00+01:00,\n"
                   "nobody,2,2027-01-18T23:59:00+01:00,\n")
    given = [result("ada", "ppppp", "7", handed_in="2027-01-18T20:00:00+01:00"),
             result("bob", "ppppp"), result("eve", "ppppp")]
    ada, bob, eve = scoring.scored(given, [], Scoring(course=rules))

    assert [r["points"] for r in (ada, bob, eve)] == [15, 13.5, 15]
    # Stage 2 is not in this run.
    assert due.unmatched_extensions([ada, bob, eve], rules) == ["nobody"]


def test_an_extension_that_two_people_answer_to_is_refused(tmp_path):
    rules = course(tmp_path, extensions=HEAD + "Ada,1,2027-01-18T23:59:00+01:00,\n")
    ada, other = result("Ada", "p", "7734", "canvas"), result("Ada", "p", "7736", "canvas")

    with pytest.raises(BadCourse, match=r"row 2: 2 people are called 'Ada'; give the number: 7734, "
                                        r"7736$"):
        scoring.scored([ada, other], [], Scoring(course=rules))
    last = {**other, "stage": 2}  # outside Moodle, a different number is a different person
    with pytest.raises(BadCourse, match="2 people are called 'Ada'"):
        scoring.scored([ada, last], [], Scoring(course=rules))
    scoring.scored([last], [], Scoring(course=rules))  # no row for a stage of this run


@pytest.mark.parametrize(("rows", "said"), [
    ("ada,1,2027-01-17T10:00Z,\nada,1,2027-01-18T10:00Z,\n", "row 3: got a second due for 'ada'"),
    ("ada,1,,2027-01-17T10:00Z\nada,1,,2027-01-18T10:00Z\n", "row 3: got a second handed_in"),
    ("ada,1,2027-01-17T10:00Z,\n7,1,2027-01-18T10:00Z,\n",
     "row 3: got a second due for '7' and stage 1, after the one in row 2. Remove one")])
def test_a_second_extension_is_refused(tmp_path, rows, said):
    with pytest.raises(BadCourse, match=said):
        scoring.scored([result("ada", "p", "7")], [], Scoring(
            course=course(tmp_path, extensions=HEAD + rows)))


def test_two_rows_may_say_due_date_and_time(tmp_path):
    rules = course(tmp_path, extensions=HEAD + "ada,1,2027-01-17T23:59:00+01:00,\n"
                   "ada.ipynb,1,,2027-01-17T20:00:00+01:00\n")
    (ada,) = scoring.scored([result("ada", "ppppp")], [], Scoring(course=rules))

    assert (ada["points"], ada["due"]["off"]) == (15, 0)
    assert ada["due"]["handed_in"]


def test_an_extension_in_another_zone_leaves_moodles_clock(tmp_path):
    rules = course(tmp_path, extensions=HEAD + "eve,1,2027-01-15T22:59:00Z,\n")
    cells = {("moodle", "9", None): "Saturday, 16 January 2027, 12:20 AM"}
    (eve,) = scoring.scored([result("eve", "ppppp", "9", "moodle")], [],
                            Scoring(course=rules, cells=cells))

    assert eve["notes"] == ["Handed in 21 min after the due date: 1.5 points off."]


def test_moodles_clock_is_that_of_another_stage_where_this_one_has_no_date(tmp_path):
    rules = course(tmp_path, text=RULE + DATES.replace("1 = 2027-01-15T23:59:00+01:00\n", ""),
                   extensions=HEAD + "eve,1,2027-01-15T18:00:00-05:00,\n")
    cells = {("moodle", "9", None): "Saturday, 16 January 2027, 12:20 AM"}
    (eve,) = scoring.scored([result("eve", "ppppp", "9", "moodle")], [],
                            Scoring(course=rules, cells=cells))
    assert eve["notes"] == ["Handed in 20 min after the due date: 1.5 points off."]


def test_the_best_after_the_deduction_counts(tmp_path):
    early = result("ada", "pppwp", handed_in=UNTIL.isoformat())
    after = result("ada", "ppppp", handed_in=(UNTIL + timedelta(days=9)).isoformat())
    scored = scoring.scored([after, early], [], Scoring(course=course(tmp_path)))

    assert scoring.best(scored) == [scored[1]]
    assert "this one counts" in scored[1]["notes"][-1]
    assert "a different one, with more points, counts" in scored[0]["notes"][-1]


@pytest.mark.parametrize(("text", "said"), [
    ("due = 3\n", r"got due = 3, expected a table"),
    ("[due]\n1 = 2027-01-15T23:59:00\n", "expected a date with a time and an offset"),
    ("[due]\n1 = 2027-01-15\n", "expected a date with a time and an offset"),
    ("[due]\n99 = 2027-01-15T23:59:00+01:00\n", "got stage '99'"),
    ("[asked]\n1 = []\n", r"asked 1: got \[\], expected a list of some of 01.1, 01.2"),
    ('[asked]\n1 = ["02.1"]\n', "expected a list of some of 01.1, 01.2"),
    ("asked = 1\n", r"expected a table: \[asked\]"),
    ('late = "10% a week"\n', "got late = '10% a week', expected a text such as 10%/day"),
    ("late_max = 50\n", "got late_max = '50', expected a text such as 50%"),
    ('graze = "15min"\n', "got 'graze', expected due, late, late_max, grace"),
    ("[due\n", "is not valid TOML"),
    (DATES + "01 = 2027-01-16T23:59:00+01:00\n", "got two due dates for stage 1, expected one"),
])
def test_a_course_that_makes_no_sense_is_named(tmp_path, text, said):
    with pytest.raises(BadCourse, match=said):
        course(tmp_path, text)


@pytest.mark.parametrize(("row", "said"), [
    ("ada,1,,\n", "row 2: got no date"), ("ada,x,,\n", "row 2: got no date"),
    ("ada,x,2027-01-18T23:59:00+01:00,\n", "row 2: got stage 'x'"),
    ("ada,1,tomorrow,\n", "row 2: got 'tomorrow', expected a date"),
    ("ada,1\n", "row 2: got 2 cells, expected 4")])
def test_an_extension_that_makes_no_sense_is_named(tmp_path, row, said):
    with pytest.raises(BadCourse, match=said):
        course(tmp_path, extensions=HEAD + row)


@pytest.mark.parametrize(("text", "moment"), [
    ("2027-01-15 22:59:00.5 UTC\n", "2027-01-15T22:59:00.500000+00:00"),
    ("2027-01-15 23:59:00 Europe/Berlin", "2027-01-15T23:59:00+01:00"),
    ("2027-01-15 23:59:00 Nowhere/At all", ""), ("soon", ""), ("", "")])
def test_nbgraders_time_is_read_with_its_zone(text, moment):
    assert due.nbgrader_time(text) == moment


@pytest.mark.parametrize(("cell", "moment"), [
    ("Friday, 15 January 2027, 11:59 PM", datetime(2027, 1, 15, 23, 59, tzinfo=UNTIL.tzinfo)),
    ("Saturday, 16 January 2027, 12:05 AM", datetime(2027, 1, 16, 0, 5, tzinfo=UNTIL.tzinfo)),
    ("Freitag, 5. März 2027, 08:30", datetime(2027, 3, 5, 8, 30, tzinfo=UNTIL.tzinfo)),
    ("-", None), ("vendredi, 15 janvier 2027, 23:59", None)])
def test_moodles_time_is_read_in_english_and_german(cell, moment):
    assert due.moodle_time(cell, UNTIL.tzinfo) == moment


def test_the_time_of_moodles_sheet_counts(tmp_path):
    cells = {("moodle", "9", None): "Saturday, 16 January 2027, 8:00 AM"}
    given = [result("eve", "ppppp", "9", "moodle"), result("ada", "ppppp", "9", "canvas")]
    eve, ada = scoring.scored(given, [], Scoring(course=course(tmp_path), cells=cells))

    assert [eve["points"], ada["points"]] == [13.5, 15]


@pytest.mark.parametrize("packed", [False, True])
def test_nbgrader_says_when_what_and_who_handed_in_no_notebook(tmp_path, packed):
    for name in ("ada", "adam"):
        folder = tmp_path / "in" / "submitted" / name / "ps1"
        folder.mkdir(parents=True)
        (folder / "timestamp.txt").write_text("2027-01-15 22:59:00.0 UTC")
        (folder / f"work.{'py' if name == 'adam' else 'ipynb'}").write_text("{}")

    path = tmp_path / "in"
    if packed:
        path = Path(shutil.make_archive(str(tmp_path / "all"), "zip", path))
    found = submissions.find([path])
    ada, adam = sorted(found.submissions, key=lambda one: one.name)

    assert (ada.assignment, ada.handed_in) == ("ps1", "2027-01-15T22:59:00+00:00")
    assert "is not a notebook, and no other file" in adam.problem
    assert found.left_out == []


def test_table_and_overview_say_for_how_many_no_time_is_known(tmp_path):
    rules = course(tmp_path, extensions=HEAD + "zoe,1,2027-01-18T23:59:00+01:00,\n")
    results = scoring.scored([result("ada", "ppppp"), result("bob", "ppppp")], [],
                             Scoring(course=rules))
    page = " ".join(pages.overview({"run": {"begun": "2026-11-23T02:15:17+00:00",
                                            "settings": {"key": "00"}},
                                    "scoring": Scoring(course=rules).plain(),
                                    "results": results}).split())

    assert "Late: 10 % of the points asked for" in page
    assert "The time of handing in is not known for 2 of 2, so nothing is deducted there." in page
    assert due.remarks(results, rules) == [
        "The time of handing in is not known for 2 of 2, so nothing is deducted there. You can "
        "give a time in extensions.csv.", "extensions.csv: no learner of this run is called zoe."]
