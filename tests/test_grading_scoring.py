"""Count how far an answer got; points may depend on it, and the learner's page says it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_grading_reports import TRAPS, exercise, result, sample

from dlsys import assignments
from dlsys.grading import tally
from dlsys.grading.books import due, given, pages, reports, scoring
from dlsys.grading.books.given import Gradebooks
from dlsys.grading.books.overrides import Override
from dlsys.grading.books.scoring import Scoring
from dlsys.grading.options import GradeOptions
from dlsys_checks import aims, registry
from dlsys_helpers import acting, catalog, judging, planting, verdicts
from tools import solutions

RUN = {"run": {"begun": "2026-03-05T09:00:00+00:00", "settings": {"key": "00"}}}
HALF = {"cases": 12, "cases_held": 9, "results_held": 9, "promises": 4,
        "promises_held": 3, "own_held": True, "own_credit": 1.0, "others_credit": 2.0,
        "exactly": False, "idle": False,
        "broken": ["of `NaN` it says so."]}


def bob(**more) -> dict:
    """A result in which 01.4, of three points, keeps three of four promises."""
    given = result("bob", "ppppp")
    given["exercises"][3] = exercise(3, "wrong", **{**HALF, **more})
    return {**given, "points": 12}


# ---- counting with the same laws

@pytest.fixture(scope="module")
def dead_units():
    exercise = registry.find("01.4")
    return exercise, exercise.arrange(3)


def counted(dead_units, fn) -> dict:
    exercise, cases = dead_units
    outcomes = [acting.run_act(exercise.act_fn, fn, case) for case in cases]
    verdict = exercise.judge(cases, outcomes)
    return (tally.complete(exercise, len(cases)) if verdict.status == "pass" else
            tally.count(exercise, cases, outcomes, verdict))


def test_an_answer_made_to_take_the_judges_time_is_not_counted_to_its_end(dead_units, monkeypatch):
    """A tensor of a million numbers costs a law that does not stop two seconds in each case."""
    clock = iter(range(0, 10_000, 3))
    monkeypatch.setattr(tally.time, "process_time", lambda: next(clock))
    with pytest.raises(tally.TooLong):
        counted(dead_units, lambda h: 0)


def test_an_answer_keeps_no_promise_that_it_is_registered_to_break(dead_units):
    texts = {promise.key: promise.text for promise in dead_units[0].promises}
    some_held = 0
    for wrong in dead_units[0].wrong_answers:
        found = counted(dead_units, wrong.fn)
        assert {*found["broken"]} <= {texts[key] for key in wrong.breaks}, wrong.name
        assert len(found["broken"]) == 1, wrong.name
        assert 0 <= found["promises_held"] < found["promises"]
        some_held += found["promises_held"] > 0
    assert some_held > 3


def test_a_right_answer_keeps_all_and_one_that_stops_keeps_none(dead_units):
    for right in solutions.with_kept_answers("01.4").right_answers.values():
        assert counted(dead_units, right) == tally.complete(dead_units[0], len(dead_units[1]))
    for hopeless in (lambda h: 1 / 0, lambda h: None, lambda h: "3"):
        found = counted(dead_units, hopeless)
        assert (found["cases_held"], found["promises_held"]) == (0, 0)


def test_only_what_a_failure_decides_is_listed(dead_units):
    """An answer that always raises keeps no promise, but no single one is at fault."""
    assert counted(dead_units, lambda h: 1 / 0)["broken"] == []
    ex = judging.Exercise("01.4", "f")
    ex.promise("w", "words", says=("shape",))
    ex.promise("c", "cases", cases=("a",))
    passed = verdicts.Verdict("pass", "01.4")
    wrong = verdicts.Verdict("wrong", "01.4", "shape: got 1", law="shape", case="a")
    case_a, case_b = (acting.Case(name, {}) for name in "ab")

    def listed(*judged):
        first = next(verdict for _, verdict in judged if verdict.status != "pass")
        return [one.key for one in tally.decided(ex, judged, first)]
    other = replace(wrong, message="sum: got 1")
    assert listed((case_a, wrong), (case_b, passed)) == ["w", "c"]  # only in this case
    assert listed((case_a, wrong), (case_b, replace(wrong, case="b"))) == ["w"]
    assert listed((case_a, wrong)) == ["w"]  # there is no other case
    assert listed((case_a, other), (case_b, passed)) == ["c"]
    assert listed((case_a, other), (case_b, replace(other, case="b"))) == []
    assert listed((case_a, replace(wrong, law=""))) == []


@pytest.mark.parametrize(("id", "right", "wrong", "promise"), [
    ("08.4", "math.sqrt(D)", "math.sqrt(M)", "Scores are divided by sqrt(D)."),
    ("05.5", "alpha=1 - decay", "alpha=1", "Each parameter, even if it is frozen"),
    ("07.4", "/ 255", "/ 127.5", "Scale brightness to the range 0 to 1.")])
def test_a_planted_mistake_lists_the_promise_that_it_breaks(id, right, wrong, promise):
    """In 08.4, nine promises share the words of this failure."""
    exercise = registry.find(id)
    cases = exercise.arrange(5)
    setup, source = solutions.answers(id[:2])[id]
    space = {}
    exec(f"{setup}\n{planting.planted(source, [(right, wrong)], id)}", space)
    answer = space[exercise.function]
    outcomes = [acting.run_act(exercise.act_fn, answer, case) for case in cases]

    found = tally.count(exercise, cases, outcomes, exercise.judge(cases, outcomes))
    assert [text[:len(promise)] for text in found["broken"]] == [promise]


@pytest.mark.parametrize(("id", "name", "promise"), [
    ("05.2", "tiny fraction", "tiny"), ("06.5", "converting fold numbers to floats", "inputs"),
    ("03.4", "skipping a Linear that has no ReLU", "a Linear may be last")])
def test_a_mistake_without_a_name_lists_the_promise_of_the_cases_it_fails_in(id, name, promise):
    """We once listed only the law's words, and not what the answer had left out."""
    exercise = replace(registry.find(id))
    wrong = next(one for one in exercise.wrong_answers if name in one.name)
    exercise.wrong_answers = [one for one in exercise.wrong_answers if one is not wrong]
    cases = exercise.arrange(5)
    outcomes = [acting.run_act(exercise.act_fn, judging.unguarded(wrong.fn), case)
                for case in cases]
    judged = [(case, exercise.judge_one(case, outcome))
              for case, outcome in zip(cases, outcomes, strict=True)]

    assert promise in wrong.breaks
    found = tally.decided(exercise, judged, exercise.judge(cases, outcomes))
    assert promise in [one.key for one in found]
    assert len(found) <= tally.MOST


def test_a_known_mistake_keeps_every_promise_but_those_that_it_breaks():
    """Not restoring modes fails every case of 08.1, but breaks only one promise of 15."""
    exercise = registry.find("08.1")
    cases = exercise.arrange(5)
    name = "leaving the model in eval mode"
    wrong = next(one for one in exercise.wrong_answers if one.name == name)
    outcomes = [exercise.run(wrong.fn, case)[0] for case in cases]
    found = tally.count(exercise, cases, outcomes, exercise.judge(cases, outcomes))

    assert (found["cases_held"], found["promises_held"], found["promises"]) == (0, 14, 15)
    assert (found["exactly"], found["own_held"], found["idle"]) == (True, True, False)


def test_a_constant_that_a_known_mistake_looks_like_earns_nothing():
    """In 14.1 a tensor for a function is a known mistake; any tensor fits it, so we name none."""
    exercise = registry.find("14.1")
    cases = exercise.arrange(5)
    outcomes = [acting.run_act(exercise.act_fn, lambda *_: torch.tensor(0.5), case)
                for case in cases]
    found = tally.count(exercise, cases, outcomes, exercise.judge(cases, outcomes))

    assert (found["exactly"], found["idle"]) == (False, True)


@pytest.mark.parametrize("answer", [lambda h: None, lambda h: h, lambda h: 0, lambda h: 1],
                         ids=["nothing", "its input", "zero", "one"])
def test_an_answer_that_does_nothing_earns_nothing(dead_units, answer):
    found = counted(dead_units, answer)
    entry = {"status": "wrong", "points": 0, "possible": 3, **found}

    assert found["idle"]
    assert scoring.points_for_promises(entry) == 0


def test_a_promise_about_cases_is_broken_by_what_no_other_promise_speaks_of():
    ex = judging.Exercise("01.4", "f")
    ex.promise("r", "the result", says=("rows",))
    ex.promise("c", "cases", cases=("a",))
    ex.promise("m", "modes", says=("modes",))
    about_cases = ex.promises[1]
    rows, modes = (verdicts.Verdict("wrong", "01.4", f"{what}: got 1", law=what, case="a")
                   for what in ("rows", "modes"))
    case_a, case_b = (acting.Case(name, {}) for name in "ab")

    def kept(*found):
        return tally.spared_share(ex, about_cases, [case_a, case_b, case_a], found)
    assert kept([], [replace(rows, case="b")], []) == 1
    assert kept([modes], [], []) == 1
    assert kept([rows], [], []) == 0.5
    assert kept([replace(rows, law="")], [], [rows]) == 0
    assert tally.spared_share(ex, about_cases, [case_b], [[]]) == 0  # no case decides


MODES = """    for module, mode in modes:
        module.training = mode
"""


@pytest.mark.parametrize(("id", "edits", "most", "least"), [
    ("08.1", [(MODES, "")], 2.5, 2.5),
    ("08.1", [("    model.eval()\n", "")], 2.5, 2),
    ("08.1", [("    with torch.no_grad():\n", "    if True:\n")], 2.5, 2),
    ("08.1", [("    with torch.no_grad():\n", "    if True:\n"), (MODES, "")], 2.5, 2),
    ("08.2", [(" | itself", "")], 2, 1.5),
    ("08.4", [("out * fix + weights", "out + weights")], 3, 2.5),
    ("08.2", [("return (pairs", "return ~(pairs")], 1.5, 1)],
    ids=["modes left", "train mode", "a graph", "graph and modes", "pads alone", "no rescale",
         "inverted"])
def test_one_slip_costs_little_and_a_wrong_result_costs_most(id, edits, most, least):
    """Two of these are not registered. They fail in every case, but break one of many promises."""
    exercise, worth = registry.find(id), {"08.1": 3, "08.2": 3, "08.4": 5}[id]
    cases = [case for seed in (0, 1) for case in exercise.arrange(seed)]
    setup, source = solutions.answers(id[:2])[id]
    space = {}
    exec(f"{setup}\n{planting.planted(source, edits, id)}", space)
    outcomes = [acting.run_act(exercise.act_fn, space[exercise.function], case) for case in cases]
    found = tally.count(exercise, cases, outcomes, exercise.judge(cases, outcomes))

    points = scoring.points_for_promises({"status": "wrong", "points": 0, "possible": worth,
                                          **found})
    assert least <= points <= most, found


# ---- points

def test_without_the_option_an_exercise_is_all_or_nothing():
    (scored,) = scoring.scored([bob()], [], Scoring())

    assert (scored["points"], scored["exercises"][3]["points"]) == (12, 0)


def test_points_for_promises_are_rounded_down_to_half_a_point():
    (scored,) = scoring.scored([bob()], [], Scoring(partial=True))

    assert scored["exercises"][3]["points"] == 2  # 3 * (1/2 + 1/2 * 2/3) is 2.5; 3 * 9/12 is 2.25
    assert scored["points"] == 14
    assert scoring.points_for_promises({"status": "todo", "points": 0, "possible": 3}) == 0


def counts(held: int, own: bool, results: int = 12, **more) -> dict:
    return {"status": "wrong", "points": 0, "possible": 3, "promises": 6, "promises_held": held,
            "own_held": own, "own_credit": float(own), "others_credit": float(held - own),
            "exactly": False, "idle": False, "cases": 12, "cases_held": 0,
            "results_held": results, **more}


@pytest.mark.parametrize(("entry", "points"), [
    (counts(5, True), 2.5),            # 3 * (1/2 + 1/2 * 4/5) is 2.7
    (counts(5, False), 1.5),           # only the trap itself is wrong: half of 3
    (counts(6, True), 2.5),            # it changed an input, and only a pass gets all points
    (counts(5, True, results=7), 1.5),   # 3 * 7/12 is 1.75
    (counts(5, True, results=0), 0),
    (counts(5, True, results=0, exactly=True), 1.5),
    (counts(5, True, idle=True), 0),
    (counts(0, False, results=11), 0)])
def test_the_traps_own_promise_carries_half(entry, points):
    assert scoring.points_for_promises(entry) == points


def test_an_instructor_sets_what_the_traps_own_promise_is_worth(tmp_path):
    (tmp_path / "course.toml").write_text('partial_trap = "80%"\n')
    rules = Scoring(True, due.read(tmp_path / "course.toml"))

    assert rules.own_share == 0.8
    assert scoring.points_for_promises(counts(5, False), 0.8) == 0.5  # 3 * 1/5 is 0.6
    assert "is worth 80 % of the points" in page(bob(results_held=12), scoring=rules)
    (tmp_path / "course.toml").write_text('partial_trap = "120%"\n')
    with pytest.raises(due.BadCourse, match="at most 100%"):
        due.read(tmp_path / "course.toml")


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

def page(given: dict, partial: bool = False, scoring: Scoring | None = None) -> str:
    rules = scoring or Scoring(partial=partial)
    return " ".join(pages.feedback([given], {**RUN, "scoring": rules.plain()}).split())


def test_a_page_says_stage_date_case_and_how_far_it_got():
    text = page(bob(case="an infinite output", message="count: got 1, expected 2."))

    assert f"Stage 1: {pages.assignments.stage(1).title}" in text
    assert "Graded on 5 March 2026." in text
    assert "9 of 12 cases pass." in text
    assert "Seen on the case &ldquo;an infinite output&rdquo;." in text
    assert "<li>of <code>NaN</code> it says so.</li>" in text
    assert "promises are kept" not in text
    assert ("The result is right in 9 of 12 cases, which limits the points. Rounded down"
            in page(bob(), partial=True))
    assert ("The promise that the trap is about is worth 50 % of the points, and is kept. Of the 3 "
            "other promises 2 are kept." in page(bob(results_held=12), partial=True))
    assert "Rounded down to half a point" in page(bob(), partial=True)


def test_a_page_says_what_to_do_next():
    text = page(bob())
    assert "Fix <code>dead_units</code>, exercise 01.4" in text
    assert "<code>dlsys check 1</code>" in text
    assert "Write <code>" in page(result("eve", "ttttt"))
    assert "<code>dlsys start 2</code>" in page(result("ada", "ppppp"))


def test_a_page_speaks_of_no_machinery():
    given = bob(message="dead_units ended the Python process (a crash).")
    given["notes"] = ["Graded on other cases."]
    text = page(given).lower()

    assert not [word for word in ("sandbox", "judge", "process", "namespace") if word in text]


@pytest.mark.parametrize(("mistake", "hint"), [
    ("counting units with NaN as alive", "`NaN == 0` is False"),
    ("counting rows instead of units", "First compare with zero"),
    ("raising ValueError for infinite values as well as for NaN", ""), ("", "")])
def test_a_hint_belongs_to_the_registered_mistake_or_none_is_shown(mistake, hint):
    text = page(bob(misconception=mistake, message="answer for NaN outputs: got 2."))

    assert ("Hint: " in text) == bool(hint)
    assert pages.code_html(hint) in text
    others = [one for one in catalog.trap("01.4").hints if not hint or not one.startswith(hint)]
    assert not [one for one in others if pages.code_html(one) in text]


def test_every_aim_is_an_exercises_own():
    """The promises, hints and mistakes in aims.json match those of the checks and lessons."""
    known = json.loads(Path(aims.__file__).with_suffix(".json").read_text("utf-8"))
    assert [*known] == [trap.id for stage in range(1, 16) for trap in assignments.by_number(stage)]
    for id, aim in known.items():
        exercise, hints = registry.find(id), catalog.trap(id).hints
        assert aim["promise"] in [promise.key for promise in exercise.promises], id
        for number, mistakes in aim["hints"].items():
            assert number in map(str, range(1, len(hints) + 1)), (id, number)
            assert not {*mistakes} - {wrong.name for wrong in exercise.wrong_answers}, (id, number)


def test_a_passed_exercise_has_no_hint_and_nothing_to_mend():
    text = page(result("ada", "ppppp"))
    assert "Hint" not in text
    assert "cases pass" not in text
    assert [trap.id for trap in TRAPS if trap.id in text] == [trap.id for trap in TRAPS]


def test_a_submission_that_the_grader_could_not_grade_blames_nobody():
    given = {**sample()["results"][3], "status": "failed", "reason": "worker 3 was lost"}
    text = page(given)
    assert "worker" not in text
    assert "for a reason that has nothing to do with it" in text


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
