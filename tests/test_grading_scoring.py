"""How far an answer got is counted, points may follow it, and the page of a learner says it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_grading_reports import TRAPS, exercise, result, sample

from dlsys.grading import tally
from dlsys.grading.books import given, hints, pages, reports, scoring
from dlsys.grading.books.given import Gradebooks
from dlsys.grading.books.overrides import Override
from dlsys.grading.books.scoring import Scoring
from dlsys.grading.options import GradeOptions
from dlsys_checks import registry
from dlsys_helpers import acting, catalog, judging, verdicts
from tools import solutions

RUN = {"run": {"begun": "2026-03-05T09:00:00+00:00", "settings": {"key": "00"}}}
HALF = {"cases": 12, "cases_held": 9, "promises": 4, "promises_held": 3,
        "broken": ["of `NaN` it says so."]}


def bob(**more) -> dict:
    """A result in which 01.4, of three points, keeps three of four promises."""
    given = result("bob", "ppppp")
    given["exercises"][3] = exercise(3, "wrong", **HALF, **more)
    return {**given, "points": 12}


# ---- counting, by the same laws

@pytest.fixture(scope="module")
def dead_units():
    exercise = registry.find("01.4")
    return exercise, exercise.arrange(3)


def counted(dead_units, fn) -> dict:
    exercise, cases = dead_units
    return tally.count(exercise, cases, [acting.run_act(exercise.act_fn, fn, case)
                                         for case in cases])


def test_an_answer_keeps_no_promise_that_it_is_registered_to_break(dead_units):
    texts = {promise.key: promise.text for promise in dead_units[0].promises}
    some_held = 0
    for wrong in dead_units[0].wrong_answers:
        found = counted(dead_units, wrong.fn)
        assert {texts[key] for key in wrong.breaks} <= {*found["broken"]}, wrong.name
        assert 0 <= found["promises_held"] < found["promises"]
        some_held += found["promises_held"] > 0
    assert some_held > 3


def test_a_right_answer_keeps_all_and_one_that_stops_keeps_none(dead_units):
    for right in solutions.with_kept_answers("01.4").right_answers.values():
        assert counted(dead_units, right) == tally.complete(dead_units[0], len(dead_units[1]))
    for hopeless in (lambda h: 1 / 0, lambda h: None, lambda h: "3"):
        found = counted(dead_units, hopeless)
        assert (found["cases_held"], found["promises_held"]) == (0, 0)


def test_only_what_a_verdict_decided_against_is_broken(dead_units):
    """An answer that always raises keeps nothing, and no piece of the docstring is at fault."""
    assert counted(dead_units, lambda h: 1 / 0)["broken"] == []
    by_words, by_cases = (judging.Promise("w", "words", (), ("shape",)),
                          judging.Promise("c", "cases", ("a",), ()))
    passed = verdicts.Verdict("pass", "01.4")
    wrong = verdicts.Verdict("wrong", "01.4", "shape: got 1", law="shape", case="a")
    case_a, case_b = (acting.Case(name, {}) for name in "ab")

    def broken(*judged):
        return [one.key for one in (by_words, by_cases)
                if tally.is_broken(one, (by_words, by_cases), judged)]
    assert broken((case_a, wrong)) == ["w"]  # its words say why all cases fail
    assert broken((case_a, wrong), (case_b, passed)) == ["w", "c"]
    assert broken((case_a, replace(wrong, message="sum: got 1"))) == ["c"]
    assert broken((case_a, passed), (case_b, passed)) == []


def test_a_promise_about_cases_needs_one_of_them_to_hold():
    promise = judging.Promise("k", "text", ("a",), ())
    passed, wrong = (verdicts.Verdict(status, "01.4", law="x") for status in ("pass", "wrong"))
    case_a, case_b = (acting.Case(name, {}) for name in "ab")

    assert tally.is_kept(promise, [(case_a, passed), (case_b, wrong)])
    assert not tally.is_kept(promise, [(case_b, passed)])


# ---- points

def test_without_the_option_an_exercise_is_all_or_nothing():
    (scored,) = scoring.scored([bob()], [], Scoring())

    assert (scored["points"], scored["exercises"][3]["points"]) == (12, 0)


def test_points_for_promises_are_rounded_down_to_half_a_point():
    (scored,) = scoring.scored([bob()], [], Scoring(partial=True))

    assert scored["exercises"][3]["points"] == 2  # 3 * 3/4 is 2.25
    assert scored["points"] == 14
    assert scoring.points_for_promises({"status": "todo", "points": 0, "possible": 3}) == 0


@pytest.mark.parametrize(("promises", "cases", "points"), [
    (5, 12, 2.5), (6, 11, 2.5), (6, 12, 2.5),  # the last with an input that was changed
    (6, 7, 1.5),                               # 1.75, which no rounding to the nearest makes 1.5
    (5, 1, 0), (0, 11, 0)])                    # an answer that does nothing spoils nothing
def test_the_smaller_share_counts_and_all_points_are_for_a_pass(promises, cases, points):
    entry = {"status": "wrong", "points": 0, "possible": 3, "promises": 6,
             "promises_held": promises, "cases": 12, "cases_held": cases}
    assert scoring.points_for_promises(entry) == points


def test_points_by_hand_come_after_those_for_promises():
    rows = [Override(2, "bob", "01.4", 3, "fine")]
    (scored,) = scoring.scored([bob()], rows, Scoring(partial=True))

    assert scored["points"] == 15
    assert scored["remarks"] == ["01.4 by hand, 3 instead of 2: fine"]


def test_a_run_goes_on_with_points_for_promises_until_told_otherwise(tmp_path):
    (tmp_path / "grades.json").write_text('{"scoring": {"partial": true}}')

    assert scoring.recorded_partial(tmp_path)
    assert not scoring.recorded_partial(tmp_path / "none")


def test_the_table_of_exercises_has_what_was_counted():
    head, *rows = reports.exercises([bob()])

    assert dict(zip(head, rows[3], strict=True))["cases held"] == 9
    assert dict(zip(head, rows[0], strict=True))["cases held"] == ""


# ---- the page

def page(given: dict, partial: bool = False) -> str:
    return " ".join(pages.feedback([given], {
        **RUN, "scoring": Scoring(partial=partial).plain()}).split())


def test_a_page_says_stage_date_case_and_how_far_it_got():
    text = page(bob(case="an infinite output", message="count: got 1, expected 2."))

    assert f"Stage 1: {pages.assignments.stage(1).title}" in text
    assert "Graded on 5 March 2026." in text
    assert "9 of 12 cases hold." in text
    assert "Seen on the case &ldquo;an infinite output&rdquo;." in text
    assert "<li>of <code>NaN</code> it says so.</li>" in text
    assert "promises are kept" not in text
    assert "3 of 4 promises are kept" in page(bob(), partial=True)
    assert "rounded down to half a point" in page(bob(), partial=True)


def test_a_page_says_what_to_do_next():
    text = page(bob())
    assert "Mend <code>dead_units</code>, exercise 01.4" in text
    assert "<code>dlsys check 1</code>" in text
    assert "Write <code>" in page(result("eve", "ttttt"))
    assert "<code>dlsys start 2</code>" in page(result("ada", "ppppp"))


def test_a_page_speaks_of_no_machinery():
    given = bob(message="dead_units ended the Python process (a crash).")
    given["notes"] = ["Graded on other cases."]
    text = page(given).lower()

    assert not [word for word in ("sandbox", "judge", "process", "namespace") if word in text]


# What 01.4 tells its registered mistakes, and the hint that speaks of the same things.
@pytest.mark.parametrize(("said", "k"), [
    ("answer for NaN outputs: got 2, expected a ValueError. NaN == 0 is False: a broken layer must "
     "not look alive.", 2),
    ("count of dead units: got 12, expected 3. Dead means 0 for every row. You get exactly this "
     "by counting rows instead of units.", 1),
    ("something else", 0)])
def test_the_hint_belongs_to_the_mistake(said, k):
    trap = catalog.trap("01.4")
    assert hints.nearest(trap.hints, said) == k
    text = page(bob(message=said))
    assert f"Hint: {pages.code_html(trap.hints[k])}" in text
    assert text.count("<summary>The other hints") == 1


def test_a_passed_exercise_has_no_hint_and_nothing_to_mend():
    text = page(result("ada", "ppppp"))
    assert "Hint" not in text
    assert "cases hold" not in text
    assert [trap.id for trap in TRAPS if trap.id in text] == [trap.id for trap in TRAPS]


def test_a_submission_that_the_grader_could_not_grade_blames_nobody():
    given = {**sample()["results"][3], "status": "failed", "reason": "worker 3 was lost"}
    text = page(given)
    assert "worker" not in text
    assert "for a reason that is not in it" in text


def test_the_folder_keeps_the_course_and_gives_it_up(tmp_path):
    course, out = tmp_path / "course.toml", tmp_path / "out"
    out.mkdir()
    course.write_text('late = "5%/h"\n[due]\n1 = 2027-01-15T23:59:00+01:00\n')
    (tmp_path / "extensions.csv").write_text("learner,stage,due,handed_in\n")
    options = GradeOptions((tmp_path,), out, resume=True)
    with_course = replace(options, course=course)

    given.keep(with_course, Gradebooks())
    assert scoring.rules(options, {}, {}).course.late == (5.0, "h")
    assert (out / "extensions.csv").exists()
    (tmp_path / "extensions.csv").unlink()
    given.keep(with_course, Gradebooks())
    assert not (out / "extensions.csv").exists()
    (out / "course.toml").unlink()
    assert scoring.rules(options, {}, {}).course is None
