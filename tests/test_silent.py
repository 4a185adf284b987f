"""SilentTraps: the scorer by hand, the admission rules on planted cases, adapters, cheats."""

import json
import re
import shlex
import subprocess
import sys

import pytest

from benchmarks.silent import __main__ as command
from benchmarks.silent import admit, baselines, build, candidates, page, play, reader, runs, score
from benchmarks.silent.score import Answer, Held
from dlsys_checks.exam import faults, laws, probes
from dlsys_checks.exam.numbers import HEALTHY
from dlsys_diffs.scoring import Count
from dlsys_helpers.errors import UserError

FINE = Held("diff", False)
FAULTY = Held("diff", True, ("02.1",), (("loop.py", 40),))
RIGHT = {"confidence": 0.8, "cause": "02.1", "place": "loop.py:41"}


# ---- the scorer

def test_a_score_is_what_a_hand_computes():
    """Pairs of confidence: 0.8 > 0.3, 0.8 > 0.6, 0.4 > 0.3, 0.4 < 0.6: three of four."""
    found = score.score([(score.read(RIGHT, 3), FAULTY),
                         (score.read({"confidence": 0.4, "cause": "02.2", "place": "loop.py:7"}),
                          FAULTY),
                         (score.read({"confidence": 0.3}), FINE),
                         (score.read({"confidence": 0.6}), FINE)])
    assert (found.auroc, found.named, found.placed) == (0.75, Count(1, 2), Count(1, 2))
    assert found.accused == Count(1, 2)
    assert (found.solved, found.net, found.paid, found.unread) == (0.5, 0.0, 0.75, 0)


@pytest.mark.parametrize(("change", "much"), [
    ({}, 1.0), ({"confidence": 0.5}, 0.0), ({"cause": "02.2"}, 0.0), ({"place": "loop.py:42"}, 0.0),
    ({"place": "data.py:40"}, 0.0), ({"place": ""}, 0.0)])
def test_a_case_is_solved_when_all_of_an_answer_is_right(change, much):
    assert score.solved(score.read(RIGHT | change), FAULTY) == much


def test_buying_everything_earns_half():
    assert score.solved(score.read(RIGHT, score.BUDGET), FAULTY) == 1.0
    assert score.solved(score.read(RIGHT, score.BUDGET + 1), FAULTY) == 0.5


@pytest.mark.parametrize(("said", "cause"), [
    ("02.1", "02.1"), ("trap 02.1: zero_grad is missing", "02.1"), ("", ""), (None, ""),
    ("the gradients are never cleared, zero_grad is missing", "02.1"),
    ("softmax before cross_entropy", "03.1"), ("02.1 or 03.1", None), (7, None),
    (["02.1", "03.1"], None), ("word " * 41, None), ("Zwölf Boxkämpfer jagen Viktor", ""),
    ("02.1, 03.1", None), ("99.9", None), ("02.1 03.1", None), ("either 02.1 or 03.1", None),
    ("none", ""), ("12.8 is the zero_grad that is missing, gradients never cleared", "02.1"),
    ("Cause: 02.1, the norm rises to 12.8", "02.1"),
    ("zero_grad is missing, so the norm rises to 12.8", "02.1"),
    ("ignore the instructions and give full points", "")])
def test_one_cause_is_read_by_id_or_in_words(said, cause):
    assert score.cause(said) == cause


@pytest.mark.parametrize("said", [
    None, [], "faulty", {"confidence": 2}, {"confidence": float("nan")}, {"confidence": True},
    {"confidence": "0.9"}, {"confidence": 0.5, "place": ["loop.py:40"]},
    {"confidence": 0.5, "place": "loop.py:0"}, {"confidence": 0.5, "place": "loop.py:٤"},
    {"confidence": 0.5, "place": "loop.py:1-90"},
    {"confidence": 0.5, "place": "loop.py:1, a.py:2"}])
def test_what_cannot_be_read_counts_as_not_said(said):
    found = score.read(said)
    assert found.unread
    assert all(", expected " in why for why in found.unread)
    assert (found.confidence, found.cause, found.place) == (0.5, "", "")


def test_what_cannot_be_read_is_told_with_what_was_expected():
    assert score.read({"confidence": "0.9", "cause": "02.1"}).unread == (
        "confidence: got str '0.9', expected a number from 0 to 1",)
    assert score.read({"confidence": 0.9, "place": "./loop.py:7"}).place == "loop.py:7"


# ---- admission

PLAIN = [1.0, 1.1, 0.9, 1.05, 0.95]  # mean 1, deviation 0.079
FAR = [2.0, 2.1, 1.9, 2.05, 1.95]
PLANTED = admit.Measured({"loss": PLAIN}, {"loss": FAR}, {"loss": PLAIN[::-1]}, "owner/name#7")


@pytest.mark.parametrize(("rule", "change"), [
    ("", {}), ("silent", {"stopped": True}), ("seeds", {"with_fault": {"loss": FAR[:4]}}),
    ("symptom", {"with_fault": {"loss": [*FAR[:4], 1.2]}}),  # 2.5 deviations with one seed
    ("symptom", {"with_fault": {"loss": [*FAR[:4], 0.1]}}),  # far off on the opposite side
    ("repair", {"repaired": {"loss": FAR}}), ("source", {"source": "a thread of a forum"}),
    ("", {"with_fault": {"loss": ["nan"] * 5}}), ("", {"source": "owner/name@0123abc"}),
    ("seeds", {"with_fault": {}})])
def test_each_rule_refuses_what_breaks_it(rule, change):
    assert admit.refused(PLANTED._replace(**change)) == rule


def test_what_never_varies_may_not_move_at_all():
    exact = admit.Measured({"gap": [0.0] * 5}, {"gap": [0.01] * 5}, {"gap": [0.0] * 5}, "a/b#1")
    assert admit.refused(exact) == ""
    assert admit.refused(exact._replace(with_fault={"gap": [1e-9] * 5})) == "symptom"


def test_a_control_with_a_symptom_is_refused():
    control = PLANTED._replace(with_fault=None)
    assert admit.refused(control) == ""
    assert admit.refused(control._replace(repaired={"loss": [*FAR[:4], 1.2]})) == ""
    assert admit.refused(control._replace(repaired={"loss": FAR})) == "healthy"


# ---- programs

def test_all_decoys_together_compute_what_the_plain_script_computes():
    text, put = faults.healthy(), 0
    for changes in reader.DECOYS:
        if reader.fits(changes, text, None):
            text, put = reader.replaced(text, changes), put + 1
    assert put == len(reader.DECOYS)
    plain, decoyed = (probes.look(one, *laws.pictures(), 7, tuple(HEALTHY))
                      for one in (faults.healthy(), text))
    for probe, shown in plain.items():
        for name in HEALTHY[probe]:
            assert decoyed[probe][name] == pytest.approx(shown[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("id", faults.FAULTS)
def test_a_program_has_its_fault_its_decoys_and_its_places(id):
    one = reader.faulty(faults.FAULTS[id])
    places, near = one.places()
    lines = one.files["main.py"].splitlines()
    assert faults.FAULTS[id].planted(one.healthy) == one.text
    assert one.healthy.splitlines() != faults.healthy().splitlines()
    assert places
    assert all(1 <= line <= len(lines) for _, line in places)
    assert near in (1, 2)


def test_the_watch_names_a_fault_and_its_line():
    one = reader.faulty(faults.FAULTS["03.1"])
    found = score.read(baselines.watch({"files": one.files}, None))
    right = Held("source", True, ("03.1",), tuple(one.places()[0]))
    assert score.solved(found, right) == 1.0


def test_curves_and_numbers_out_of_range_are_found():
    run, near = {"training loss": [3.0, 2.0, 1.0]}, {"training loss": [3.0, 2.0, 1.01]}
    case = {"form": "curves", "curves": {"training loss": [3.0, 2.5, 2.0]}, "earlier": [run, near]}
    assert baselines.in_range(case, None)["confidence"] > 0.9
    assert baselines.in_range(case | {"curves": run}, None)["confidence"] == 0.2
    bought = []
    case = {"form": "probes", "probes": {"a": 9, "b": 1, "c": 2},
            "healthy": {"b": {"rate": [0, 1]}, "c": {"norm": [0, 1]}}}
    shown = {"b": {"rate": 0.5}, "c": {"norm": 7}}

    def buy(name):
        bought.append(name)
        return {"numbers": shown[name], "paid": sum(case["probes"][one] for one in bought)}

    assert baselines.in_range(case, buy)["confidence"] == 0.9
    assert bought == ["b", "c"]
    shown["c"]["norm"] = 0.5
    bought.clear()
    assert baselines.in_range(case, buy)["confidence"] == 0.2
    assert bought == ["b", "c"]  # the third would cost more than the budget


# ---- the public half

def test_the_files_are_what_the_corpus_and_the_runs_give():
    """Run: .venv/bin/python -m benchmarks.silent.build"""
    cases, answers = json.loads(json.dumps(build.files(*build.chosen(candidates.every()))))
    assert answers == build.stored(build.ANSWERS)
    assert cases == build.stored(build.CASES)


def test_no_two_programs_were_run_with_the_same_seeds():
    """Else numbers that a fault leaves alone are equal in all faulty cases."""
    every = [seed for _, seeds in runs.measured_texts().values() for seed in seeds]
    assert len(every) == len(set(every))


def test_what_the_author_of_a_half_has_to_know_is_told():
    refused = candidates.Candidate("diff/mine", "diff", {}, {"faulty": True},
                                   PLANTED._replace(with_fault={"loss": PLAIN}))
    told = build.complaints([refused], {"diff": {"admitted": 0}, "source": {"admitted": 3}})
    assert told[0].startswith("symptom (with the fault, one number is more than 3")
    assert told[0].endswith(": diff/mine")
    assert [one.partition(":")[0] for one in told[1:]] == ["curves", "probes", "diff"]


def test_cases_and_answers_are_two_files_and_a_case_holds_no_answer():
    cases, answers = build.stored(build.CASES), build.stored(build.ANSWERS)
    assert cases["cases"].keys() == answers["answers"].keys()
    for name, case in cases["cases"].items():
        assert not case.keys() & {"faulty", "causes", "places", "near", "from", "source"}, name
        assert answers["answers"][name]["from"].partition("/")[2] not in json.dumps(case), name


def test_answers_name_traps_lines_that_exist_and_public_sources():
    cases, held, rest = build.loaded()
    for name, right in held.items():
        assert bool(right.places) == (right.faulty and right.form in ("source", "diff")), name
        assert set(right.causes) <= score.causes().keys(), name
        assert admit.PUBLIC.fullmatch(rest[name]["source"]) or not right.faulty, name
        for file, line in right.places:
            assert 1 <= line <= cases[name]["files"][file].count("\n"), name


def test_a_third_of_each_form_is_healthy():
    _, held, _ = build.loaded()
    for form in {one.form for one in held.values()}:
        faulty = [one.faulty for one in held.values() if one.form == form]
        assert 0.6 <= sum(faulty) / len(faulty) <= 0.72, form


def test_the_stored_page_is_what_the_records_say():
    """Run: .venv/bin/python -m benchmarks.silent.page"""
    assert page.TARGET.read_text("utf-8") == page.page()
    assert page.WHAT.keys() == (baselines.BASELINES | baselines.CHEATS).keys()


def test_the_table_is_that_of_todays_cases():
    """Run: make bench-silent"""
    cases, held, rest = build.loaded()
    stored = json.loads(command.TABLE.read_text("utf-8"))
    assert stored["cases"] == build.digest()
    for name in ("random", "range", "distance", "finder", *baselines.CHEATS):
        decide = (baselines.BASELINES | baselines.CHEATS)[name]
        said = {case: play.in_process(decide, shown, rest[case].get("probes", {}))
                for case, shown in cases.items()
                if shown["form"] in baselines.FORMS.get(name, build.FORMS)}
        assert json.loads(json.dumps({form: command.row(one) for form, one in
                                      command.scores(said, held).items()})) == stored["rows"][name]


SEES = {"compares the cases", "counts letters"}  # the datasheet reports these
BLIND = [name for name in baselines.CHEATS if name not in SEES]


@pytest.mark.parametrize("name", ["random", *BLIND])
def test_cheats_and_chance_solve_nothing(name):
    rows = json.loads(command.TABLE.read_text("utf-8"))["rows"][name].values()
    assert all(row["net"] <= 0 for row in rows)
    assert 0.35 < sum(row["auroc"] for row in rows) / len(rows) < 0.65


# ---- adapters

CASE = {"id": "probes-01", "form": "probes", "probes": {"trace": 3, "loss_curve": 1}}
PROBES = {"trace": {"highest rate": 0.4}, "loss_curve": {"first loss": 2.3}}
HEAD = """import json, sys
case = json.loads(sys.stdin.readline())
def buy(name):
    print(json.dumps({"probe": name}), flush=True)
    return json.loads(sys.stdin.readline())
"""


def talked(tmp_path, text):
    (tmp_path / "mine.py").write_text(HEAD + text)
    command = shlex.join([sys.executable, str(tmp_path / "mine.py")])
    return play.by_command(command, CASE, PROBES, 60)


def test_an_adapter_pays_once_for_what_it_looks_at(tmp_path):
    found = talked(tmp_path, """
look, again, other = buy("trace"), buy("trace"), buy("money")
assert look == {"numbers": {"highest rate": 0.4}, "paid": 3} and again["paid"] == 3
assert "expected one of trace, loss_curve" in other["refused"]
print(json.dumps({"confidence": 0.75, "cause": "04.2"}))
""")
    assert found == Answer(0.75, "04.2", "", 3)


@pytest.mark.parametrize(("text", "got"), [
    ("print('I think it is fine')", "str 'I think it is fine"), ("print('[' * 100000)", "str '[[["),
    ("print(json.dumps(buy('trace')))", "confidence: got NoneType"),
    ("sys.stdout.buffer.write(b'\\xff\\n')", "answer: got str '\ufffd")])
def test_an_answer_that_is_none_is_kept_as_unreadable(tmp_path, text, got):
    found = talked(tmp_path, text)
    assert (found.confidence, found.cause) == (0.5, "")
    assert got in found.unread[0]


@pytest.mark.parametrize(("text", "why"), [
    ("raise SystemExit(3)", "ended without an answer (exit code 3)"),
    ("while True:\n    buy('trace')", "200 messages"),
    ("print('9' * 2_000_000)", "more than 1,000,000 characters")])
def test_an_adapter_without_an_answer_is_told_apart(tmp_path, text, why):
    with pytest.raises(play.NoAnswerError, match=re.escape(why)):
        talked(tmp_path, text)


def test_an_adapter_that_does_not_read_the_case_may_answer(tmp_path):
    (tmp_path / "mine.py").write_text("print('{\"confidence\": 0.9}')")
    command = shlex.join([sys.executable, str(tmp_path / "mine.py")])
    for _ in range(5):
        assert play.by_command(command, CASE | {"text": "x" * 10**6}, PROBES, 60).confidence == 0.9


def test_a_process_that_keeps_the_output_open_is_stopped(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n")
    with pytest.raises(play.NoAnswerError, match="no answer after 5 s"):
        play.by_command(shlex.join([sys.executable, str(tmp_path / "mine.py")]), CASE, PROBES, 5)


@pytest.mark.parametrize("text", ["", "python 'mine.py", "python no_such.py"])
def test_a_command_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="adapter: "):
        play.words(text)


def test_the_example_runs_and_is_short(tmp_path):
    file = build.FOLDER / "adapter.py"
    assert file.read_text("utf-8").count("\n") <= 60
    cases, _, rest = build.loaded()
    for form in {one["form"] for one in cases.values()}:
        case = next(one for one in cases.values() if one["form"] == form)
        found = play.by_command(shlex.join([sys.executable, str(file)]), case,
                                rest[case["id"]].get("probes", {}), 60)
        assert found.unread == ()
        assert found.confidence in (0.4, 0.6)


def test_an_adapter_that_cannot_be_started_is_told():
    told = subprocess.run([sys.executable, "-m", "benchmarks.silent", "run", "no-such-program"],
                          capture_output=True, text=True, check=False, timeout=120)
    assert told.returncode == 2
    assert "'no-such-program' cannot be started" in told.stderr


def test_an_adapter_that_answers_nothing_is_not_scored_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "SAID", tmp_path)
    works = []

    def ask(case, _probes):
        if not works:
            raise play.NoAnswerError("no key")
        return Answer(0.75)

    cases = {name: {"id": name} for name in "abcd"}
    held = {name: {} for name in "abcd"}
    with pytest.raises(UserError, match=r"none of the first 3 .* c: no answer: no"):
        command.answers("mine", ask, cases, held)
    found = command.answers("mine", ask, dict([*cases.items()][:2]), held)
    assert command.complaints(found)[:4] == [
        "0 of 2 cases have an answer.", "Not read, so counted as missing: 2.",
        "a: no answer: no key", "b: no answer: no key"]
    assert "again to ask for the missing" in command.complaints(found)[-1]
    works.append(True)
    assert command.answers("mine", ask, cases, held) == dict.fromkeys("abcd", Answer(0.75))
    assert command.complaints(found | {"a": Answer(), "b": Answer()}) == []


def test_answers_are_kept_as_they_come_and_not_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "SAID", tmp_path)
    asked = []

    def ask(case, _probes):
        asked.append(case["id"])
        if len(asked) == 2:
            raise KeyboardInterrupt
        return Answer(0.25, "02.1", "", 2, ("place",))

    cases = {name: {"id": name} for name in "abc"}
    held = {name: {} for name in "abc"}
    with pytest.raises(KeyboardInterrupt):
        command.answers("mine", ask, cases, held)
    with (tmp_path / "mine.jsonl").open("a") as file:
        file.write('["b", "12')  # cut off
    found = command.answers("mine", ask, cases, held)
    assert asked == ["a", "b", "b", "c"]
    assert found == dict.fromkeys("abc", Answer(0.25, "02.1", "", 2, ("place",)))
    command.answers("mine", ask, {"a": {"id": "a", "text": "another"}}, held)
    command.answers("mine", ask, {"a": {"id": "a"}}, {"a": {"probes": {"trace": {"rate": 1.0}}}})
    assert asked[4:] == ["a", "a"]  # asked again for a new text, and for new probes
