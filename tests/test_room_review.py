"""A room that reviews changes: what it asks, counts and shows, and nothing too early."""

import csv
import dataclasses
import json
import random
import re
import stat

import pytest
from rooms import Learner, Running, running, send, shown
from sklearn.metrics import roc_auc_score

from dlsys import cli, review_diff
from dlsys.room import changes, log, open_room, review_server, rounds
from dlsys.room.changes import ReviewRoom
from dlsys.room.questions import RoomError
from dlsys_diffs import reading
from dlsys_diffs.case_files import HEALTHY, OMITTED, cases
from dlsys_diffs.repository import files
from dlsys_helpers import paths

CASES = [*cases().values()]


def number(kind):
    return str(1 + next(n for n, case in enumerate(CASES) if case.kind == kind))


FAULTY, GOOD = number(OMITTED), number(HEALTHY)


def asked(trap, seed=1):
    return {"kind": "ask", "trap": trap, "digest": CASES[int(trap) - 1].digest, "seed": seed}


def said(trap, who, mark, confidence, consequence):
    return {"kind": "answer", "trap": trap, "who": who, "mark": mark,
            "confidence": str(confidence), "consequence": str(consequence)}


def play(*events, planned=()):
    room = ReviewRoom(CASES, planned)
    for event in events:
        assert room.refuse(event) == "", event
        room.apply(event)
    return room


def place(trap):
    """Where a mark is right."""
    return "{}:{}".format(*CASES[int(trap) - 1].places[0])


def right_number(trap, seed=1):
    """The number by which the right consequence is shown."""
    return 1 + review_diff.shuffled(CASES[int(trap) - 1], 3, seed).index(0)


CLOSE, RUN = {"kind": "close"}, {"kind": "run", "run": "resume"}


# ---- rounds

def test_a_change_is_answered_until_it_is_closed_and_the_last_answer_counts():
    room = play(asked(FAULTY), said(FAULTY, "a", "none", 10, 0),
                said(FAULTY, "a", "loop.py:9", 80, 2))
    assert room.answers[FAULTY, 1] == {"a": changes.Marked("loop.py:9", 80, 2)}
    assert room.refuse(said(GOOD, "a", "none", 1, 0)) == "answer: this change is closed."
    room.apply(CLOSE)
    assert room.phase == rounds.REVEALED
    assert room.refuse(said(FAULTY, "a", "none", 1, 0)) == "answer: this change is closed."


@pytest.mark.parametrize(("mark", "confidence", "consequence", "why"), [
    ("", "50", "0", "mark: got nothing, expected a file and a line number"),
    ("loop.py:999", "50", "0", "mark: got line 999 of loop.py, expected 1 to"),
    ("shell.py:1", "50", "0", "mark: got the file 'shell.py', expected one of"),
    ("none", "", "0", "confidence: got nothing, expected a whole number from 0"),
    ("none", "101", "0", "confidence: got '101', expected"),
    ("none", "50", "4", "consequence: got '4', expected 0 to 3."),
    ("none", "50", "", "consequence: got nothing")])
def test_what_cannot_be_read_is_refused_as_in_the_terminal(mark, confidence, consequence, why):
    room = play(asked(FAULTY))
    assert room.refuse(said(FAULTY, "a", mark, confidence, consequence)).startswith(why)
    assert room.refuse(said("61", "a", "none", 1, 0)) == "answer: got no change of this room."


def test_planned_changes_come_first_and_then_the_next_by_number():
    room = play(planned=["7", "3"])
    for trap in ("7", "3", "4", "5"):
        assert room.next() == trap
        room.apply(asked(trap))
        room.apply(CLOSE)


def test_a_form_is_drawn_from_until_all_of_it_were_asked():
    room = play()
    assert {"draw_a", "draw_b"} <= {*room.steps()}
    for trap in room.unasked("a"):
        assert CASES[int(trap) - 1].form == "a"
        room.apply(asked(trap))
        room.apply(CLOSE)
    assert room.unasked("a") == []
    assert "draw_a" not in room.steps()
    assert "draw_b" in room.steps()


def test_one_run_is_shown_for_a_change_while_it_is_open():
    room = play(asked(FAULTY))
    assert room.refuse({"kind": "run", "run": "x"}).startswith(
        "run: got 'x', expected one of training, resume")
    room.apply(RUN)
    assert "not now" in room.refuse(RUN)
    assert changes.change_view(room, FAULTY)["run"]["name"] == "resume"
    room.apply(CLOSE)
    assert "not now" in room.refuse(RUN)


def test_a_change_that_was_left_goes_on_with_its_answers_and_its_order():
    room = play(asked(FAULTY), said(FAULTY, "a", "none", 10, 1), {"kind": "rest"},
                asked(GOOD), CLOSE, asked(FAULTY, seed=2))
    assert (room.phase, room.rounds[FAULTY].seed) == (rounds.OPEN, 1)
    assert "a" in room.answers[FAULTY, 1]
    assert "not now" in room.refuse({"kind": "exercise"})
    assert room.refuse({"kind": "ask", "trap": "61"}) == "ask: got change '61', expected 1 to 60."


# ---- what is told

def test_closing_counts_marks_consequences_and_how_sure_the_right_and_the_wrong_were():
    right = right_number(FAULTY)
    room = play(asked(FAULTY), said(FAULTY, "a", place(FAULTY), 90, right),
                said(FAULTY, "b", place(FAULTY), 70, 0), said(FAULTY, "c", "none", 20, 0),
                said(FAULTY, "d", "config.py:1", 40, right), CLOSE)
    found, case = changes.outcome(room, FAULTY), CASES[int(FAULTY) - 1]
    assert found["marks"] == {place(FAULTY): 2, "": 1, "config.py:1": 1}
    assert (found["counts"], found["right"], found["sure"]) == ([4], 2, [80, 30])
    assert found["heading"] == "The change is incomplete."
    assert place(FAULTY) in found["places"]
    assert [row["bars"][0]["sure"] for row in found["choices"] if row["right"]] == [2]
    assert found["choices"][-1]["bars"] == [{"sure": 2}]
    assert [row["text"] for row in found["choices"] if row["right"]] == [case.consequences[0]]
    assert found["measured"] == review_diff.measured(case)
    assert [line[1] for line in found["repair"] if line[0] == "+"]


def test_a_healthy_change_is_right_unmarked_and_accused_above_fifty():
    room = play(asked(GOOD), said(GOOD, "a", "none", 50, 0), said(GOOD, "b", "loop.py:1", 51, 1),
                said(GOOD, "c", "none", 90, 0), CLOSE)
    found = changes.outcome(room, GOOD)
    assert (found["right"], found["accused"], found["repair"]) == (2, 2, [])
    assert [row["letter"] for row in found["choices"] if row["right"]] == ["D"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_what_was_right_is_told_of_every_change(case):
    trap = str(review_diff.number_of(case))
    found = changes.outcome(play(asked(trap), CLOSE), trap)
    assert bool(found["places"]) == bool(found["repair"]) == case.faulty
    assert sum(row["right"] for row in found["choices"]) == 1
    assert json.dumps(found)


def test_the_score_is_that_of_all_answers_to_the_changes_that_were_closed():
    draw = random.Random(3)
    room = play()
    for trap in map(str, range(1, 13)):
        room.apply(asked(trap))
        for who in range(20):
            room.apply(said(trap, str(who), "none", draw.randrange(0, 101, 10), 0))
        room.apply(CLOSE if trap != "12" else {"kind": "rest"})
    pairs = [(CASES[int(trap) - 1].faulty, one.confidence) for (trap, _), given in
             room.answers.items() for one in given.values() if trap != "12"]
    found = changes.score(room)
    assert (found["answers"], found["changes"]) == (220, 11)
    assert found["auroc"] == pytest.approx(roc_auc_score(*zip(*pairs, strict=True)))
    assert found["accused"] == (sum(sure > 50 for bad, sure in pairs if not bad),
                                sum(not bad for bad, _ in pairs))
    assert changes.score(room, "3")["answers"] == 11
    assert changes.score(play())["auroc"] is None
    room.apply({"kind": "score"})
    assert (room.phase, room.now) == (changes.SCORE, None)
    room.apply(asked("12"))
    assert room.phase == rounds.OPEN


# ---- nothing gives the answer away before a change is closed

@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_an_open_change_looks_the_same_whatever_is_right(case):
    """Change every field that says what is right: every text sent stays the same."""
    n = review_diff.number_of(case) - 1
    other = dataclasses.replace(
        case, kind=HEALTHY if case.faulty else OMITTED, marks=(("loop.py", "import"),), why="x",
        source="x/y#1", repairs=(), run="data", number="x")
    views = []
    for one in (case, other):
        room = ReviewRoom([*CASES[:n], one, *CASES[n + 1:]])
        room.apply({"kind": "ask", "trap": str(n + 1), "digest": one.digest, "seed": 5})
        room.apply(RUN)
        views.append(changes.change_view(room, str(n + 1)))
    assert views[0] == views[1]
    assert sorted(views[0]["consequences"]) == sorted(case.consequences)


def test_the_right_consequence_may_have_any_letter():
    found = {right_number(trap, seed) for trap in (FAULTY, "4", "8") for seed in range(20)}
    assert found == {1, 2, 3}


@pytest.mark.parametrize("trap", [FAULTY, GOOD])
def test_no_response_to_a_phone_says_what_is_right_before_the_change_is_closed(trap, tmp_path):
    """Every address that a phone can ask, at rest, open, answered and with a run."""
    case = CASES[int(trap) - 1]
    telling = [case.id, case.why, case.source, *review_diff.HEADINGS.values(),
               review_diff.measured(case), '"places"', '"marks"', '"repair"', '"faulty"']
    if case.faulty:
        known = "".join([*files().values(), *case.after.values()])
        new = [line.text.strip() for line in reading.repair_diff(case, 0)
               if line.sign == "+" and line.text.strip() not in known]
        assert new
        telling += new
    with running(tmp_path, what=("--review", trap)) as room:
        phone, other = Learner(room), Learner(room)
        heard = []

        def listen():
            for path in ("me", "files", f"keep/{int(trap):02d}.1", "watch", "present"):
                heard.append(json.dumps(send(room.port, path, {}, phone.cookie, method="GET")[1]))
            heard.append(json.dumps(shown(room.port, "events", cookie=phone.cookie)))

        listen()
        assert send(room.port, "files", {}, phone.cookie, method="GET")[0] == 404
        assert room.step("ask") == 200
        listen()
        for mark in ("none", "loop.py:1", "x", place(trap) if case.faulty else "loop.py:2"):
            for who in (phone, other):
                heard.append(json.dumps(send(room.port, "answer", {
                    "trap": trap, "mark": mark, "confidence": "60", "consequence": "1"},
                    who.cookie)[1]))
            listen()
        assert room.step("run", run=case.run) == 200
        listen()
        for text in telling:
            assert text not in "".join(heard), text
        assert sum(case.title in text for text in heard) == 6
        told = shown(room.port, "events", cookie=phone.cookie)
        assert {*told["room"]} == {"title", "phase", "names", "review", "trap", "go", "change"}
        assert {*told["mine"]["1"]} == {"mark", "confidence", "consequence"}
        wall = shown(room.port, "watch", key=room.secret)
        assert not {"results", "notes", "score"} & wall.keys()
        assert wall["answered"] == 2
        assert room.step("close") == 200
        told = shown(room.port, "events", cookie=phone.cookie)
        assert told["room"]["results"]["why"] == case.why
        assert told["mine"]["1"]["right"] is case.faulty


# ---- with a server

@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    with running(tmp_path_factory.mktemp("room"), what=("--review", FAULTY)) as room:
        assert room.step("ask") == 200
        yield room
        assert room.process.poll() is None, "the server lives"


def answer(room, learner, trap=FAULTY, **more):
    data = {"trap": trap, "mark": "none", "confidence": "50", "consequence": "0"} | more
    return send(room.port, "answer", data, learner.cookie)


def test_a_refused_answer_says_why_and_keeps_the_one_before(opened):
    learner = Learner(opened)
    assert answer(opened, learner)[0] == 200
    status, told, _ = answer(opened, learner, confidence="200")
    assert status == 409
    assert told["error"].startswith("confidence: got '200', expected a whole number from 0")
    mine = shown(opened.port, "events", cookie=learner.cookie)["mine"]
    assert mine == {"1": {"mark": "", "confidence": 50, "consequence": 0}}


@pytest.mark.parametrize("data", [
    {"mark": 3}, {"mark": None}, {"confidence": 50}, {"consequence": [0]}, {"trap": {}}])
def test_what_is_no_message_is_refused(opened, data):
    assert answer(opened, Learner(opened), **data)[0] == 400


@pytest.mark.parametrize(("step", "more", "status"), [
    ("ask", {"trap": "3"}, 409), ("reveal", {}, 409), ("draw_a", {}, 409), ("draw_c", {}, 409),
    ("run", {}, 409), ("run", {"run": "x"}, 409), ("run", {"run": 3}, 400),
    ("exercise", {"trap": "3"}, 409), ("score", {}, 409)])
def test_a_step_that_does_not_come_next_is_refused(opened, step, more, status):
    assert opened.step(step, **more) == status
    assert shown(opened.port, "watch", key=opened.secret)["phase"] == "open"


def test_a_guess_or_a_verdict_of_a_lesson_is_no_answer_to_a_change(opened):
    learner = Learner(opened)
    assert learner.answer("08.1", "more than `4`") == 409
    assert learner.verdict("08.1", "wrong") == 409
    assert learner.send("hint", trap=FAULTY, number=1) == 409


def test_who_answers_too_often_is_refused(opened):
    many = Learner(opened)
    assert [answer(opened, many)[0] for _ in range(122)] == 120 * [200] + 2 * [429]


def test_the_room_draws_one_of_a_form_and_goes_on_after_kill_9_and_leaves_a_report(tmp_path):
    first = Running(tmp_path, "--names", what=("--review", FAULTY))
    _, _, ada = send(first.port, "join", {"code": first.code, "name": "=Ada"})
    assert first.step("ask") == 200
    data = {"trap": FAULTY, "mark": place(FAULTY), "confidence": "80", "consequence": "0"}
    assert send(first.port, "answer", data, ada)[0] == 200
    first.kill()
    room = Running(tmp_path, "--names", port=first.port, what=("--review", FAULTY))
    assert "Continuing the room" in room.output
    assert shown(room.port, "watch", key=room.secret)["answered"] == 1
    assert room.step("close") == 200
    assert room.step("draw_b") == 200
    drawn = shown(room.port, "watch", key=room.secret)["trap"]
    assert CASES[int(drawn) - 1].form == "b"
    assert room.step("close") == room.step("score") == 200
    told = shown(room.port, "events", cookie=ada)
    assert told["room"]["score"]["answers"] == told["mine"]["score"]["answers"] == 1
    assert room.step("rest") == 200
    assert room.process.poll() is None
    written = room.stop()
    folder, = tmp_path.glob("rooms/review_2*")
    assert str(folder / "report.csv") in written
    one, two, everything = csv.DictReader((folder / "report.csv").read_text().splitlines())
    assert (one["change"], one["marked_right"], one["confidence_right"]) == (FAULTY, "1", "80.0")
    assert (two["change"], two["answers"]) == (drawn, "0")
    assert (everything["change"], everything["answers"], everything["marked_right"]) == (
        "all", "1", "1")
    named, = csv.DictReader((folder / "names.csv").read_text().splitlines())
    assert (named["name"], named["mark"], named["marked_right"]) == ("'=Ada", place(FAULTY), "True")
    assert re.fullmatch("[A-Z]{8}", named["participant"]), "two people may have one name"
    page = (folder / "report.html").read_text()
    assert "1 of 1" in page
    assert "Ada" not in page
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.glob("*.*"))


def test_a_change_that_is_another_one_today_is_not_gone_on_with(tmp_path):
    kept = log.Log(tmp_path)
    kept.append({"kind": "begin", "stages": []})
    kept.append(asked(FAULTY) | {"digest": "old"})
    with pytest.raises(RoomError, match=f"its room asked 'change {FAULTY}', which the course"):
        open_room._opened(kept, tmp_path, [], ReviewRoom(CASES), review_server.TITLE, False)
    kept.close()


@pytest.mark.parametrize(("words", "why"), [
    (["8", "--review"], "got a stage and --review, expected one of them"),
    (["--review", "61"], "--review: got '61', expected the number of a change, 1 to 60. See"),
    (["--review", "7", "x"], "--review: got 'x', expected the number of a change")])
def test_a_command_that_is_no_review_gets_one_line(words, why, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "MY_WORK", tmp_path)
    assert cli.main(["room", *words]) == cli.BAD_INPUT
    told = capsys.readouterr().err
    assert why in told
    assert told.count("\n") == 1
