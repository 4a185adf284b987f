"""A room: what it asks, counts, shows and saves, and how people open, join and leave it."""

import csv
import html
import json
import os
import re
import sqlite3
import stat

import pytest
from rooms import Learner, Running, running, send, shown, wait

from dlsys import cli
from dlsys.room import command, log, questions, report, results, rounds
from dlsys_checks import registry
from dlsys_helpers import catalog, paths, room_client
from dlsys_helpers.stages import SPAN, STAGES, stage
from dlsys_helpers.verdicts import Verdict

FIRST = "about `0.36`", "about `2.77`", "more than `4`"


@pytest.fixture(scope="module")
def items():
    return questions.of_stage(stage(8))


@pytest.fixture
def my_work(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "my-work")
    return tmp_path / "my-work"


# ---- what is asked

def stored(number, name):
    """What the cells of a lesson stored as data, by id."""
    text = (paths.NOTEBOOKS / f"{stage(number).stem}.ipynb").read_text("utf-8")
    pages = [line for cell in json.loads(text)["cells"] for out in cell.get("outputs", [])
             for line in ["".join(out.get("data", {}).get("text/html", ""))]]
    found = [json.loads(html.unescape(facts)) for page in pages
             for facts in re.findall(rf'data-{name}="([^"]*)"', page)]
    return {one["id"]: one for one in found}


@pytest.mark.parametrize("number", [s.number for s in STAGES])
def test_every_trap_of_a_stage_is_asked_as_its_lesson_stored_it(number):
    found = questions.of_stage(stage(number))
    asked, measured = stored(number, "guess"), stored(number, "measured")
    assert [item.trap.id for item in found] == list(asked)  # in the order of the lesson
    assert asked.keys() == {t.id for t in catalog.traps(number)}
    for item in found:
        assert item.asked._asdict() | {"choices": list(item.asked.choices)} == asked[item.trap.id]
        assert item.measured.shown == measured[item.trap.id]["shown"]
        right = measured[item.trap.id]["right"]
        assert item.measured.agrees(right if isinstance(right, str) else right[0])
        assert item.keep.strip()
        assert item.situation[0] not in "#\n"
        assert 15 < len(item.situation.split()) < 160
        assert item.code.startswith("```python\n")


def test_every_named_mistake_of_a_stage_is_known_with_a_question(items):
    for item in items:
        wrong = registry.find(item.trap.id).wrong_answers
        assert wrong
        assert all(item.ask(one.name) for one in wrong)
        assert item.ask("anything that somebody sends") is None


def test_a_mistake_is_asked_for_the_promise_that_it_breaks(items):
    assert items[0].ask("measuring only the first row") == (
        "Which of your lines keeps this promise? “Consider all rows.”")


def test_a_number_in_a_name_may_be_that_of_another_class():
    item = questions.of_stage(stage(4))[4]
    assert item.ask("stopping at more than 4 times the previous loss")
    assert item.ask("stopping at more than 7 times the previous loss")
    assert item.ask("stopping at more than <b> times the previous loss") is None


def test_a_release_without_outputs_is_asked_with_what_the_course_measured(tmp_path):
    assert cli.main(["release", "08", "--out", str(tmp_path / "class")]) == 0
    stages, found = questions.of_release(tmp_path / "class")
    assert stages == [8]
    assert [item.measured for item in found] == [
        item.measured for item in questions.of_stage(stage(8))]


def test_without_any_output_the_answer_is_what_counts_as_right(tmp_path, monkeypatch):
    assert cli.main(["release", "08", "--out", str(tmp_path / "class")]) == 0
    shipped = tmp_path / "notebooks"
    shipped.mkdir()
    (shipped / f"{stage(8).stem}.ipynb").write_bytes(
        (tmp_path / "class" / "08_lesson.ipynb").read_bytes())
    monkeypatch.setattr(paths, "NOTEBOOKS", shipped)
    found = {item.trap.id: item for item in questions.of_stage(stage(8))}
    assert found["08.2"].measured[:3] == ("08.2", "60 to 130 %", (60.0, 130.0))
    assert found["08.1"].measured.shown == "“more than `4`”"


# ---- rounds and results

def play(items, *events):
    one = rounds.Room(items)
    for event in events:
        assert one.refuse(event) == "", event
        one.apply(event)
    return one


def answers(trap, go, **given):
    return [{"kind": "answer", "trap": trap, "go": go, "who": who, "guess": guess, "sure": sure}
            for who, (guess, sure) in given.items()]


def steps(*names, trap="08.1"):
    return [{"kind": name} | ({"trap": trap} if name == "ask" else {}) for name in names]


TWO_ROUNDS = [
    *steps("ask"), *answers("08.1", 1, a=(FIRST[0], True), b=(FIRST[1], True), c=(FIRST[1], False),
                            d=(FIRST[2], False)),
    *steps("close", "show", "again"),
    *answers("08.1", 2, a=(FIRST[2], True), b=(FIRST[2], True), c=(FIRST[1], True),
             e=(FIRST[2], False))]


def test_choices_are_counted_by_round_and_certainty_and_the_flow_says_who_changed(items):
    one = play(items, *TWO_ROUNDS, *steps("close", "reveal"))
    found = results.question_view(one, "08.1", revealed=True)
    assert found["counts"] == [4, 4]
    assert [[(b["sure"], b["unsure"]) for b in row["bars"]] for row in found["choices"]] == [
        [(0, 1), (2, 1)], [(1, 1), (1, 0)], [(1, 0), (0, 0)]]
    assert [row["right"] for row in found["choices"]] == [True, False, False]
    assert found["right"] == [1, 3]
    assert found["flow"] == {"names": ["A", "B", "C"],
                             "counts": [[0, 0, 0], [1, 1, 0], [1, 0, 0]]}


def test_counts_without_the_answer_before_it_is_revealed(items):
    one = play(items, *TWO_ROUNDS, *steps("close", "show"))
    found = results.question_view(one, "08.1", revealed=False)
    assert not {"measured", "right"} & found.keys()
    assert not any("right" in row for row in found["choices"])
    numbers = play(items, *steps("ask", trap="08.2"), *answers("08.2", 1, a=(37, True)),
                   *steps("close", "again", trap="08.2"))
    found = results.question_view(numbers, "08.2", revealed=False)
    assert "band" not in found["dots"]
    assert "flow" not in found  # counts of right and wrong would give the answer away


def test_the_report_has_shares_gain_and_confident_errors(items):
    one = play(items, *TWO_ROUNDS, *steps("close", "reveal"))
    row = report.rows(one)[0]
    # a, b and c answered twice: first none of them was right, then two.
    assert {k: row[k] for k in report.COLUMNS[4:14]} == {
        "answers_before": 4, "right_before": 1, "share_before": 0.25, "answers_after": 4,
        "right_after": 3, "share_after": 0.75, "answers_both": 3, "gain": 0.667,
        "sure_and_wrong_before": 2, "sure_and_wrong_after": 1}


def test_the_gain_may_be_negative_and_is_none_where_all_were_right(items):
    right, wrong = rounds.Answer(FIRST[2], True), rounds.Answer(FIRST[0], True)
    assert report.gain(items[0], {"a": right, "b": wrong}, {"a": wrong, "b": wrong}) == -1
    assert report.gain(items[0], {"a": right}, {"a": wrong}) is None
    assert report.gain(items[0], {"a": right}, {}) is None


def test_numbers_stand_in_columns_and_far_ones_at_the_edges(items):
    given = {f"p{k}": (float(k), True) for k in range(20, 60)} | {"x": (1e12, False)}
    one = play(items, *steps("ask", trap="08.2"), *answers("08.2", 1, **given),
               *steps("close", "reveal"))
    dots = results.question_view(one, "08.2", revealed=True)["dots"]
    assert (dots["low"], dots["band"]) == (0, [60, 130])
    assert 130 < dots["high"] < 200, "beyond the band, and far from the one who said 1e12"
    columns = dots["rows"][0]["columns"]
    assert sum(sure + unsure for _, sure, unsure in columns) == 41
    assert columns[-1] == [results.DOTS - 1, 0, 1]
    assert dots["rows"][0]["above"] == 1


@pytest.mark.parametrize(("numbers", "band", "high"), [
    ([0, 1, 500, 990, 1e15], (), 1040), ([0, 1, 500, 990, 1e15], (1900, 2000), 2100),
    ([3, 3, 3, 3, 1e15], (), 3.3), ([0, 0, 0, 1e15], (), 1), ([1, 2, 1e15], (), 2.1)])
def test_one_joker_does_not_set_the_axis(numbers, band, high):
    low, end = results.span(numbers, band, "batches")
    assert (low, end) == (pytest.approx(0, abs=3), pytest.approx(high, rel=0.05))


@pytest.mark.parametrize(("numbers", "band", "unit"), [
    ([], (), "GB"), ([5.0], (), "GB"), ([-3.0, -1.0], (), "s"), ([0.0, 0.0], (0, 0), "calls"),
    ([1e-9, 2e-9], (), "s"), ([-1e15, 1e15], (1, 2), "%")])
def test_an_axis_has_two_ends_and_holds_the_band(numbers, band, unit):
    low, high = results.span(numbers, band, unit)
    assert low < high
    assert all(low <= end <= high for end in (*numbers, *band))


def test_one_answer_for_a_participant_and_round_the_last_before_it_closes(items):
    one = play(items, *steps("ask"), *answers("08.1", 1, a=(FIRST[0], True)),
               *answers("08.1", 1, a=(FIRST[2], False)))
    assert one.answers["08.1", 1] == {"a": rounds.Answer(FIRST[2], False)}
    one.apply({"kind": "close"})
    assert "closed" in one.refuse(*answers("08.1", 1, a=(FIRST[0], True)))


def test_a_guess_in_the_lesson_before_the_question_is_asked_counts_for_its_first_round(items):
    between = "more than its loss in the middle of a row, but less than the first model's loss"
    one = play(items, *answers("08.3", 1, a=(between, True)),
               *steps("ask", trap="08.3"))
    assert one.go("08.3") == 1
    assert "a" in one.answers["08.3", 1]


@pytest.mark.parametrize("guess", ["neither", 3, None, True, [], "x" * 5000])
def test_what_is_no_choice_is_refused(items, guess):
    one = play(items, *steps("ask"))
    assert one.refuse(*answers("08.1", 1, a=(guess, True)))


@pytest.mark.parametrize("guess", ["37", float("nan"), float("inf"), 10**400, -(10**16), True])
def test_what_is_no_number_is_refused(items, guess):
    one = play(items, *steps("ask", trap="08.2"))
    assert one.refuse(*answers("08.2", 1, a=(guess, True)))


def test_forty_learners_with_different_mistakes(items):
    names = [w.name for w in registry.find("08.1").wrong_answers]
    made = [names[0]] * 14 + [names[4]] * 9 + [names[7]] * 3 + ["<script>"] * 2
    told = [*(("wrong", name) for name in made), *[("todo", "")] * 4, *[("pass", "")] * 8]
    one = play(items, *steps("ask", "close", "reveal"),
               {"kind": "exercise", "trap": "08.1", "until": 1.0},
               *({"kind": "verdict", "trap": "08.1", "who": f"p{k}", "status": s, "mistake": m}
                 for k, (s, m) in enumerate(told)),
               {"kind": "verdict", "trap": "08.1", "who": "p0", "status": "pass", "mistake": ""},
               {"kind": "verdict", "trap": "08.1", "who": "p0", "status": "wrong",
                "mistake": names[4]},
               {"kind": "hint", "trap": "08.1", "who": "p3", "number": 2},
               {"kind": "hint", "trap": "08.1", "who": "p4", "number": 1})
    found = results.exercise_view(one, "08.1")
    assert (found["solved"], found["trying"], found["unnamed"], found["todo"]) == (9, 27, 2, 4)
    assert [(m["name"], m["count"]) for m in found["mistakes"]] == [
        (names[0], 13), (names[4], 9), (names[7], 3)]
    assert found["hints"] == [2, 1, 0]
    assert found["mistakes"][0]["ask"].startswith(
        "Which of your lines keeps this promise? “Entry t is the largest absolute change")


def verdict(who, status, trap="08.1", mistake=""):
    return {"kind": "verdict", "trap": trap, "who": who, "status": status, "mistake": mistake}


def test_an_untouched_stub_is_no_try(items):
    """`dlsys check 8` reports a verdict on every exercise, including unopened ones."""
    one = play(items, *steps("ask", "close", "reveal"), verdict("a", "todo"), verdict("b", "pass"),
               verdict("a", "todo", "08.2"), verdict("c", "todo", "08.2"),
               verdict("d", "wrong"), verdict("d", "todo"))
    assert [(row["trap"], row["solved"], row["tried"]) for row in report.rows(one)] == [
        ("08.1", 1, 2)]
    found = results.exercise_view(one, "08.1")
    assert (found["solved"], found["trying"], found["todo"], found["tries"]) == (1, 1, 1, 2)
    assert "1 of 2" in report.page(report.rows(one), {"title": "x"})


def test_a_trap_is_called_by_its_situation_until_the_room_has_seen_its_answer(items):
    trap = items[0].trap
    asked = play(items, *steps("ask", "close", "show"), verdict("a", "wrong"))
    assert asked.shown_name("08.1") == report.rows(asked)[0]["title"] == trap.title
    asked.apply({"kind": "reveal"})
    assert asked.shown_name("08.1") == report.rows(asked)[0]["title"] == trap.name


EXERCISE = [*steps("ask", "close", "reveal"), {"kind": "exercise", "trap": "08.1", "until": 7.0}]


def test_one_step_leads_back_to_an_exercise_that_was_left(items):
    for left in ([*steps("ask", trap="08.2")], [*steps("rest")],
                 [*steps("rest"), *steps("ask", trap="08.2")]):
        one = play(items, *EXERCISE, *left)
        assert "back" in one.steps()
        assert play(items, *EXERCISE, *left, {"kind": "back"}).phase == rounds.EXERCISE
        one.apply({"kind": "back"})
        assert (one.now, one.until, list(one.rounds)) == ("08.1", 7.0, ["08.1"])
        assert "back" not in one.steps()


def test_a_question_that_was_asked_by_accident_is_asked_again_with_the_answers_it_got(items):
    one = play(items, *EXERCISE, *steps("ask", trap="08.2"),
               *answers("08.2", 1, a=(80.0, True)), {"kind": "back"}, *steps("ask", trap="08.2"))
    assert one.next() == "08.3"
    assert one.answers["08.2", 1] == {"a": rounds.Answer(80.0, True)}


def test_once_an_answer_is_revealed_nothing_leads_back(items):
    one = play(items, *EXERCISE, *steps("ask", "close", "reveal", trap="08.2"))
    assert "back" not in one.steps()
    assert "not now" in one.refuse({"kind": "back"})


def test_two_devices_of_one_participant_count_once(items):
    one = play(items, *steps("ask"), *answers("08.1", 1, phone=(FIRST[2], True),
                                              laptop=(FIRST[0], True), other=(FIRST[1], True)),
               verdict("laptop", "pass"), {"kind": "same", "who": "laptop", "as": "phone"})
    assert one.answers["08.1", 1] == {"phone": rounds.Answer(FIRST[2], True),
                                      "other": rounds.Answer(FIRST[1], True)}
    assert list(one.verdicts["08.1"]) == ["phone"]


@pytest.mark.parametrize("number", [s.number for s in STAGES])
def test_behind_a_choice_that_was_measured_stands_a_number(number):
    for item in questions.of_stage(stage(number)):
        assert bool(item.found) == bool(item.asked.choices)
        assert not item.found or re.search(r"\d|: yes\.", item.found), item.trap.id


def test_a_choice_is_shown_with_its_number_once_it_is_revealed(items):
    one = play(items, *steps("ask", "close", "show"))
    assert "found" not in results.question_view(one, "08.1", revealed=False)
    assert results.question_view(one, "08.1", revealed=True)["found"] == (
        "Without a mask: loss for the token after a prefix, in nats: 4.96.")


@pytest.mark.parametrize(("right", "said"), [(1, "too few"), (5, "let neighbours"),
                                             (9, "most know it")])
def test_advice_follows_the_share_that_is_right(items, right, said):
    given = [rounds.Answer(FIRST[2] if k < right else FIRST[0], True) for k in range(10)]
    assert said in results.advice(items[0], given)


def test_a_step_that_does_not_come_next_is_refused(items):
    one = play(items, *steps("ask"))
    for name in ("show", "again", "reveal", "ask", "exercise", "begin", "end", "__init__"):
        assert "not now" in one.refuse({"kind": name})


def test_a_question_that_was_left_goes_on_where_it_stood(items):
    one = play(items, *TWO_ROUNDS, *steps("close", "rest"), *steps("ask", trap="08.2"),
               *steps("close", "rest", "ask"))
    assert (one.phase, one.rounds["08.1"].go) == (rounds.CLOSED, 2)
    assert one.next() == "08.3"


# ---- the command

@pytest.mark.parametrize(("words", "said"), [
    (["room"], "expected a stage: dlsys room 8"),
    (["room", "99"], f"expected {SPAN}"),
    (["room", "8", "--release", "x"], "got a stage and --release"),
    (["room", "8", "--port", "70000"], "--port: got 70000"),
    (["room", "8", "--prefix", "room"], "begins and ends with a slash"),
    (["room", "8", "--address", "ftp://x"], "expected http://"),
    (["room", "8", "--host", "203.0.113.9"], "cannot listen on 203.0.113.9"),
    (["room", "--release", "nowhere"], "RELEASE.json cannot be read (No such file"),
    (["join", "http://127.0.0.1:1", "ABCDEF"], "does not answer"),
    (["join", "ftp://x", "ABCDEF"], "expected the address on the wall"),
    (["join", "", "ABCDEF"], "expected the address on the wall")])
def test_bad_input_gets_one_line(words, said, my_work, capsys):
    assert cli.main(words) == cli.BAD_INPUT
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_a_release_folder_without_notebooks_is_named(tmp_path, capsys, my_work):
    (tmp_path / "RELEASE.json").write_text('{"stages": [8]}')
    assert cli.main(["room", "--release", str(tmp_path)]) == cli.BAD_INPUT
    assert "has no lesson" in capsys.readouterr().err


def test_leaving_without_having_joined(my_work, capsys):
    assert cli.main(["leave"]) == 0
    assert capsys.readouterr().out == "You are not in a room, so there is nothing to leave.\n"


# ---- with a server

@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with running(tmp_path_factory.mktemp("room")) as room_:
        yield room_


def test_a_port_that_is_in_use_is_named(served, my_work, capsys):
    assert cli.main(["room", "8", "--host", "127.0.0.1", "--port", str(served.port)]) == (
        cli.BAD_INPUT)
    assert f"{served.port} is in use" in capsys.readouterr().err


def test_joining_guessing_checking_and_leaving_as_a_learner(served, my_work, capsys):
    join = ["join", served.url.removeprefix("http://"), served.code.lower()]
    assert cli.main(["join", served.url, "AAAAAA"]) == cli.BAD_INPUT
    assert "not the code" in capsys.readouterr().err
    assert cli.main(join) == 0
    out = capsys.readouterr().out
    assert "never code, and no name" in out
    assert re.search(rf"Type {served.code}-[A-Z]{{8}} there", out)
    assert shown(served.port, "watch", key=served.secret)["here"] == 1  # before it says anything
    assert cli.main(join) == 0
    assert "already" in capsys.readouterr().out
    assert command.over_room() == ""
    assert room_client.file().stat().st_mode & 0o077 == 0
    assert served.step("ask", trap="08.2") == 200
    room_client.tell_guess("08.2", {"guess": 40.0, "sure": True})
    wrong = registry.find("08.2").wrong_answers[0].name
    room_client.tell_verdicts(Verdict("wrong", "08.2", misconception=wrong),
                              Verdict("missing", "08.3"))
    assert "not your code. To stop: dlsys leave" in capsys.readouterr().err
    wait(lambda: not room_client._QUEUE.unfinished_tasks)
    assert shown(served.port, "watch", key=served.secret)["answered"] == 1
    for step in ("close", "reveal", "exercise"):
        assert served.step(step, trap="08.2") == 200
    found = shown(served.port, "watch", key=served.secret)["exercise"]
    assert [(m["name"], m["count"]) for m in found["mistakes"]] == [(wrong, 1)]
    assert found["trying"] == 1
    assert cli.main(["leave"]) == 0
    assert not room_client.file().exists()
    room_client.tell_guess("08.2", {"guess": 1.0, "sure": True})
    assert room_client._QUEUE.unfinished_tasks == 0


def test_a_check_says_when_the_room_has_gone(my_work):
    assert command.over_room() == ""
    room_client.join({"address": "http://127.0.0.1:9/", "code": "RTLCMV", "cookie": "x"})
    assert command.over_room().startswith("The room RTLCMV no longer answers, so nothing was sent")


def test_a_verdict_in_a_notebook_says_that_nobody_was_told(my_work, capsys):
    room_client.join({"address": "http://127.0.0.1:9/", "code": "RTLCMV", "cookie": "x"})
    for _ in range(2):  # even while the client leaves the room alone
        room_client.tell_verdicts(Verdict("pass", "08.2"))
        said = capsys.readouterr().err
        assert "The room RTLCMV does not answer, so it did not get this." in said
        assert "Sent to the room" not in said


def test_a_verdict_that_the_room_refuses_is_not_called_told(served, my_work, capsys):
    assert cli.main(["join", served.url, served.code]) == 0
    capsys.readouterr()
    room_client.tell_verdicts(Verdict("pass", "08.99"))
    assert "does not take this, so it did not get" in capsys.readouterr().err
    room_client.leave()


def test_a_verdict_waits_a_moment_for_a_room_that_says_nothing(my_work, monkeypatch, capsys):
    import socket
    monkeypatch.setattr(room_client, "HEARD", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        room_client.join({"address": f"http://127.0.0.1:{silent.getsockname()[1]}/",
                          "code": "ABCDEF", "cookie": "dlsys-room=x"})
        monkeypatch.setattr(room_client, "PATIENCE", 0.5)
        room_client.tell_verdicts(Verdict("pass", "08.2"))
        assert "has not answered yet" in capsys.readouterr().err
        wait(lambda: not room_client._QUEUE.unfinished_tasks)


def test_the_number_behind_a_count_is_no_difference():
    found = {item.trap.id: item.found for item in questions.of_stage(stage(5))}
    assert "without BatchNorm: 0." in found["05.1"]
    assert " minus " not in found["05.1"]
    assert " minus " in found["05.5"]  # the question compares two numbers


def test_the_number_behind_a_percentage_is_no_other_value():
    found = {item.trap.id: item.found for item in questions.of_stage(stage(6))}
    assert re.fullmatch(r"the pixel: 14; pixels that got darker: \d+%", found["06.6"])


def test_a_phone_and_a_notebook_of_one_person_count_once(tmp_path, my_work, capsys):
    """The phone's letters join them, also after both have answered, and so do the letters that
    the notebook's command prints."""
    with running(tmp_path) as room:
        def answered():
            return shown(room.port, "watch", key=room.secret)["answered"]

        phone = Learner(room)
        own = send(room.port, "me", {}, phone.cookie, method="GET")[1]["own"]
        assert room.step("ask", trap="08.2") == 200
        assert cli.main(["join", room.url, room.code]) == 0  # with the wall's code: somebody else
        said = re.search(rf"Type ({room.code}-[A-Z]{{8}}) there", capsys.readouterr().out)[1]
        room_client.tell_guess("08.2", {"guess": 40.0, "sure": True})
        wait(lambda: not room_client._QUEUE.unfinished_tasks)
        assert phone.answer("08.2", 80) == 200
        assert answered() == 2
        assert cli.main(["join", room.url, own]) == 0  # now as the same person
        assert "count once" not in capsys.readouterr().out
        assert answered() == 1
        room_client.tell_guess("08.2", {"guess": 50.0, "sure": False})
        wait(lambda: not room_client._QUEUE.unfinished_tasks)
        assert answered() == 1
        other = send(room.port, "join", {"code": said.lower()})[2]
        assert send(room.port, "me", {}, other, method="GET")[1]["own"] == said
        assert send(room.port, "join", {"code": f"{room.code}-XYZ"})[0] == 403
        room_client.leave()


def test_an_address_that_is_no_room_is_named(my_work, capsys):
    import http.server
    import threading
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        other.RequestHandlerClass.log_message = lambda *_: None
        assert cli.main(["join", f"127.0.0.1:{other.server_port}", "ABCDEF"]) == cli.BAD_INPUT
        other.shutdown()
    assert "not a room" in capsys.readouterr().err


def test_a_room_that_never_answers_or_is_gone_keeps_nothing_waiting(my_work, monkeypatch):
    """The other end accepts and says nothing; every call that returns did not wait for it."""
    import socket
    monkeypatch.setattr(room_client, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        room_client.join({"address": f"http://127.0.0.1:{silent.getsockname()[1]}/",
                          "code": "ABCDEF", "cookie": "dlsys-room=x"})
        for _ in range(200):
            room_client.tell_guess("08.1", {"guess": 1.0, "sure": True})
        assert 0 < room_client._QUEUE.unfinished_tasks <= room_client._QUEUE.maxsize + 1
        wait(lambda: not room_client._QUEUE.unfinished_tasks)


def test_a_damaged_file_counts_as_no_room(my_work):
    my_work.mkdir()
    room_client.file().write_text("[1")
    assert room_client.joined() == {}
    room_client.file().write_text('{"address": 3}')
    assert room_client.joined() == {}


def test_killed_in_the_middle_of_a_round_nothing_acknowledged_is_lost(tmp_path):
    """kill -9 while fifty answer: every acknowledged answer is still there after a restart."""
    first = Running(tmp_path)
    assert first.step("ask") == 200
    learners = [Learner(first) for _ in range(50)]
    kept = {}
    for number, learner in enumerate(learners):
        if number == 30:
            first.kill()
            break
        assert learner.answer("08.1", FIRST[number % 3]) == 200
        kept[number] = FIRST[number % 3]
    second = Running(tmp_path, port=first.port)
    assert (second.code, second.secret) == (first.code, first.secret)
    assert "Continuing the room" in second.output
    told = shown(second.port, "watch", key=second.secret)
    assert (told["phase"], told["answered"]) == ("open", 30)
    for number, guess in kept.items():
        mine = shown(second.port, "events", cookie=learners[number].cookie)["mine"]
        assert mine == {"1": {"guess": guess, "sure": True}}
    learners[40].room = second
    assert learners[40].answer("08.1", FIRST[0]) == 200  # the old cookie is still valid
    out = second.stop()
    folder = next(tmp_path.glob("rooms/*"))
    assert {str(folder / "report.html"), str(folder / "report.csv")} <= set(out.split())
    row, = csv.DictReader((folder / "report.csv").read_text().splitlines())
    assert (row["trap"], row["answers_before"], row["share_before"]) == ("08.1", "31", "0.323")
    assert not log.is_open(folder)
    page = (folder / "report.html").read_text()
    assert "32 % of 31" in page
    assert not re.search(r"(src|href)=", page)


def test_a_room_of_another_day_does_not_go_on_by_itself(tmp_path):
    kept = log.Log(tmp_path)
    kept.append({"kind": "begin"})
    kept.close()
    assert log.is_open(tmp_path)
    old = sqlite3.connect(tmp_path / log.NAME)
    with old:
        old.execute("UPDATE events SET at = at - ?", (log.STALE + 1,))
    old.close()
    assert not log.is_open(tmp_path)
    assert not log.is_open(tmp_path / "nowhere")
    (tmp_path / log.NAME).write_text("no database" * 999)
    assert not log.is_open(tmp_path)


def test_a_damaged_log_is_named(tmp_path, capsys, my_work):
    (tmp_path / log.NAME).write_text("no database, but long enough to be none" * 99)
    assert cli.main(["room", "8", "--port", "0", "--out", str(tmp_path)]) == cli.BAD_INPUT
    assert "room.sqlite: cannot be written (file is not a database)" in capsys.readouterr().err


def test_names_are_kept_only_where_asked_for_and_given(tmp_path):
    with running(tmp_path, "--names") as named:
        status, told, cookie = send(named.port, "join", {"code": named.code, "name": "=Ada\n"})
        assert (status, told["names"]) == (200, True)
        quiet = Learner(named)
        assert named.step("ask") == 200
        assert send(named.port, "answer", {"trap": "08.1", "go": 1, "guess": FIRST[2],
                                           "sure": True}, cookie)[0] == 200
        assert quiet.answer("08.1", FIRST[0]) == 200
        named.stop()
    [kept] = tmp_path.glob("rooms/*/names.csv")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    rows = list(csv.DictReader(kept.read_text().splitlines()))
    assert [(row["name"], row["right"]) for row in rows] == [("'=Ada", "True")]
    assert re.fullmatch("[A-Z]{8}", rows[0]["participant"]), "two people may have one name"
    assert "Ada" not in next(tmp_path.glob("rooms/*/report.html")).read_text()
    assert "Ada" not in next(tmp_path.glob("rooms/*/report.csv")).read_text()


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_files_with_answers_and_names_are_the_presenters_alone_also_where_they_lay(
        tmp_path, items):
    for name in (log.NAME, f"{log.NAME}-wal", f"{log.NAME}-shm", report.NAMED, report.HTML):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o644)
    kept = log.Log(tmp_path)
    kept.append({"kind": "begin"})
    report.write(tmp_path, rounds.Room(items), {"title": "x", "names": True})
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    kept.close()
    assert {log.NAME, report.NAMED, report.HTML} <= modes.keys()
    assert {*modes.values()} == {0o600}


def test_behind_a_prefix_every_page_and_link_is_below_it(tmp_path):
    with running(tmp_path, "--prefix", "/services/room/") as hub:
        def get(path):
            return send(hub.port, path, {}, method="GET")[0]
        assert get("services/room/") == get("services/room/present") == 200
        assert get("services/room/static/room.js") == 200
        assert get("") == get("present") == 404
    for page in ("class.html", "present.html"):
        text = (questions.Path(questions.__file__).parent / "pages" / page).read_text()
        assert re.findall(r'(?:src|href)="(?!static/|data:,)', text) == []
