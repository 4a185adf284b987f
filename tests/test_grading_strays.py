"""Hand-ins that do not count as they are: why, and what learner and instructor can do."""

from __future__ import annotations

import pytest
from test_grading_reports import exercise, result

from dlsys.grading import cohort
from dlsys.grading.books import gradebooks, pages, reports, scoring, strays, submitted_notebook
from dlsys.grading.books.due import Course
from dlsys.grading.books.scoring import Scoring
from dlsys.grading.books.strays import Place
from dlsys_files import notebook_reader

RUN = {"run": {"begun": "2026-03-05T09:00:00+00:00", "settings": {"key": "00"}}}
PLACE = Place("canvas", frozenset("12345"))


def canvas(name: str, id: str, **more) -> dict:
    return result(name, "ppppp", id, "canvas", **more)


def noted(*results: dict, places=(PLACE,), asked=None) -> list[dict]:
    return strays.noted(results, places, asked or {})


def page(one: dict) -> str:
    return " ".join(pages.feedback([one], RUN).split())


@pytest.mark.parametrize(("reason", "step"), [
    ("is the course's own lesson notebook, not the worksheet.", "in which you wrote your answers"),
    ("is not a notebook, and no other file was handed in; expected a file that ends in .ipynb.",
     "the file that ends in .ipynb: no PDF"),
    ("is a link, expected a file.", "not a link to it"),
    ("is a PDF, not a notebook, whatever its name says.", "the file that ends in .ipynb: no PDF"),
    ("has 33.0 MiB, expected at most 32.0 MiB. Clear its outputs and save it.", "Clear its"),
    ("stops in the middle (line 3): it was cut off while being saved.", "check that it opens"),
    ("is something that nobody foresaw.", "again, or ask your instructor")])
def test_a_refused_hand_in_says_what_to_hand_in(reason, step):
    ada = {**canvas("ada", "1"), **cohort.refused(reason)}
    (one, *_) = noted(ada, canvas("bob", "2"), canvas("eve", "3"))

    assert f"This submission was not graded: it {pages.code_html(reason)}" in page(one)
    assert step in page(one)
    assert "it this" not in page(one)
    assert one["stray"]["step"] == (
        "Ask for `01_activations.ipynb`; until then, put points into overrides.csv.")
    assert "01_activations.ipynb" in one["stray"]["you"] or "Clear" in one["stray"]["you"]


def test_a_lesson_is_refused_in_a_sentence():
    text = b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": "1"}], "metadata": ' \
           b'{"dlsys": {"stage": 8, "view": "lesson"}}}'
    with pytest.raises(submitted_notebook.Refused, match=r"^is the course's own lesson notebook"):
        submitted_notebook.parse(text)
    assert notebook_reader.parse(text).view == "lesson"


def test_another_stage_is_named_with_what_was_asked_for():
    later = {**canvas("ada", "1"), "stage": 7}
    (one, other, _) = noted(later, canvas("bob", "2"), canvas("eve", "3"))

    assert one["stray"]["reason"] == "is for stage 7, but stage 1 was asked for."
    assert "Hand in <code>01_activations.ipynb</code>." in page(one)
    assert "stray" not in other
    said = gradebooks.summary(one)
    assert said == ("Not counted: it is for stage 7, but stage 1 was asked for. Hand in "
                    "01_activations.ipynb.")
    text = pages.overview({**RUN, "results": [one, other]})
    assert "To settle" in text
    assert "--moodle 7=CSV" in text


def test_another_stage_is_fine_where_it_has_a_column_or_the_right_one_came_too():
    later = {**canvas("ada", "1"), "stage": 7}
    for place in (Place("canvas", frozenset("12"), frozenset([1, 7])),
                  Place("canvas", frozenset("12"), rule=True)):
        assert not [r for r in noted(later, canvas("bob", "2"), places=(place,)) if "stray" in r]
    (one, *_) = noted(later, canvas("ada", "1"), canvas("bob", "2"))
    assert one["stray"]["step"] == "Nothing: a different hand-in of this learner counts."


def test_what_was_asked_for_outweighs_the_number_of_hand_ins():
    results = [canvas("ada", "1"), *({**canvas(name, id), "stage": 7}
                                     for name, id in (("bob", "2"), ("eve", "3")))]
    found = noted(*results, asked={1: ("01.1",)})

    assert ["stray" in r for r in found] == [False, True, True]


def test_without_a_gradebook_the_course_says_which_stages_count():
    """nbgrader's table has no row for a hand-in for a stage outside the course."""
    results = [{**result("ada", "ppppp", source="nbgrader"), "stage": 7},
               result("bob", "ppppp", source="nbgrader")]
    found = strays.noted(results, (), {}, course=[1, 2])

    assert found[0]["stray"]["reason"] == "is for stage 7, but stage 1 or 2 was asked for."
    assert "01_activations.ipynb</code> or" in page(found[0])
    assert [row[3] for row in reports.nbgrader(found)[1:]] == ["bob"]
    assert not [r for r in strays.noted(results, (), {}) if "stray" in r]


def test_the_page_of_another_stage_asks_for_nothing_else():
    """It once listed eleven exercises as "not found" and told its learner to write the first."""
    later = {**canvas("ada", "1"), "stage": 7}
    later["exercises"] = [exercise(0, "pass"), exercise(1, "missing"), exercise(2, "wrong")]
    (one, *_) = noted(later, canvas("bob", "2"), canvas("eve", "3"))

    assert "checked anyway: 01.1 (passed), 01.3 (not right yet)." in page(one)
    for words in ("of 15 points", "What to do next", "01.2", "Regrade"):
        assert words not in page(one)
    (alone,) = noted(later)
    assert "What to do next" in page(alone)


def test_a_course_of_other_stages_says_nothing_about_these():
    """A course.toml in the folder once made every sheet of the exam a stray."""
    found = strays.noted([result("ada", "ppppp")], (), {}, course=[7, 8])
    assert "stray" not in found[0]


def test_people_with_one_number_keep_the_names_of_the_download():
    """Both once got the gradebook's name, as if one learner had handed in twice."""
    names = {("canvas", "1"): "Lovelace, Ada", ("canvas", "2"): "Bob K"}
    found = scoring.scored([canvas("ada", "1"), canvas("mal", "1"), canvas("bob", "2")], [],
                           Scoring(names=names, places=(PLACE,)))

    assert [r["learner"]["name"] for r in found] == ["ada", "mal", "Bob K"]


def test_a_person_whom_the_gradebook_lacks_is_named_with_the_points():
    (one, _) = noted(canvas("zoe", "99"), canvas("ada", "1"))

    assert one["stray"]["reason"] == "is of zoe, number 99, who is not in the gradebook."
    assert "type in 15 points" in one["stray"]["step"]
    assert "the gradebook of this course does not have you" in page(one)


def test_two_people_with_one_number_are_both_listed():
    found = noted(canvas("ada", "1"), canvas("mal", "1"), canvas("bob", "2"))

    assert [r.get("stray", {}).get("kind") for r in found] == ["twins", "twins", None]


def test_the_table_has_reason_and_next_step():
    head, row, *_ = reports.table(noted({**canvas("ada", "1"), "stage": 7}, canvas("bob", "2"),
                                        canvas("eve", "3")), RUN["run"])
    found = dict(zip(head, row, strict=True))
    assert found["reason"] == "is for stage 7, but stage 1 was asked for."
    assert found["next step"].startswith("Ask for `01_activations.ipynb`")


# ---- what was asked for

def test_only_what_was_asked_for_counts():
    """A learner who did the two required exercises gets exactly all points."""
    rules = Scoring(course=Course(asked={1: ("01.1", "01.3")}))
    given = result("ada", "ptpwe")
    given["exercises"][4]["answer"] = "def soft_threshold"  # the others stopped before any answer
    (one,) = scoring.scored([given], [], rules)

    assert [e["id"] for e in one["exercises"]] == ["01.1", "01.3"]
    assert (one["points"], one["possible"]) == (7, 7)  # 3 and 4, as in the catalog
    text = page(one)
    assert "7 of 7 points." in text
    assert "not written yet" not in text
    assert ("You also tried these exercises. They were not asked for and earn no points: "
            "01.4 (not right yet), 01.5") in text
    assert len(reports.exercises([one])) == 3


def test_a_short_worksheet_without_a_course_is_said():
    given = {**result("ada", "ptptt"), "short": True}

    (line,) = scoring.remarks([given], Scoring())
    assert line.startswith("Stage 1: some worksheets have only some of the exercises")
    assert scoring.remarks([given], Scoring(course=Course(asked={1: ("01.1",)}))) == []
    assert scoring.remarks([{**given, "stray": {"kind": "stage"}}], Scoring()) == []
