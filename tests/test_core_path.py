"""The core path alone: a short lesson and worksheet, their check, and adding the rest later."""

import json

import pytest
from test_cli import FAKE_CHECKS

from dlsys import cli, reading_time, worksheets
from dlsys_helpers import catalog, paths
from dlsys_helpers.stages import STAGES

# Like the real checks, treat a stub as not written yet.
CHECKS = FAKE_CHECKS.replace("    value = fn()\n", """    try:
        value = fn()
    except NotImplementedError:
        return types.SimpleNamespace(status="todo", message="", misconception="", trap="",
                                     law="", case="")
""")
TRAPS = [{"id": f"01.{k}", "title": f"Situation {k}", "fault": f"fault {k}", "symptom": "s",
          "function": f"fn{k}", "points": k, "difficulty": 1, "minutes": 5 * k,
          "core": k in (1, 3), "hints": ["look again"]} for k in (1, 2, 3, 4)]
WORDS = " ".join(["word"] * 5 * reading_time.PRACTISED.words)  # five minutes


def cell(kind, id, source, **facts):
    more = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return {"cell_type": kind, "id": id, "source": source, "metadata": {"dlsys": facts}, **more}


def book(view, cells, version="v1"):
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": cells, "metadata": {
        "dlsys": {"stage": 1, "view": view, "version": version, "rests_on": {"code": "a"}},
        "kernelspec": {"name": "python3", "language": "python"}}})


def worksheet(version="v1"):
    cells = [cell("markdown", "stage-top-1", "[the lesson](../notebooks/01_activations.ipynb)",
                  role="setup")]
    for k in range(1, 5):
        trap, stub = f"01.{k}", f'raise NotImplementedError("exercise 01.{k} is not written yet")'
        cells += [
            cell("markdown", f"01-{k}-task-1", f"## 01.{k}", role="exercise", trap=trap),
            cell("code", f"01-{k}-exercise-1", f"def fn{k}():\n    {stub}", role="exercise",
                 trap=trap),
            cell("code", f"01-{k}-check-1",
                 f'from dlsys_helpers import check\n\ncheck("01.{k}", fn{k})', role="check",
                 trap=trap)]
    return book("exercise", cells, version)


def lesson():
    cells = [cell("markdown", "stage-top-1", "# 1", role="setup")]
    for k in range(1, 5):
        aside = {} if k in (1, 3) else {"aside": True}
        cells += [cell("markdown", f"01-{k}-situation-1", f"## Trap {k}\n\n{WORDS}",
                       role="situation", trap=f"01.{k}", **aside),
                  cell("markdown", f"01-{k}-exercise-1", "Run `dlsys start 1` in a terminal for a "
                       "worksheet of your own.", role="exercise", trap=f"01.{k}", **aside)]
    return book("lesson", cells)


@pytest.fixture(autouse=True)
def course(tmp_path, monkeypatch):
    for name in ("exercises", "notebooks", "my-work", "fake", "catalog"):
        (tmp_path / name).mkdir()
    (tmp_path / "exercises/01_activations.ipynb").write_text(worksheet())
    (tmp_path / "notebooks/01_activations.ipynb").write_text(lesson())
    (tmp_path / "fake/sitecustomize.py").write_text(CHECKS)
    monkeypatch.setattr(catalog, "FOLDER", tmp_path / "catalog")
    catalog.path(1).write_text(json.dumps(TRAPS))
    for name, folder in (("MY_WORK", "my-work"), ("EXERCISES", "exercises"),
                         ("NOTEBOOKS", "notebooks")):
        monkeypatch.setattr(paths, name, tmp_path / folder)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("DLSYS_PROGRESS", raising=False)
    monkeypatch.chdir(tmp_path)


def mine(name="01_activations.ipynb"):
    return paths.MY_WORK / name


def traps(path):
    """The traps whose cells a notebook contains."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return sorted({one["metadata"]["dlsys"]["trap"] for one in cells
                   if "trap" in one["metadata"]["dlsys"]})


def write(path, **bodies):
    """Write answers into a worksheet, by the name of their function."""
    made = json.loads(path.read_text("utf-8"))
    for one in made["cells"]:
        for name, body in bodies.items():
            if one["source"].startswith(f"def {name}("):
                one["source"] = f"def {name}():\n    {body}"
    path.write_text(json.dumps(made))


def run_command(capsys, *command):
    """Exit status and output of a command."""
    status = cli.main([*command])
    told = capsys.readouterr()
    return status, told.out + told.err


def test_a_stage_takes_what_its_cells_and_exercises_take():
    core, whole = reading_time.times(STAGES[0])
    assert (core, whole) == (reading_time.Times(15, 15, 20), reading_time.Times(25, 30, 50))


def test_start_says_both_times(capsys):
    said = run_command(capsys, "start", "1")[1]
    assert ("The core path takes about 15 minutes to read, 20 for the exercises; the whole stage "
            "25 to 30 minutes to read, 50 for the exercises.") in said


def test_a_short_start_holds_the_core_path_and_no_more(capsys):
    status, said = run_command(capsys, "start", "1", "--core")
    assert status == 0
    assert traps(mine()) == traps(mine("01_lesson.ipynb")) == ["01.1", "01.3"]
    assert "(01_lesson.ipynb)" in mine().read_text()
    assert "(01_activations.ipynb#cell-id=01-3-exercise-1)" in mine("01_lesson.ipynb").read_text()
    assert "about 15 minutes to read, 20 for the exercises. To add the rest to your answers: " \
           "dlsys start 1 --update" in said


def test_a_short_copy_beside_a_whole_one(capsys):
    run_command(capsys, "start", "1")
    assert "dlsys start 1 --copy --core" in run_command(capsys, "start", "1", "--core")[1]
    run_command(capsys, "start", "1", "--core", "--copy")
    assert traps(mine()) == ["01.1", "01.2", "01.3", "01.4"]
    assert traps(mine("01_activations_2.ipynb")) == ["01.1", "01.3"]
    assert "(01_lesson_2.ipynb)" in mine("01_activations_2.ipynb").read_text()


def test_the_rest_comes_later_and_no_answer_is_lost(capsys):
    run_command(capsys, "start", "1", "--core")
    write(mine(), fn3="return 1")
    before = mine().read_bytes()

    assert "dlsys start 1 --update" in run_command(capsys, "start", "1")[1]
    assert mine().read_bytes() == before
    said = run_command(capsys, "start", "1", "--update")[1]

    assert "01.3: your answer is carried over." in said
    assert traps(mine()) == traps(mine("01_lesson.ipynb")) == ["01.1", "01.2", "01.3", "01.4"]
    assert "def fn3():\\n    return 1" in mine().read_text()
    kept = sorted((paths.MY_WORK / "kept").iterdir())
    assert [path.name[:6] for path in kept] == ["01_act", "01_les"]
    assert kept[0].read_bytes() == before
    assert "up to date" in run_command(capsys, "start", "1", "--update")[1]


def test_a_short_worksheet_is_renewed_as_a_short_one(capsys):
    run_command(capsys, "start", "1", "--core")
    write(mine(), fn1="return 1")
    assert "up to date" in run_command(capsys, "start", "1", "--core", "--update")[1]
    (paths.EXERCISES / "01_activations.ipynb").write_text(worksheet("v2"))
    assert "dlsys start 1 --update --core" in worksheets.read(mine()).notes[0]
    words = run_command(capsys, "start", "1", "--core", "--update")[1]
    assert "01.1: your answer is carried" in words
    assert traps(mine()) == traps(mine("01_lesson.ipynb")) == ["01.1", "01.3"]
    assert worksheets.read(mine()).notes == []


def test_no_exercise_is_taken_away(capsys):
    run_command(capsys, "start", "1")
    before = mine().read_bytes()
    status, said = run_command(capsys, "start", "1", "--core", "--update")
    assert status == 2
    assert "has more than the core path" in said
    assert mine().read_bytes() == before


# ---- dlsys check

def rows(said):
    """The first word of each row of the table."""
    return [line.split()[0] for line in said.splitlines() if line.lstrip().startswith("01.")]


def test_a_short_worksheet_is_checked_for_what_it_asks(capsys):
    run_command(capsys, "start", "1", "--core")
    write(mine(), fn1="return 1", fn3="return 1")
    status, said = run_command(capsys, "check", "1")
    assert status == 0
    assert rows(said) == ["01.1", "01.3"]
    assert "4 of 4 points." in said
    assert "Note:" not in said


def test_the_core_path_comes_first_and_the_rest_is_one_line(capsys):
    run_command(capsys, "start", "1")
    write(mine(), fn1="return 1", fn2="return 1")
    status, said = run_command(capsys, "check", "1")
    assert status == 1
    assert rows(said) == ["01.1", "01.3"]
    assert "Fault 1" in said
    assert "Off the core path: 1 passed, 1 not written yet. See them: dlsys check 1 --all" in said
    assert "3 of 10 points, on the core path 1 of 4." in said
    assert rows(run_command(capsys, "check", "1", "--all")[1]) == ["01.1", "01.3", "01.2", "01.4"]


def test_what_went_wrong_off_the_core_path_is_not_folded(capsys):
    run_command(capsys, "start", "1")
    write(mine(), fn4="return 7")
    said = run_command(capsys, "check", "1")[1]
    assert rows(said) == ["01.1", "01.3", "01.4"]
    assert "Off the core path: 1 not written yet." in said


@pytest.mark.parametrize("asked", ["01.2", "1.2"])
def test_one_exercise_is_checked_alone(capsys, asked):
    run_command(capsys, "start", "1")
    write(mine(), fn2="return 1")
    status, said = run_command(capsys, "check", asked)
    assert status == 0
    assert rows(said) == ["01.2"]
    assert "2 of 2 points." in said


def test_one_that_is_left_out_or_unknown_is_told(capsys):
    run_command(capsys, "start", "1", "--core")
    status, said = run_command(capsys, "check", "01.2")
    assert status == 2
    assert "holds only the core path" in said
    assert "dlsys start 1 --update" in said
    status, said = run_command(capsys, "check", "1.9")
    assert status == 2
    assert "known ids 01.1, 01.2, 01.3, 01.4" in said
