"""Placement: the model, questions and answers, the plan, and what simulated learners gain."""

import base64
import io
import json
import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from browser import offline_page, page_with_script

from dlsys import cli, overview, placed, placement, review, start_page
from dlsys import placement_model as model
from dlsys_checks import questions
from dlsys_helpers import catalog, json_lines, paths, progress
from tools import book_placement
from tools import placement as measured

COURSE = model.course()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("DLSYS_PROGRESS", raising=False)
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "my-work")
    json_lines.notes_given.clear()
    return tmp_path / "my-work"


def typed(monkeypatch, *lines):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    return cli.main(["placement"])


def finish(answers: dict[str, bool], sure: bool = True) -> None:
    for id, right in answers.items():
        placed.record(id, run=1, right=right, sure=sure)
    placed.end(1)


# ---- the model

def test_the_course_is_the_core_path_in_its_order():
    core = [trap.id for trap in catalog.traps() if trap.core]
    assert sorted(COURSE.ids) == sorted(core)
    assert list(COURSE.stages) == sorted(COURSE.stages)
    assert all(minutes >= catalog.trap(id).minutes
               for id, minutes in zip(COURSE.ids, COURSE.minutes, strict=True))


def test_a_stage_needs_earlier_stages_alone():
    assert set(model.NEEDS) == {stage.number for stage in catalog.written()}
    assert all(need < stage for stage, needs in model.NEEDS.items() for need in needs)


def test_without_evidence_half_is_known():
    known = model.belief(COURSE, []).known
    assert known.mean() == pytest.approx(0.5, abs=0.1)


def test_evidence_moves_its_own_trap_most_and_its_stage_more_than_others():
    before = model.belief(COURSE, []).known
    after = model.belief(COURSE, [model.answered("04.1", True, True, None)]).known
    moved = dict(zip(COURSE.ids, after - before, strict=True))
    assert moved["04.1"] == max(moved.values())
    assert moved["04.2"] > moved["09.2"] > 0  # stage 9 builds on stage 4
    assert moved["09.2"] > moved["01.2"]


def test_the_belief_is_bayes_rule_written_out():
    """Count the learners drawn, weighted: those who know a trap and those who do not."""
    chance = model.drawn(COURSE)
    one = model.Seen("02.1", 0.9, 0.2, "")
    n, other = COURSE.ids.index("02.1"), COURSE.ids.index("02.3")
    likely = chance[:, n] * 0.9 + (1 - chance[:, n]) * 0.2
    found = model.belief(COURSE, [one]).known
    assert found[other] == pytest.approx(np.average(chance[:, other], weights=likely))
    assert found[n] == pytest.approx(chance[:, n].mean() * 0.9 / likely.mean())


def test_a_sure_wrong_answer_weighs_more_than_an_unsure_one_on_a_right_one_less():
    sure, unsure = (model.answered("01.2", True, how, 4) for how in (True, False))
    assert sure.known / sure.unknown > unsure.known / unsure.unknown > 1


def test_nothing_is_asked_twice_and_between_twelve_and_fifteen_are_asked():
    asked, seen = [], []
    while id := model.next_item(COURSE, model.belief(COURSE, seen), len(seen)):
        asked.append(id)
        seen.append(model.answered(id, len(asked) % 2 == 0, True, None))
    assert len(set(asked)) == len(asked)
    assert model.LEAST <= len(asked) <= model.MOST
    assert len({id[:2] for id in asked}) >= 8


# ---- simulated learners

def test_the_record_is_fresh():
    every = measured.RECORD.entries()
    assert [*every] == [*measured.KINDS, "all"]
    assert [key for key in every if measured.RECORD.stale(key, measured.now())] == []


def test_the_record_is_what_its_learners_show():
    kind = "newcomer"
    of = model.course()
    found = [measured.measured(kind, seed, of).found for seed in range(3)]
    assert min(found) > 0.8
    assert measured.RECORD.entry(kind)["found"] == pytest.approx(sum(found) / 3, abs=0.15)


def test_a_plan_beats_as_much_time_on_the_core_path():
    every = measured.RECORD.entry("all")
    assert every["found"] > every["same_time"]
    assert every["first"] > every["first_core"]


def test_a_simulated_learner_has_a_gap_and_answers_by_chance():
    assert all(len(measured.learner(kind, 0, COURSE)) < len(COURSE.ids) for kind in measured.KINDS)
    rng = random.Random(0)
    right = [measured._answer("01.2", True, rng) for _ in range(400)]
    share = sum(one.known > one.unknown for one in right) / len(right)
    assert share == pytest.approx(1 - measured.SLIP, abs=0.05)


# ---- in the terminal

def test_answers_are_refused_until_they_can_be_read_and_stopping_keeps_them(monkeypatch, capsys):
    assert typed(monkeypatch, "", "many", "7" * 400, "?", "q") == 0
    out = capsys.readouterr().out
    assert out.count("answer: got") == 3
    assert "goes on from here" in out
    (row,) = placed.STORE.entries()
    assert row["skipped"]


def test_an_interrupted_placement_goes_on_and_ends_with_a_plan(monkeypatch, capsys):
    typed(monkeypatch, "?", "?", "?", "q")
    assert typed(monkeypatch, *["?"] * 20) == 0
    out = capsys.readouterr().out
    assert "3 answered so far." in out
    assert "Today, " in out
    assert len(placement.last()) >= model.LEAST
    assert placement.finished()
    assert typed(monkeypatch) == 0  # shows the plan and asks nothing
    assert "Today, " in capsys.readouterr().out


def test_again_starts_anew_and_keeps_what_was(monkeypatch):
    finish({"01.2": False})
    monkeypatch.setattr("sys.stdin", io.StringIO("?\nq\n"))
    cli.main(["placement", "--again"])
    assert [row["run"] for row in placed.STORE.entries()] == [1, 1, 2]
    assert not placement.finished()


@pytest.mark.parametrize("damage", [
    "nonsense", json.dumps({"id": "01.2"}),
    json.dumps({"id": "01.2", "run": 1, "right": "yes", "sure": True, "skipped": False,
                "options": 0})])
def test_an_edited_file_is_set_aside_and_its_good_lines_stay(folder, capsys, damage):
    placed.record("02.1", run=1, right=True, sure=True)
    path = folder / ".placement.jsonl"
    path.write_text(path.read_text("utf-8") + damage + "\n", "utf-8")
    assert [row["id"] for row in placement.last()] == ["02.1"]
    assert (folder / ".placement.damaged-1.jsonl").exists()
    assert "good line(s) stay" in capsys.readouterr().err


def test_an_answer_about_a_trap_that_is_no_more_is_passed_over():
    placed.record("99.9", run=1, right=True, sure=True)
    assert placement.last() == []
    assert placement.evidence(placement.last()) == []


@pytest.mark.parametrize("run", [1, 7])
def test_a_row_of_an_unknown_trap_at_the_end_changes_no_plan(run, capsys):
    """`dlsys` and `dlsys placement` agree, and no question is asked again."""
    finish({id: id != "05.1" for id in ("03.1", "05.1", "09.1")})
    placed.record("99.9", run=run, right=True, sure=True)
    assert cli.main(["placement"]) == 0
    assert "To begin: dlsys start 5, trap 05.1" in capsys.readouterr().out
    assert "dlsys start 5, trap 05.1" in next(overview.next_steps())


@pytest.mark.parametrize("minutes", ["0", "-5", "ten", "٣٠", "99999"])
def test_minutes_that_are_none_are_refused(minutes, capsys):
    with pytest.raises(SystemExit):
        cli.main(["placement", "--minutes", minutes])
    assert "expected minutes, 10 to 600" in capsys.readouterr().err


def test_where_nothing_is_kept_it_says_so(monkeypatch, capsys):
    monkeypatch.setenv("DLSYS_PROGRESS", "off")
    assert cli.main(["placement"]) == 2
    assert "DLSYS_PROGRESS is off" in capsys.readouterr().out


def test_without_a_lesson_there_is_nothing_to_place(monkeypatch, capsys):
    monkeypatch.setattr(placement, "course", lambda: model.Course((), (), (), ()))
    finish({"01.2": True})
    assert cli.main(["placement"]) == 2
    assert "no lesson is here" in capsys.readouterr().out
    assert placement.next_trap() is None


# ---- the plan

def test_the_plan_divides_the_core_path_and_today_fits():
    finish({id: id < "06" for id in COURSE.ids[::4]})
    found = placement.current()
    assert {step.trap.id for step in (*found.take, *found.skip)} == set(COURSE.ids)
    assert {step.trap.id for step in found.skip} & {"01.2", "02.1", "03.1"}
    assert all(step.why for step in (*found.take, *found.skip))
    today = found.today(90)
    assert len(today) == 1 or sum(step.minutes for step in today) <= 90
    assert len(found.today(10)) == 1


def test_the_plan_is_told_by_stage_and_names_right_answers_that_it_keeps(monkeypatch, capsys):
    """One right answer among wrong ones of its stage is not enough to skip its trap."""
    stage = [id for id in COURSE.ids if id < "02"]
    finish({id: False for id in COURSE.ids if id[:2] in ("02", "03", "04", "05")}
           | {id: id == stage[-1] for id in stage})
    typed(monkeypatch)
    told = capsys.readouterr().out
    assert any(line.startswith("  6 Augmentation") and ": 06." in line
               for line in told.splitlines())
    assert stage[-1] in {step.trap.id for step in placement.current().take}
    assert f"stays in the plan: {stage[-1]}." in " ".join(told.split())


def test_today_begins_with_what_was_wrong_however_long_it_takes(monkeypatch, capsys):
    finish({id: id != "05.1" for id in ("02.1", "03.1", "04.1", "05.1", "12.1")})
    assert placement.current().take[0].trap.id == "05.1"
    typed(monkeypatch)
    told = capsys.readouterr().out
    minutes = COURSE.minutes[COURSE.ids.index("05.1")]
    assert minutes > placement.TODAY
    assert (f"  05.1 One image at a time, {minutes} minutes: you were sure of a wrong answer"
            in told)
    assert "fits into 60 minutes" in told
    later = told.partition("After that")[2]
    assert later.index("01.") < later.index("06.")
    assert "05.2 (" in told or "05.2, " in told


def test_the_end_shows_what_was_wrong_what_is_right_and_why(monkeypatch, capsys):
    question = questions.choice("Which one?", "this", "Because.", "that", "those")
    monkeypatch.setattr(questions, "about", lambda id: [lambda rng: question])
    wrong = "abc"[int(question.answer) % 3]
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{wrong}\nn\n"))
    row = placement.ask("02.1", 1, 1)
    right = question.shown
    assert row["told"].startswith("Which one? You: th")
    assert row["told"].endswith(f". Computed: {right}. Because.")
    placement._wrong([row])
    assert f"Computed: {right}." in capsys.readouterr().out


def test_review_names_a_trap_that_was_never_opened_by_its_situation(capsys):
    placed.record("05.1", run=1, sure=True)
    assert "trap 05.1, One image at a time, on" in review.nothing_due(datetime.now(UTC))
    progress.record("05.1", "pass")
    assert "stored statistics" in review.nothing_due(datetime.now(UTC))


def test_hours_are_told_only_from_two_on():
    def told(minutes):
        return placement.time_of([placement.Step(catalog.traps()[0], minutes, 0, "")])
    assert (told(60), told(119), told(120)) == ("60 minutes", "119 minutes", "2 hours")


def test_a_question_that_plain_arithmetic_answers_is_not_asked(monkeypatch, capsys):
    monkeypatch.setattr("builtins.input", lambda _="": "?")
    for id, places in placement.LEFT_OUT.items():
        plain = [questions.about(id)[place](random.Random(0)).text for place in places]
        assert all("What is the mean loss over all" in text or "GB do" in text for text in plain)
        for place in range(10):
            monkeypatch.setattr("secrets.randbelow", lambda n, place=place: place % n)
            placement.ask(id, 1, 1)
    told = " ".join(capsys.readouterr().out.split())
    assert "ddp.module" in told
    assert "mean loss over all" not in told
    assert "GB do" not in told


def test_an_option_has_a_letter_because_a_number_may_be_the_text_of_another():
    one = questions.choice("t", 1, "w.", 2, 3)
    assert one.read_typed(" B ") == 2
    for said in ("1", "2", "d", "ab", ""):
        with pytest.raises(questions.AnswerError, match="expected: Choose a to c"):
            one.read_typed(said)


def test_start_page_and_progress_follow_the_plan(capsys):
    finish({id: id < "06" for id in COURSE.ids[::3]})
    first = placement.current().take[0].trap
    stage, trap = start_page.next_up(start_page.summary())
    assert (stage.number, trap) == (int(first.id[:2]), first)
    assert f"Next: dlsys start {stage.number}, trap {first.id}" in [*overview.next_steps()]
    page = start_page.next_step_html()
    assert f"Start lesson {stage.number} with trap {first.id}</a>" in page
    assert "<code>dlsys placement</code>" in page
    progress.record(first.id, "pass")
    assert placement.next_trap() != first


def test_an_unfinished_placement_changes_nothing():
    placed.record("15.1", run=1, right=False)
    assert placement.current() is None
    assert start_page.next_up(start_page.summary())[0].number == 1


def test_a_solved_exercise_outweighs_a_wrong_answer():
    finish({"05.1": False})
    progress.record("05.1", "pass")
    found = placement.current()
    assert "05.1" in {step.trap.id for step in found.skip}


def test_wrong_sure_and_skipped_answers_come_back_in_review_the_sure_ones_first():
    placed.record("03.1", run=1, skipped=True)
    placed.record("07.2", run=1, sure=True)
    placed.record("02.1", run=1, right=True, sure=True)
    placed.end(1)
    later = datetime.now(UTC) + timedelta(days=review.INTERVALS[0])
    assert [item.trap.id for item in review.due(later)] == ["07.2", "03.1"]


# ---- on the website

@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A page with only the questions and their script."""
    return page_with_script(tmp_path_factory.mktemp("site"), "placement", book_placement.script())


@pytest.fixture
def page(browser, file):
    tab = offline_page(browser)
    tab.goto(file.as_uri())
    tab.evaluate("localStorage.clear()")
    tab.reload()
    yield tab
    assert tab.problems == []
    tab.close()


def answer(tab, right: bool) -> None:
    """Answer the question on the page with only the keyboard, and as sure."""
    item = tab.evaluate("""() => { const stage = document.querySelector("#placement legend");
        return window.dlsysPlacement.items.find((one) =>
            one.text.replaceAll("`", "") === stage.textContent); }""")
    truth = json.loads(base64.b64decode(item["packed"]))
    if item["options"]:
        place = int(truth["answer"]) if right else int(truth["answer"]) % len(item["options"]) + 1
        tab.focus(f'input[name="answer"][value="{place}"]')
        tab.keyboard.press("Space")
    else:
        tab.focus('input[type="text"]')
        tab.keyboard.type(repr(truth["answer"] if right else truth["answer"] * 3 + 7))
    tab.focus('input[name="sure"][value="yes"]')
    tab.keyboard.press("Space")
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")


def test_what_cannot_be_read_is_told_on_the_page(page):
    page.get_by_role("button", name="That is my answer").click()
    assert "got nothing, expected" in page.get_by_role("status").inner_text()


def test_the_page_goes_on_after_a_reload_and_divides_the_core_path(page, file):
    for _ in range(3):
        answer(page, True)
    page.reload()
    assert page.locator("h2").inner_text().startswith("Question 4 of 12 to 15")
    while page.locator("legend").count():
        answer(page, True)
    heads = page.locator("h2").all_inner_texts()
    assert heads[0].startswith(tuple(f"{n} of {n} right" for n in (12, 13, 14, 15)))
    assert any(head.startswith("Skip, ") for head in heads)
    links = page.locator("section a").all_text_contents()
    assert sorted(text.partition(" ")[0] for text in links) == sorted(COURSE.ids)


def test_who_knows_nothing_skips_nothing_and_is_told_what_was_skipped(page):
    while page.locator("legend").count():
        page.get_by_role("button", name="I do not know").click()
    heads = page.locator("h2").all_inner_texts()
    assert not any(head.startswith("Skip, ") for head in heads)
    assert heads[-1] == "What was wrong or skipped"


def test_the_page_of_the_book_says_what_the_record_says():
    told, every = book_placement.page(), measured.RECORD.entry("all")
    assert f"contains {100 * every['found']:.0f} % of the gaps" in told
    assert all(f"| {kind} | {100 * measured.RECORD.entry(kind)['found']:.0f} %" in told
               for kind in measured.KINDS)


def test_an_answer_can_be_changed_before_it_counts_and_q_stops(monkeypatch):
    for said, found in (("b", None), ("y", True), ("n", False)):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"what\n{said}\n"))
        assert placement._sure() is found
    monkeypatch.setattr("sys.stdin", io.StringIO("q\n"))
    with pytest.raises(EOFError):
        placement._sure()
