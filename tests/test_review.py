"""Reviews: questions are right and draw new numbers; the schedule survives bad clocks, crashes."""

import json
import math
import random
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from dlsys import cli, review, start_page
from dlsys_checks import questions
from dlsys_helpers import catalog, json_lines, paths, progress

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
STAGES = [one.number for one in catalog.written() if questions.exist(one.number)]
CATALOGUED = [trap.id for number in STAGES for trap in catalog.traps(number)]
for id in CATALOGUED:
    questions.about(id)  # imports them
TRAPS = sorted({*CATALOGUED, *questions._GENERATORS})  # a draft's traps are in no catalog
SEEDS = range(30)


def day(number: float) -> datetime:
    return START + timedelta(days=number)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("DLSYS_PROGRESS", raising=False)
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "my-work")
    json_lines.notes_given.clear()
    return tmp_path / "my-work"


def guess(id: str, when: datetime, right=False, sure=True):
    progress.GUESSES.append({"id": id, "guess": 1, "right": right, "sure": sure,
                             "time": when.isoformat()})


def verdict(id: str, when: datetime, status="pass", misconception=None):
    progress._STORE.append({"id": id, "status": status, "misconception": misconception,
                            "time": when.isoformat()})


def due(when: datetime) -> list[str]:
    return [item.trap.id for item in review.due(when)]


def answer(id: str, when: datetime, right: bool) -> None:
    item, = (item for item in review.due(when) if item.trap.id == id)
    review.record(item, right, when)


# ---- the questions

@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_has_four_questions_or_more(trap):
    assert len(questions.about(trap)) >= 4


@pytest.mark.parametrize("trap", TRAPS)
def test_answers_are_taken_and_beliefs_refused_on_many_seeds(trap):
    for draw in questions.about(trap):
        for seed in SEEDS:
            one = draw(random.Random(seed))
            where = f"{draw.__name__}, seed {seed}: {one.text}"
            assert math.isfinite(one.answer), where
            assert one.right(one.read(repr(one.answer))), where
            assert one.beliefs, where
            near = [belief for belief in one.beliefs if one.right(belief)]
            assert not near, f"{where} {near[0]} counts as right beside {one.answer}"
            assert len(set(one.options)) == len(one.options), where
            assert len(one.options) in {0, 3, 4, 5}, where
            assert one.within or one.answer == int(one.answer), where
            if not one.options and one.answer:
                assert one.right(one.read(one.shown)), where  # four digits are enough
                assert not one.right(one.answer * (1 + 2 * one.within) + (not one.within)), where
            assert len(one.text) < 420, where
            assert one.why.endswith("."), where


@pytest.mark.parametrize("trap", TRAPS)
def test_a_seed_fixes_a_question_and_another_one_draws_anew(trap):
    for draw in questions.about(trap):
        drawn = [draw(random.Random(seed)) for seed in range(12)]
        assert draw(random.Random(0)) == drawn[0]
        assert len({one.text for one in drawn}) > 2, draw.__name__


@pytest.mark.parametrize(("typed", "value"), [
    ("0.5", 0.5), (" 1,000 ", 1000), ("1/4", 0.25), ("2e-5", 2e-5), ("-3", -3), ("+.5", 0.5),
    ("1,234,567", 1234567)])
def test_numbers_are_read_as_people_type_them(typed, value):
    assert questions.number("t", 1, "w").read(typed) == value


@pytest.mark.parametrize("typed", ["", "x", "nan", "inf", "1/0", "1e999", "1,0", "1 2", "--1",
                                   "1_", "9" * 5000, "1e5/1e-400", "٣/", "None"])
def test_what_is_no_number_gets_one_line(typed):
    with pytest.raises(questions.AnswerError, match=r"^answer: got .* expected: .*$"):
        questions.number("t", 1, "w").read(typed)


def test_an_option_that_is_not_there_is_refused():
    one = questions.choice("t", 1, "w.", 2, 3, "1")
    assert sorted(one.options) == ["1", "2", "3"]
    for typed in ("0", "4", "1.5", ""):
        with pytest.raises(questions.AnswerError, match="Choose 1 to 3"):
            one.read(typed)
    with pytest.raises(ValueError, match="at least three"):
        questions.choice("t", 1, "w.", 2, 1.00001)


def test_a_row_draws_in_order_and_a_pair_together():
    questions.ask("99.9", {"a": (3, 4), "b": lambda a: range(a), "c, d": [(1, 2), (5, 6)]},
                  lambda a, b, c, d: questions.whole(f"{a} {b} {c} {d}", a, "w.", b))
    draw, = questions._GENERATORS.pop("99.9")
    drawn = {draw(random.Random(seed)).text for seed in range(200)}
    assert drawn == {f"{a} {b} {pair}" for a in (3, 4) for b in range(a) for pair in ("1 2", "5 6")}


def test_a_fraction_is_no_whole_number():
    with pytest.raises(ValueError, match=r"got 2\.5, expected a whole number"):
        questions.whole("t", 2.5, "w.")


# ---- the schedule

def test_it_comes_back_after_2_7_and_21_days_and_then_rests():
    verdict("01.1", day(0))
    asked = []
    for number in range(100):
        if due(day(number)):
            asked.append(number)
            answer("01.1", day(number), right=True)
    assert asked == [2, 9, 30]
    verdict("01.1", day(101), "wrong", "counts rows")
    assert due(day(102)) == []
    assert due(day(103)) == ["01.1"]


def test_a_wrong_answer_goes_back_to_the_first_interval():
    verdict("01.1", day(0))
    answer("01.1", day(2), right=True)
    answer("01.1", day(9), right=False)
    assert due(day(10)) == []
    assert due(day(11)) == ["01.1"]


def test_sure_and_wrong_comes_first_then_named_mistakes_then_the_rest():
    verdict("02.1", day(0))
    guess("02.2", day(0), sure=False)
    verdict("02.3", day(0), "wrong", "takes data for a copy")
    guess("02.4", day(0.5), sure=True)
    guess("02.5", day(0), right=True)
    verdict("02.6", day(0), "wrong")
    assert due(day(3)) == ["02.4", "02.3", "02.1", "02.2"]


def test_checking_a_solved_worksheet_every_day_puts_nothing_off():
    for number in range(5):
        verdict("01.1", day(number))
        verdict("01.2", day(number), "wrong", "counts rows")
        assert due(day(number)) == ([] if number < 2 else ["01.2", "01.1"])


def test_a_mistake_is_taken_in_once():
    guess("01.1", day(0))
    for number in (2, 9, 30):
        answer("01.1", day(number), right=True)
    assert all(due(day(number)) == [] for number in range(30, 200))
    guess("01.1", day(200))
    assert due(day(202)) == ["01.1"]


def test_practice_asks_about_what_was_opened_and_about_all_where_nothing_was():
    assert len(review.practice(3, day(0))) == len(catalog.traps(3))
    guess("03.2", day(0))
    verdict("03.4", day(0), "wrong")
    assert [item.trap.id for item in review.practice(3, day(0))] == ["03.2", "03.4"]
    assert len(review.practice(2, day(0))) == len(catalog.traps(2))


def practised(id: str, when: datetime) -> review.Item:
    """The item that practice asks for this trap."""
    [item] = [item for item in review.practice(int(id[:2]), when) if item.trap.id == id]
    return item


def test_practice_counts_only_when_it_was_due():
    verdict("01.1", day(0))
    verdict("01.2", day(0), "wrong")  # opened, without a mistake that has a name
    for _ in range(3):
        review.record(practised("01.1", day(1)), True, day(1))
    assert due(day(2)) == ["01.1"]
    review.record(practised("01.1", day(2)), True, day(2))
    assert due(day(3)) == []
    review.record(practised("01.2", day(3)), False, day(3))
    assert due(day(5)) == ["01.2"]


def test_practice_goes_round_all_questions_of_a_trap():
    drawn = set()
    for _ in questions.about("03.1"):
        item = review.practice(3, day(0))[0]
        drawn.add(review.draw(item).why)
        review.record(item, True, day(0))
    assert len(drawn) == len(questions.about("03.1"))


# ---- clocks and windows

def test_a_clock_set_back_neither_asks_again_nor_forgets():
    verdict("01.1", day(0))
    answer("01.1", day(100), right=True)
    assert due(day(99)) == []
    assert due(day(99)) == []
    assert due(day(105)) == []
    assert due(day(107)) == ["01.1"]


def test_an_answer_from_a_clock_far_ahead_comes_back_all_the_same():
    verdict("01.1", day(0))
    answer("01.1", day(4000), right=True)
    assert due(day(5)) == []
    assert due(day(11)) == []
    assert due(day(12)) == ["01.1"]


def test_a_start_in_1970_costs_nothing():
    verdict("01.1", day(0))
    answer("01.1", day(2), right=True)
    assert due(datetime(1970, 1, 1, tzinfo=UTC)) == []
    assert due(day(3)) == []
    assert due(day(9)) == ["01.1"]


def test_an_event_from_the_future_counts_from_now():
    guess("01.1", day(4000))
    assert due(day(0)) == []
    assert due(day(1)) == []
    assert due(day(2)) == ["01.1"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_clock_does_no_trap_is_lost_or_asked_twice(seed):
    rng, ids = random.Random(seed), ["01.1", "01.2", "02.1"]
    for id in ids:
        guess(id, day(rng.randint(-50, 50)))
    rights = dict.fromkeys(ids, 0)
    now = 0.0
    for _ in range(40):
        now += rng.choice([0.1, 1, 3, 10, -1, -5, -400, 400])
        for id in due(day(now)):
            answer(id, day(now), right=True)
            rights[id] += 1
            assert id not in due(day(now))
            assert id not in due(day(now - rng.choice([0.1, 1, 300])))
    for later in range(70):  # from here on the clock runs as it should
        for id in due(day(now + later)):
            answer(id, day(now + later), right=True)
            rights[id] += 1
    assert set(rights.values()) == {3}


def test_two_windows_that_ask_the_same_question_count_it_once():
    verdict("01.1", day(0))
    (one,), (other,) = review.due(day(2)), review.due(day(2))
    review.record(one, True, day(2))
    review.record(other, True, day(2))
    assert due(day(8)) == []
    assert due(day(9)) == ["01.1"]
    answer("01.1", day(9), right=True)
    review.record(other, True, day(10))  # a window that was open all along
    assert due(day(29)) == []
    assert due(day(30)) == ["01.1"]


# ---- the store

def test_the_store_is_the_learners_alone_and_survives_damage(folder, capsys):
    verdict("01.1", day(0))
    answer("01.1", day(2), right=True)
    path = folder / ".reviews.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    with open(path, "ab") as file:
        for bad in ({"id": "01.1", "kind": "right", "n": 1}, {"id": "01.1", "kind": "fired",
                    "n": 0, "time": START.isoformat()}, {"id": 1, "kind": "right", "n": 1,
                    "time": START.isoformat()}, {"id": "01.1", "kind": "right", "n": True,
                    "time": START.isoformat()}, {"id": "01.1", "kind": "right", "n": 1,
                    "time": "soon"}):
            file.write(json.dumps(bad).encode() + b"\n")
        file.write(b'{"id": "01.1", "ki')
    assert due(day(9)) == ["01.1"]
    assert "6 unreadable line(s) in .reviews.jsonl" in capsys.readouterr().err
    aside = folder / ".reviews.damaged-1.jsonl"
    assert {p.stat().st_mode & 0o777 for p in (path, aside)} == {0o600}
    answer("01.1", day(9), right=True)
    assert due(day(29)) == []


def test_a_guess_counts_once_and_only_when_it_was_measured(folder):
    guess("01.1", day(0), right=None)
    guess("01.2", day(0), right=None)
    guess("01.2", day(0), right=False)
    assert due(day(2)) == ["01.2"]
    assert not list(folder.glob("*damaged*"))


@pytest.mark.parametrize(("name", "entry"), [
    (".exam.jsonl", {"sheet": 80, "ticket": "LLLLLLLL", "case": 0, "missed": ["01.4"]}),
    (".reviews.jsonl", {"id": "01.4", "kind": "mistake", "n": 1}),
    (".guesses.jsonl", {"id": "01.4", "guess": 3.0, "right": False, "sure": True}),
    (".progress.jsonl", {"id": "01.4", "status": "wrong", "misconception": "m"})])
def test_an_edited_line_stops_no_review_and_costs_no_other_line(folder, name, entry):
    """A list or an object instead of a text once stopped every command that reads reviews."""
    whole = json.dumps({**entry, "time": START.isoformat()})
    odd = [{**entry, "time": START.isoformat(), part: value} for part in [*entry, "time"]
           for value in (None, True, -1, 10**400, 1e308, "", "\ud800", [], {}, [[]], [{"a": 1}],
                         "9999-12-31T23:59:59-14:00")]
    folder.mkdir(parents=True)
    (folder / name).write_text("\n".join([whole, *map(json.dumps, odd), whole]) + "\n")
    assert "01.4" in [item.trap.id for item in review.due(day(400))]
    assert (folder / name).read_text().splitlines()[0] == whole
    assert (folder / name).read_text().count(whole) >= 2


def test_guesses_without_a_time_or_with_an_odd_id_stop_nothing(folder):
    guess("01.1", day(0))
    with open(folder / ".guesses.jsonl", "a") as file:
        file.write('{"id": "01.2", "right": false, "sure": true}\n'
                   '{"id": "99.9", "right": false, "sure": true, "time": 3}\n')
    assert due(day(0)) == []
    assert due(day(2)) == ["01.1", "01.2"]


def test_off_keeps_nothing_and_practises_all_the_same(folder, monkeypatch, capsys):
    monkeypatch.setenv("DLSYS_PROGRESS", "off")
    typed(monkeypatch, *["1"] * 5)
    assert cli.main(["review"]) == 0
    assert cli.main(["review", "--all", "1"]) == 0
    assert "not kept: DLSYS_PROGRESS is off" in capsys.readouterr().out
    assert not folder.exists()


def test_another_folder_is_honoured(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("DLSYS_PROGRESS", str(tmp_path / "elsewhere"))
    verdict("01.1", day(0))
    assert due(day(2)) == ["01.1"]
    assert (tmp_path / "elsewhere/.reviews.jsonl").exists()
    assert not folder.exists()


# ---- the command

def typed(monkeypatch, *lines):
    """Replaces the keyboard; an exception among the lines is raised."""
    rest = list(lines)

    def read(_):
        line = rest.pop(0)
        if isinstance(line, type):
            raise line
        return line
    monkeypatch.setattr("builtins.input", read)


@pytest.fixture
def march(monkeypatch):
    """Two traps are due, and today is the day."""
    guess("01.2", day(0))
    verdict("03.1", day(0))
    monkeypatch.setattr(review, "now", lambda: day(2))


def test_it_asks_says_why_and_keeps_the_answer(march, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(review, "draw", lambda item: asked.append(item.trap.id) or
                        questions.number(f"About {item.trap.id}?", 4.0, "Because.", 5))
    typed(monkeypatch, "four", "4", "5")
    assert cli.main(["review"]) == 0
    said = capsys.readouterr().out
    assert asked == ["01.2", "03.1"]
    assert "answer: got 'four', expected: A number, right within 2 %." in said
    assert "✓ Right. Computed: 4.\nBecause." in said
    assert "✗ Wrong. Computed: 4." in said
    assert f"Read again: trap 03.1, {catalog.trap('03.1').name}" in (
        " ".join(said.split()))
    assert said.count("Read again") == 1  # a right answer needs no second reading
    assert "1 of 2 right." in said
    assert due(day(4)) == ["03.1"]
    assert due(day(9)) == ["01.2", "03.1"]


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (EOFError, 0)])
def test_stopping_keeps_what_was_answered(march, monkeypatch, capsys, stop, code):
    typed(monkeypatch, "1", stop)
    assert cli.main(["review"]) == code
    assert "Your answers are kept." in capsys.readouterr().out
    assert due(day(2)) == ["03.1"]


def test_nothing_due_says_when(march, monkeypatch, capsys):
    monkeypatch.setattr(review, "now", lambda: day(1))
    assert cli.main(["review"]) == 0
    assert re.search(r"Next: trap 01\.2, .*, on 2026-03-03 \(1 day\)\.", capsys.readouterr().out)


def test_nothing_planned_says_how_to_begin(capsys):
    assert cli.main(["review"]) == 0
    assert "dlsys review --all 01" in capsys.readouterr().out


@pytest.mark.parametrize("stage", ["0", "99", "x", "", "-1", "²", "1.5"])
def test_bad_input_gets_one_line(stage, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["review", "--all", stage])
    said = capsys.readouterr().err
    assert said.count("\n") == 1


def test_a_stage_without_questions_gets_one_line(capsys, monkeypatch):
    monkeypatch.setattr(questions, "exist", lambda stage: stage != 3)
    assert cli.main(["review", "--all", "3"]) == 2
    assert "stage 3: no questions yet" in capsys.readouterr().err


def test_torch_is_not_imported_before_a_question_is_drawn(folder):
    code = ("import sys; from dlsys import cli, review; cli.main(['review']);"
            "review.practice(1, review.now()); assert 'torch' not in sys.modules")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={"DLSYS_PROGRESS": str(folder)})
    assert done.returncode == 0, done.stderr
    assert "Nothing is planned yet" in done.stdout


# ---- the start page

def words(box) -> str:
    """All text that a widget shows."""
    parts = [getattr(box, "value", "") or "", *map(words, getattr(box, "children", ()))]
    return " ".join(str(part) for part in parts)


def test_the_menu_asks_answers_and_goes_on(march):
    menu = start_page.review_menu()
    desk = menu.children[1]
    menu.children[0].children[1].click()
    head, _, field, _form, button, says = desk.children
    assert "Stage 1 · 2 to go" in head.value
    field.value = None if hasattr(field, "options") else "what?"
    button.click()
    assert "expected:" in words(says)
    assert not field.disabled
    field.value = 1 if hasattr(field, "options") else "1"
    button.click()
    assert field.disabled
    assert "Computed: " in words(says)
    says.children[-1].click()
    assert "Stage 3 · 1 to go" in desk.children[0].value
    assert due(day(2)) == ["03.1"]


def test_the_menu_says_when_nothing_is_due_and_practises(monkeypatch):
    menu = start_page.review_menu()
    (choice, button), desk = menu.children[0].children, menu.children[1]
    button.click()
    assert "Nothing is planned yet" in words(desk)
    choice.value = STAGES[-1]
    button.click()
    assert f"Stage {STAGES[-1]} · " in words(desk)
