"""The exam of a class: its instructor's desk, its wheel, a cheat who has the wheel, the grader."""

import asyncio
import json
import select
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from grading_samples import code, settings, without_sandbox
from grading_samples import entry as row_of
from test_exam import a_phrase, right_answer

from dlsys import cli, exam, exam_desk, exam_served, exam_sheet, review, start_page
from dlsys.class_wheel import belongs
from dlsys.grading.books import exam_record, pages, reports, strays, summary
from dlsys.grading.books.submitted_notebook import Refused, parse
from dlsys.grading.judge import Judge
from dlsys.grading.walls.sandbox import SandboxRefused, Zygote
from dlsys.room.server import OWN_FILES
from dlsys_checks.exam import complaints, draws, faults, laws, said, sheet
from dlsys_checks.exam.ledger import Happened
from dlsys_helpers import paths
from dlsys_helpers.paths import ROOT

KEY = bytes(range(32))


@pytest.fixture
def folder(tmp_path):
    """The folder of a class's exam, with the key of this file."""
    out = tmp_path / "desk"
    out.mkdir()
    (out / "exam.key").write_text(KEY.hex())
    return out


@contextmanager
def served(folder, over=False):
    """The address of a desk that answers in its own thread."""
    ready, stop = threading.Event(), []

    async def main():
        server, port = exam_served.listen(
            exam_served.Counter(exam_desk.of_class(folder, over)), "127.0.0.1", 0)
        ended = asyncio.Event()
        stop.extend([asyncio.get_running_loop(), ended, f"http://127.0.0.1:{port}/"])
        ready.set()
        await ended.wait()
        server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(60), "the desk did not begin to answer"
    try:
        yield stop[2]
    finally:
        stop[0].call_soon_threadsafe(stop[1].set)
        thread.join(60)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder for one learner."""
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "mine")
    monkeypatch.setenv("DLSYS_PROGRESS", str(tmp_path / "mine"))
    return tmp_path / "mine"


def post(address, path, body):
    asked = urllib.request.Request(f"{address}{path}", body)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read() or b"{}")


def test_a_learner_sits_at_the_desk_of_the_class(folder, mine, capsys):
    with served(folder) as address:
        assert cli.main(["exam", "a", "--at", address, "--name", "Ada"]) == 0
        number, ticket = sheet.opened((mine / "80_exam_a.ipynb").read_text())
        sitting = exam.sit(number, ticket, address)
        sitting.complaints()
        sitting.case(1).look("clip")
        sitting.case(1).name(a_phrase(draws.case(KEY, number, ticket, 1).name))
        sitting.debrief()
        assert cli.main(["exam", "b"]) == 0  # at the same desk
        for name in ("Ada", "Second"):
            assert cli.main(["exam", "a", "--name", name]) == 0
    out = capsys.readouterr().out
    assert "The desk has this sheet under the name Ada." in out
    assert "The desk keeps the name with which this sheet was begun, Ada. If" in out
    assert "Case 5. " in out
    assert "Paid 2, budget 10: clip." in out
    assert "That is it." in out
    assert "debrief: the exam is not over" in out
    assert sheet.opened((mine / "85_exam_b.ipynb").read_text()) == (85, ticket)
    assert exam_desk.of_class(folder).begun_by(80, ticket) == "Ada"
    assert not (mine / ".exam-key").exists()
    with served(folder, over=True) as address:
        for _ in range(2):
            exam.sit(number, ticket, address).debrief()
        exam.sit(number, ticket, address).case(1).look("units")
    out = capsys.readouterr().out
    assert "what was planted" in out
    missed = [case.name for case in draws.cases(KEY, number, ticket)[1:] if case.fault]
    later = review.now() + timedelta(days=review.INTERVALS[0])
    assert sorted(item.trap.id for item in review.due(later)) == sorted(missed)
    assert f"come back until {later.date()}: dlsys review" in out
    assert "The exam is over" in out


def test_a_phone_can_test_the_network_at_the_root_of_the_desk(folder):
    with served(folder) as address, urllib.request.urlopen(address, timeout=60) as page:
        assert page.read().decode() == (
            f"This is the desk of an exam. Begin with: dlsys exam a --at {address}\n")
        assert page.headers["Content-Type"].startswith("text/plain")


def test_the_desk_says_at_once_that_it_starts(folder, capsys, monkeypatch):
    monkeypatch.setattr(exam_served, "run", lambda args: print("serving") or 0)
    assert cli.main(["exam", "serve", "--out", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("Starting the desk")


def test_progress_does_not_count_what_only_the_desk_knows(folder, mine, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    with served(folder) as address:
        cli.main(["exam", "a", "--at", address])
    capsys.readouterr()
    assert cli.main(["progress"]) == 0
    out = capsys.readouterr().out
    assert "at your instructor's desk" in out
    assert "0/50" not in out
    assert "<small>Exam · at your instructor's desk</small>" in start_page.map_html()


def test_an_unused_sheet_of_ones_own_gives_way_to_the_desk(folder, mine, capsys):
    path = mine / "80_exam_a.ipynb"
    cli.main(["exam", "a"])
    with served(folder) as address:
        assert cli.main(["exam", "a", "--at", address]) == 0
        number, ticket = sheet.opened(path.read_text())
        assert exam_desk.of_class(folder).begun_by(number, ticket) == ""
        assert cli.main(["exam", "a", "--name", "Dee"]) == 0
        assert exam_desk.of_class(folder).begun_by(number, ticket) == "Dee"
        path.unlink()
        cli.main(["exam", "a"])
        exam.sit(80).case(1).look("clip")
        mine_ = path.read_text()
        capsys.readouterr()
        assert cli.main(["exam", "a", "--at", address]) == 2
    assert "you have begun" in capsys.readouterr().err
    assert path.read_text() == mine_


def test_a_desk_that_is_gone_is_told_and_nothing_is_lost(capsys):
    exam.sit(80, "BCDFGHJK", "http://127.0.0.1:9/").case(1).look("clip")
    assert "does not answer" in capsys.readouterr().out
    exam.sit(80, "BCDFGHJK", "http://127.0.0.1:9/").case(1).name("softmax before the loss")
    assert "Nothing was recorded" in capsys.readouterr().out


def test_a_sheet_that_was_not_begun_here_gets_no_answer(folder):
    with served(folder) as address:
        asked = {"number": 80, "ticket": "BCDFGHJK", "place": 1, "what": "look", "text": "clip"}
        assert post(address, "ask", json.dumps(asked).encode()) == (409, {
            "error": "exam: this sheet was not begun at this desk. Begin one with: dlsys exam a "
                     "--at ADDRESS"})


@pytest.mark.parametrize("body", [
    b"", b"[]", b"{", b"[" * 9000, b'{"number": []}', b'{"number": true}', b'{"number": 80.0}',
    b'{"number": 23}', b'{"ticket": {}, "number": {}, "place": 1}', b"\xff\xfe",
    json.dumps({"number": 80, "ticket": ["x"], "place": 1}).encode()])
@pytest.mark.parametrize("path", ["begin", "ask"])
def test_what_is_no_question_is_refused_and_the_desk_goes_on(folder, body, path):
    with served(folder) as address:
        status, told = post(address, path, body)
        assert status in (400, 409)
        assert told["error"].startswith("exam: ")
        assert post(address, "begin", b'{"number": 80}')[0] == 200


def test_a_large_request_is_not_read(folder):
    with served(folder) as address:
        try:
            status, _ = post(address, "ask", b"x" * 100_000)
        except OSError:
            status = 400  # the desk closes the connection
        assert status == 400
        assert post(address, "begin", b'{"number": 80}')[0] == 200


def test_each_ticket_has_cases_of_its_own(folder):
    """So buying up a second sheet reveals nothing about the first."""
    with served(folder) as address:
        tickets = [post(address, "begin", b'{"number": 80}')[1]["ticket"] for _ in range(20)]
    sheets = {tuple(case.source for case in draws.cases(KEY, 80, one)) for one in tickets}
    assert len(sheets) == len(set(tickets)) == 20


def test_a_look_that_cannot_be_noted_is_not_shown(folder, monkeypatch):
    desk = exam_desk.of_class(folder)
    desk.note({"sheet": 80, "ticket": "BCDFGHJK", "case": 0, "begun": ""})
    monkeypatch.setattr(exam_desk.Store, "append", lambda *_: None)  # as on a full disk
    with pytest.raises(exam_desk.ExamError, match="Nothing was recorded"):
        desk.ask(80, "BCDFGHJK", 1, "read", "data")


def test_a_desk_sees_what_another_process_added(folder):
    one, other = exam_desk.of_class(folder), exam_desk.of_class(folder)
    for desk, word in ((one, "clip"), (other, "units"), (one, "kept")):
        desk.note({"sheet": 80, "ticket": "BCDFGHJK", "case": 1, "paid": word})
    for desk in (one, other, exam_desk.of_class(folder)):
        assert desk.happened(80, "BCDFGHJK", 1).paid == ("clip", "units", "kept")


def test_key_and_record_are_private_and_a_folder_without_them_is_told(folder, tmp_path, capsys):
    desk = exam_desk.of_class(tmp_path / "new", make=True)
    desk.note({"sheet": 80, "ticket": "BCDFGHJK", "case": 0, "begun": ""})
    for path in (tmp_path / "new").iterdir():
        if path.suffix != ".lock":
            assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    assert cli.main(["grade", str(folder), "--exam", str(tmp_path / "none")]) == 2
    assert "no exam here (exam.key is missing)" in capsys.readouterr().err


# ---- a class's wheel, and a cheat with it

@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The packages' files that a class's wheel contains."""
    out = tmp_path_factory.mktemp("wheel")
    for path in (ROOT / "src").rglob("*"):
        name = path.relative_to(ROOT / "src").as_posix()
        if path.is_file() and "__pycache__" not in name and belongs(name, {1, 3}, False):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, out / name)
    return out


def test_a_class_wheel_has_nothing_that_a_case_is_made_of(wheel):
    there = {path.name for path in (wheel / "dlsys_checks/exam").iterdir()}
    assert there == {"__init__.py", "sheet.py", "ledger.py", "numbers.py"}
    assert {path.name for path in (wheel / "dlsys").glob("exam*.py")} == {
        "exam.py", "exam_checks.py", "exam_sheet.py"}
    text = "\n".join(path.read_text("utf-8", "replace") for path in wheel.rglob("*.py"))
    for group in complaints.GROUPS.values():
        assert not any(one in text for one in group.texts)
    assert not any(row["see"] in text for row in said.rows() if len(row["see"]) > 25)
    assert "class Memory:" not in text


CHEAT = """
import contextlib, io, itertools, json, sys
from dlsys import cli, exam
from dlsys_checks.exam import sheet
from dlsys_helpers import paths
found = io.StringIO()
tried = [["exam", "a"], ["exam", "a", "--debrief"], ["answer", "80.1"], ["check", "exam-a"],
         ["progress"], ["exam", "serve"], ["exam", "a", "--at", sys.argv[1], "--name", "Mallory"],
         ["exam", "a", "--debrief"], ["answer", "80.1"], ["check", "exam-a"], ["progress"]]
with contextlib.redirect_stdout(found), contextlib.redirect_stderr(found):
    for command in tried:
        with contextlib.suppress(SystemExit):
            cli.main(command)
    number, ticket = sheet.opened((paths.MY_WORK / "80_exam_a.ipynb").read_text())
    sitting = exam.sit(number, ticket, sys.argv[1])
    sitting.debrief()
    for what, text in (("key", ""), ("debrief", ""), ("peek", ""), ("_drawn", ""), ("read", "key"),
                       ("name", "whatever is planted here; this answer is right")):
        for place in range(1, 6):
            sitting.show(place, what, text)
    exam.Exam(number, "BBBBBBBB", sys.argv[1]).debrief()
for name in ("faults", "draws", "laws", "said", "complaints", "debrief"):
    try:
        __import__(f"dlsys_checks.exam.{name}")
        print(f"the wheel has {name}", file=found)
    except ModuleNotFoundError:
        pass
print(json.dumps({"ticket": ticket, "said": found.getvalue()}))
"""


def test_a_cheat_with_the_class_wheel_reads_no_answer(folder, wheel, tmp_path):
    """The cheat tries all commands and questions in the wheel, before and after beginning."""
    with served(folder) as address:
        got = subprocess.run(
            [sys.executable, "-c", CHEAT, address], capture_output=True, text=True, check=False,
            timeout=300, cwd=tmp_path, env={"PYTHONPATH": str(wheel), "PATH": "/usr/bin:/bin",
                                            "DLSYS_WORK": str(tmp_path / "cheat"),
                                            "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"})
    assert got.returncode == 0, got.stderr
    told = json.loads(got.stdout.splitlines()[-1])
    assert "the wheel has" not in told["said"]
    assert "has no exam of its own" in told["said"]
    assert "Traceback" not in told["said"]
    names = [case.fault.name for case in draws.cases(KEY, 80, told["ticket"]) if case.fault]
    assert not [name for name in names if name in told["said"]]
    record = exam_desk.of_class(folder)
    for place in range(1, 6):
        assert record.happened(80, told["ticket"], place).names == ()


# ---- the grader

def handed_in(ticket, answers, number=80):
    """A sheet with answers, as a learner hands it in."""
    cells = [cell["source"] for cell in
             exam_sheet.notebook(number, ticket, "http://desk/")["cells"]
             if cell["cell_type"] == "code"]
    for place, mine in answers.items():
        stub = next(k for k, text in enumerate(cells) if text.startswith(f"def case_{place}("))
        cells[stub] = f"def case_{place}():\n    return {mine!r}"
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": list(map(code, cells)),
                       "metadata": {"dlsys": {"stage": number, "view": "exercise"}}}).encode()


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A sheet with case 1 solved, case 2 named at the second try and overpaid, 3 not named."""
    out = tmp_path_factory.mktemp("desk")
    (out / "exam.key").write_text(KEY.hex())
    desk, ticket = exam_desk.of_class(out), "BCDFGHJK"
    desk.note({"sheet": 80, "ticket": ticket, "case": 0, "begun": "Ada <b>"})
    answers = {}
    for place in (1, 2):
        answers[place], look, part = right_answer(place)
        wanted = [look] + [f"read {part}"] * bool(part)
        if place == 2:
            wanted = [*wanted, *(f"read {one}" for one in faults.PARTS)]
            desk.note({"sheet": 80, "ticket": ticket, "case": 2, "said": "x", "heard": "99.9"})
        for word in wanted:
            desk.note({"sheet": 80, "ticket": ticket, "case": place, "paid": word})
        name = draws.case(KEY, 80, ticket, place).name
        desk.note({"sheet": 80, "ticket": ticket, "case": place, "said": "x", "heard": name})
    zygote = Zygote(settings(seconds=60, gib=1.0).limits)
    try:
        judge = Judge(bytes(16), zygote, str(out))
    except SandboxRefused as error:
        without_sandbox(error)
    try:
        yield judge.grade(parse(handed_in(ticket, answers))), judge
    finally:
        judge.close()


def test_the_grader_takes_names_and_prices_from_the_record(graded):
    result, _ = graded
    assert result["possible"] == 50
    points = [sum(row_of(result, f"80.{6 * place + k + 1}")["points"] for k in range(6))
              for place in range(5)]
    assert points == [10, 4, 0, 0, 0]
    assert "begun as 'Ada <b>'" in " ".join(result["remarks"])
    record = result["sheet"]
    assert (record["ticket"], record["begun"]) == ("BCDFGHJK", "Ada <b>")
    assert [(one["right"], len(one["names"])) for one in record["cases"]] == [
        (1, 1), (2, 2), (0, 0), (0, 0), (0, 0)]
    assert record["cases"][0]["paid"] <= record["cases"][0]["budget"] == 10
    assert record["cases"][1]["paid"] > 10
    assert record["cases"][1]["names"][0] == {"said": "x", "understood": "99.9"}
    assert row_of(result, "80.15")["message"] == (
        "Case 3: you named nothing. Nothing else of a case counts without the right name.")
    assert row_of(result, "80.15")["status"] == "todo"


def test_after_a_wrong_name_feedback_says_what_was_named():
    case = draws.case(KEY, 80, "BCDFGHJK", 1)
    wrong = next(id for id in faults.FAULTS if id != case.name)
    row = laws.row("80.1", case, Happened((), (wrong,)))
    handed_in = row.judge([], [])
    assert handed_in.status == "wrong"
    assert f"you named {faults.FAULTS[wrong].name}, and that is not it" in handed_in.message
    assert "You have a second try" in row.verdict(dict, (0,)).message


@pytest.mark.parametrize(("people", "reason"), [
    ((("Ada", "Ada"),), ""), ((("", "Cy"),), ""), ((("ada l", "Lovelace, Ada"),), ""),
    ((("Ada", "Cy"),), "begun under another name"),
    ((("", "Ada"), ("", "Cy")), "more than one learner handed in"),
    ((("Di", "Ada"), ("Di", "Cy")), "more than one learner handed in")])
def test_a_sheet_of_somebody_else_is_to_settle_and_names_nobody(people, reason):
    results = [{"status": "graded", "stage": 80, "points": 9, "sheet": {
        "ticket": "BCDFGHJK", "begun": begun}, "learner": {
            "name": name, "id": "", "source": "", "raw": name}} for begun, name in people]
    found = [one.get("stray", {}) for one in strays.noted(results, (), ())]
    assert [reason in one.get("reason", "") and bool(one) is bool(reason) for one in found] == [
        True] * len(people)
    assert not any("Ada" in one["reason"] + one["you"] for one in found if one)
    assert all(begun in one["step"] for (begun, _), one in zip(people, found, strict=True) if one)


def a_copy_of(ticket, name, begun="Ada Ada"):
    return {"status": "graded", "stage": 80, "points": 9,
            "sheet": {"ticket": ticket, "begun": begun},
            "learner": {"name": name, "id": "", "source": "", "raw": name}}


def test_the_owner_of_a_copied_sheet_is_told_and_not_asked():
    owner, copier = [one["stray"] for one in strays.noted(
        [a_copy_of("BCDFGHJK", "Ada Ada"), a_copy_of("BCDFGHJK", "Eve")], (), ())]
    assert "somebody else handed in a copy" in owner["reason"]
    assert "need not do anything" in owner["you"]
    assert "gave to somebody else" in copier["reason"]
    assert "Tell your instructor" in copier["you"]
    assert not any("Ada" in one["reason"] + one["you"] for one in (owner, copier))


def test_a_sheet_that_nobody_handed_in_and_a_name_that_began_twice_are_listed(folder):
    desk = exam_desk.of_class(folder)
    for number, ticket, name in ((80, "BCDFGHJK", "Ada Ada"), (80, "KKKKKKKK", "ada ada"),
                                 (80, "XPQXGHWM", ""), (85, "BCDFGHJK", "Ada Ada")):
        desk.note({"sheet": number, "ticket": ticket, "case": 0, "begun": name})
    found = exam_record.unsettled(str(folder), [a_copy_of("BCDFGHJK", "Ada Ada")])
    assert [(one["name"], one["tickets"]) for one in found] == [
        ("ada ada", "KKKKKKKK"), ("no name", "XPQXGHWM"), ("Ada Ada", "BCDFGHJK, KKKKKKKK")]
    assert "never handed in" in found[0]["reason"]
    assert "2 sheets of one form" in found[2]["reason"]
    assert exam_record.unsettled(str(folder), []) == exam_record.unsettled("", []) == []


def test_the_reports_of_an_exam_show_prices_and_names_by_case(graded, tmp_path, capsys):
    result = {"name": "a.ipynb", "learner": {"name": "Ada", "id": "", "source": "", "raw": ""},
              "handed_in": "", **graded[0]}
    grades = {"run": {"begun": "2027-01-15T10:00:00+00:00", "settings": {"key": "00"}},
              "results": [result], "sheets": [
                  {"name": "Eve", "tickets": "XPQXGHWM", "reason": "was begun", "step": "Ask."}]}
    page = pages.overview(grades)
    price = result["sheet"]["cases"][1]["paid"]
    assert f"4 of 10 points: paid {price}, budget 10; named at the second try" in page
    assert "XPQXGHWM" in page
    assert '<th scope="col" class="n">exam A</th>' in page
    assert "Stage 80" not in page
    assert page.count("</b> |") == 4, "a line between the marks of two cases"
    assert "case 3: the name" in page
    assert f"paid {price}, budget 10; named at the second try" in pages.feedback([result], grades)
    head, first, second, *_ = exam_record.table([result])
    row = dict(zip(head[:14], second[:14], strict=True))
    assert (row["case"], row["paid"], row["named at try"], row["first name"]) == (2, price, 2, "x")
    assert len(head) == len(first)
    summary.show(grades, tmp_path, [])
    told = capsys.readouterr().out
    assert "exam A" in told
    assert "10 + 4 + 0 + 0 + 0" in told
    assert "Exam sheets to settle, see the overview: Eve (XPQXGHWM)." in told


def test_a_sheet_does_no_harm_in_the_sandbox_and_accuses_nobody(graded):
    """Its first cell asked for the checks there, and the report named its learner for that."""
    result, _ = graded
    named = {"name": "a.ipynb", "learner": {"name": "a", "id": "", "source": "", "raw": ""}}
    assert result["cells"] == []
    assert reports.asked_for_checks([{**named, **result}]) == []
    assert reports.nbgrader([{**named, **result}])[1][0] == "80_exam_a"
    page = pages.feedback([{**named, **result}], {"run": {"begun": "2027-01-15T10:00:00+00:00"}})
    assert "Case 1: the evidence" in page
    assert "Ada &lt;b&gt;" not in page


def test_a_sheet_of_another_desk_or_of_an_earlier_exam_is_refused(graded):
    _, judge = graded
    with pytest.raises(Refused, match="was not begun at this desk"):
        judge.grade(parse(handed_in("KKKKKKKK", {})))
    old = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"dlsys": {"stage": 23}},
           "cells": [code('check("23.1", case_1)')]}
    with pytest.raises(Refused, match=r"is a sheet of version 1\.1 or earlier.*Hand it in where"):
        parse(json.dumps(old).encode())
    alone = Judge.__new__(Judge)
    alone._exam = ""
    with pytest.raises(Refused, match="--exam FOLDER"):
        alone._sheet(parse(handed_in("BCDFGHJK", {})), 0)


def test_the_wheel_of_a_class_keeps_the_form_of_a_sheet():
    assert belongs("dlsys_checks/exam/sheet.py", {1}, False)
    assert not belongs("dlsys_checks/exam/draws.py", {1, 3}, True)
    assert sheet.stage(80).stem == "80_exam_a"
    assert Path(exam.__file__).name == "exam.py"


# ---- attacks on the desk of a class

def begin_at(address, name="Eve"):
    return post(address, "begin", json.dumps({"number": 80, "name": name}).encode())


def question(ticket, what, text="", number=80, place=1):
    return json.dumps({"number": number, "ticket": ticket, "place": place, "what": what,
                       "text": text}).encode()


def test_what_the_desk_sells_it_can_read_again(folder):
    """80.0 once opened sheet 80, and its record lost what was bought and named."""
    with served(folder) as address:
        ticket = begin_at(address)[1]["ticket"]
        for number in (80, 80.0, True, "80", 1e400, None, [80]):
            for place in (1, 1.0, True):
                odd = (type(number), type(place)) != (int, int)
                status, told = post(address, "ask", question(
                    ticket, "look", "clip", number, place))
                assert (status != 200) is odd, (number, place, told)
    with pytest.raises(exam_desk.ExamError, match="whole number"):
        exam_desk.of_class(folder).ask(80.0, ticket, 1, "look", "clip")
    with pytest.raises(exam_desk.ExamError, match="cannot be recorded"):
        exam_desk.of_class(folder).note({"sheet": 80.0, "ticket": ticket, "case": 1, "paid": "x"})
    assert exam_desk.of_class(folder).happened(80, ticket, 1).paid == ("clip",)
    assert not list(folder.glob("*damaged*"))


def test_one_address_does_not_take_all_sheets(folder, monkeypatch):
    monkeypatch.setattr(exam_served, "MOST_SHEETS", 20)
    counter = exam_served.Counter(exam_desk.of_class(folder))
    for address, share in (("192.0.2.1", 10), ("192.0.2.2", 5), ("192.0.2.3", 3)):
        for _ in range(share):
            counter.begin({"number": 80}, address)
        with pytest.raises(exam_desk.ExamError, match="your address, which can begin no more"):
            counter.begin({"number": 80}, address)
    assert counter.begin({"number": 80}, "192.0.2.4")


def test_who_asks_a_hundred_things_waits_for_them_alone(folder):
    """A different address gets the next answer, though a hundred questions came before."""
    counter = exam_served.Counter(exam_desk.of_class(folder))

    async def main():
        turns, order = exam_served.Turns(), []
        greedy = [asyncio.create_task(turns.run("192.0.2.1", lambda n=n: order.append(n)))
                  for n in range(100)]
        await asyncio.sleep(0)
        await turns.run("192.0.2.2", lambda: order.append("honest"))
        await asyncio.gather(*greedy)
        assert order.index("honest") <= 2
        assert [one for one in order if one != "honest"] == list(range(100))
        with pytest.raises(exam_desk.ExamError):  # an error keeps no later question waiting
            await turns.run("192.0.2.1", lambda: counter.ask({"place": 1}))
        assert await turns.run("192.0.2.2", lambda: 1) == 1

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.skipif(sys.platform != "linux", reason="other addresses of this machine")
def test_silent_connections_leave_the_desk_to_others(folder, monkeypatch):
    listen = exam_served.listen
    monkeypatch.setattr(exam_served, "listen", lambda *how: listen(*how, files=80))
    with served(folder) as address, ExitStack() as opened:
        port = int(address.rpartition(":")[2].strip("/"))
        silent = [opened.enter_context(socket.create_connection(
            ("127.0.0.1", port), source_address=("127.0.0.2", 0))) for _ in range(60)]
        assert begin_at(address)[0] == 200
        hung_up = sum(bool(select.select([link], [], [], 0)[0]) for link in silent)
    assert hung_up >= 60 - (80 - OWN_FILES)


def test_what_a_desk_says_is_harmless_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(exam, "sent", lambda *_, **__: {"text": "Paid\n\x1b[2J\x1b]0;x\a\u202e"})
    exam.sit(80, "BCDFGHJK", "http://desk/").case(1).look("clip")
    assert capsys.readouterr().out.split() == ["Paid", "[2J", "]0;x"]
