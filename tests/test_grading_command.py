"""The instructor's command names every wrong input and loses nothing that it has graded."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from grading_samples import journal_results, open_grader, settings, worksheet

from dlsys import cli
from dlsys.grading import cluster, cohort, command
from dlsys.grading.books import given, scoring, submissions
from dlsys.grading.books.gradebooks import Filled
from dlsys.grading.books.journal import Journal
from dlsys.grading.books.run_folder import GRADES, JOURNAL, RunError
from dlsys.grading.options import GradeOptions
from dlsys.grading.settings import Settings
from dlsys.grading.walls import isolation
from dlsys_helpers.paths import ROOT


@pytest.fixture
def one(tmp_path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ada.ipynb").write_bytes(worksheet())
    return tmp_path / "in"


@pytest.fixture
def graded(one, tmp_path) -> Path:
    """The folder of a run whose one submission is graded, without a sandbox."""
    out = tmp_path / "out"
    journal = Journal.begin(out, settings(seconds=5))
    found = submissions.find([one]).submissions
    cohort.grade_all(found, journal, lambda jobs: (
        (job, {**cohort.refused("no"), "stage": 1}) for job in jobs))
    journal.close()
    return out


def refusal_line(capsys, *args: object) -> str:
    """The only line on standard error of a command that could not begin."""
    assert cli.main(["grade", *map(str, args)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.strip().splitlines()
    return line


@pytest.mark.parametrize(("option", "value", "expected"), [
    ("--workers", "0", "got 0, expected a whole number of 1 or more"),
    ("--workers", "x", "got x, expected a whole number"),
    ("--seconds", "0", "got 0, expected a number above 0"),
    ("--memory", "nan", "got nan, expected a number above 0")])
def test_a_number_that_makes_no_sense_is_named(capsys, one, option, value, expected):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["grade", str(one), option, value])
    assert stopped.value.code == 2
    assert f"{option}: {expected}" in capsys.readouterr().err


def test_without_the_graders_packages_it_says_what_to_install(capsys, one, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec",
                        lambda name: None if name == "distributed" else found(name))

    line = refusal_line(capsys, one)

    assert "got no distributed." in line
    assert "pip install -e '.[grade]'" in line


def test_the_graders_packages_are_those_of_the_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extra = project["optional-dependencies"]["grade"]
    assert [line.partition(">=")[0] for line in extra] == list(command.NEEDS)


def test_an_output_that_is_no_folder_is_named(capsys, one, tmp_path):
    (tmp_path / "file").write_text("mine")

    line = refusal_line(capsys, one, "--out", tmp_path / "file")

    assert "file" in line
    assert "--out" in line
    assert (tmp_path / "file").read_text() == "mine"


def test_a_new_run_takes_nothing_from_its_folder(capsys, one, tmp_path):
    """A `grades.json` that came with an unpacked hand-in once gave points for a part."""
    out = tmp_path / "out"
    out.mkdir()
    (out / GRADES).write_text('{"scoring": {"partial": true}}')
    (out / "overrides.csv").write_text("no table")

    assert not scoring.rules(GradeOptions((one,), out), {}, {}).partial
    assert "expected a folder without them for a new run" in refusal_line(capsys, one, "--out", out)


def test_a_gradebook_is_looked_at_before_the_work(capsys, one, tmp_path):
    line = refusal_line(capsys, one, "--out", tmp_path / "out", "--canvas", tmp_path / "no.csv",
                        "Stage 1")

    assert "no.csv: No such file or directory" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", [("--seconds", 7), ("--memory", 3), ("--stage", 2)])
def test_a_run_goes_on_with_what_it_was_begun_with(capsys, one, graded, option):
    line = refusal_line(capsys, one, "--out", graded, "--resume", *option)

    assert f"begun with a different {option[0]}" in line


def test_another_key_or_sandbox_is_no_way_to_go_on(capsys, one, graded, tmp_path):
    other = Journal.begin(tmp_path / "b", Settings("11" * 16, settings().limits))
    other.finish([], {})
    other.close()

    assert "a different --key" in refusal_line(capsys, one, "--out", graded, "--resume", "--key",
                                   tmp_path / "b" / GRADES)
    assert "a different --sandbox" in refusal_line(capsys, one, "--out", graded, "--resume",
                                               "--sandbox", "none")
    assert "does not have the key of a run" in refusal_line(
        capsys, one, "--out", graded, "--resume", "--key", tmp_path / "gone.json")


def test_a_learner_is_graded_again_on_request(capsys, one, graded):
    assert "add --resume" in refusal_line(capsys, one, "--out", graded, "--regrade", "learner")
    line = refusal_line(capsys, one, "--out", graded, "--resume", "--regrade", "nobody")
    assert "--regrade: got nobody, expected a learner of this run, such as" in line
    before = journal_results(graded)
    [name] = {result["learner"]["name"] for result in before}

    with open_grader(settings()):  # the command also needs a sandbox
        cli.main(["grade", str(one), "--out", str(graded), "--resume", "--regrade", name])
    assert len(journal_results(graded)) == len(before) + 1


def test_the_same_options_again_go_on(one, graded, capsys):
    code = cli.main(["grade", str(one), "--out", str(graded), "--resume", "--seconds", "5"])

    assert code == 1  # its one submission is refused
    assert "0 of 1 graded" in capsys.readouterr().out


def test_files_that_are_no_notebooks_are_named(one, graded, capsys):
    for k in range(7):
        (one / f"notes{k}.txt").write_text("x")

    cli.main(["grade", str(one), "--out", str(graded), "--resume"])

    assert ("No notebooks, and left out: 7 files (notes0.txt, notes1.txt, notes2.txt, notes3.txt, "
            "notes4.txt, ...).") in capsys.readouterr().out


def test_who_is_not_in_the_gradebook_is_named(capsys):
    people = [{"learner": {"name": name}} for name in "abcdefgh"]

    def line_without(absent):
        return given.line_about("canvas.csv", people, Filled("", absent, [], []))
    assert line_without(people[1:3]) == "canvas.csv: 6 of 8 learners filled in. Not in it: b, c."
    assert line_without(people).endswith("Not in it: a, b, c, d, e, ....")


def test_who_handed_in_twice_is_named(one, tmp_path, capsys):
    (one / "bob").mkdir()
    for k in (1, 2):
        (one / "bob" / f"0{k}_activations.ipynb").write_bytes(worksheet())
    (one / "ada.ipynb").rename(one / "ada_01_activations.ipynb")
    journal = Journal.begin(tmp_path / "out", settings())
    found = submissions.find([one]).submissions
    cohort.grade_all(found, journal, lambda jobs: (
        (job, {**cohort.refused("x"), "status": "graded", "stage": 1, "wall": "none",
               "cpu_seconds": 0.1, "peak_mib": 1, "judge_peak_mib": 1, "seconds": 0.1})
        for job in jobs))
    journal.close()

    cli.main(["grade", str(one), "--out", str(tmp_path / "out"), "--resume"])

    assert ("Several hand-ins for one stage, of which the best counts: bob."
            in capsys.readouterr().out)


@pytest.mark.parametrize("error", [cluster.FutureCancelledError("k", "gone"),
                                   cluster.CancelledError(), cluster.CommClosedError()])
def test_a_scheduler_that_goes_away_is_named(error):
    class Future:
        def result(self):
            raise error

    with pytest.raises(RunError, match="the scheduler is gone"):
        cluster.result_of(Future())


@pytest.mark.parametrize(("address", "warned"), [
    ("tcp://host:8786", True), ("host:8786", True), ("tls://host:8786", False)])
def test_a_scheduler_without_tls_is_warned_of(capsys, address, warned):
    command.warn_without_tls(address)
    said = capsys.readouterr().err
    assert ("can run code on its workers" in said) == warned
    assert said.count("\n") == warned


@pytest.mark.parametrize(("user", "setting", "told"), [
    (0, None, True), (0, "sudo sysctl ...", False), (1000, None, False)])
def test_root_is_told_where_it_is_not_needed(monkeypatch, user, setting, told):
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr(isolation, "forbidding_setting", lambda: setting)
    assert command.root_is_not_needed() == told


def test_a_ctrl_c_that_a_destructor_swallows_still_counts():
    before = signal.getsignal(signal.SIGINT)
    with command.ctrl_c() as stop_if_pressed:
        stop_if_pressed()
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            stop_if_pressed()
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_the_terminal_ends_all_in_one_line(tmp_path, one):
    for k in range(30):
        (one / f"slow{k}.ipynb").write_bytes(worksheet("import time; time.sleep(1)"))
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "dlsys.cli", "grade", str(one), "--out", str(out),
         "--workers", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True)
    journal = out / JOURNAL
    try:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all processes
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()

    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.strip().splitlines()[-1] == (
        f"Stopped; what is graded is kept. Go on with: dlsys grade ... --out {out} --resume")


def test_a_wheel_without_your_model_is_named_before_any_work(capsys, one, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: (
        None if name.startswith("dlsys_model.") else found(name)))
    line = refusal_line(capsys, one, "--model", "--out", tmp_path / "out")
    assert "dlsys release --model" in line
    assert not (tmp_path / "out").exists()
