"""`dlsys answer` shows an answer only once it is earned; AGENTS.md names only what exists."""

import json
import os
import re
import subprocess
import sys

import pytest

from dlsys import answer, cli
from dlsys_checks import registry
from dlsys_helpers import cards, catalog, paths, progress
from dlsys_helpers.verdicts import Verdict


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MY_WORK", tmp_path)
    monkeypatch.setenv("DLSYS_PROGRESS", str(tmp_path))
    return tmp_path


def test_before_the_pass_nothing_is_shown(capsys):
    progress.record("01.4", "wrong", "")
    assert cli.main(["answer", "1.4"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "01.4 is not solved yet" in err
    for odd in ("99", "7"):
        assert cli.main(["answer", odd]) == 2
        assert f"got '{odd}', expected one such as 01.4" in capsys.readouterr().err


@pytest.mark.parametrize("id", [trap.id for trap in catalog.traps()])
def test_after_the_pass_come_both_answers_and_the_names_of_mistakes(work, id, capsys):
    function, (shipped,) = catalog.trap(id).function, paths.EXERCISES.glob(f"{id[:2]}_*.ipynb")
    book = json.loads(shipped.read_text("utf-8"))
    book["cells"].append({**book["cells"][1], "cell_type": "code", "outputs": [],
                          "source": f"def {function}():\n    return 'my own way'"})
    (work / shipped.name).write_text(json.dumps(book))
    progress.record(id, "pass")
    assert cli.main(["answer", id]) == 0
    mine, worked, mistakes = re.split("Worked answer:|Mistakes that the check knows by name:",
                                      capsys.readouterr().out)
    assert "my own way" in mine
    assert f"def {function}(" in worked or f"class {function}:" in worked
    assert "NotImplementedError" not in worked
    named = {wrong.name for wrong in registry.find(id).wrong_answers}
    assert {line[2:].partition(" (trap")[0] for line in mistakes.split("\n") if line} == named


@pytest.mark.parametrize("here", [True, False])
def test_the_worksheet_of_a_release_is_found(here, work, tmp_path, capsys, monkeypatch):
    """It is in my-work/, or in the folder of a release if my-work/ is empty."""
    assert cli.main(["release", "4", "--out", str(tmp_path / "class")]) == 0
    where = (tmp_path / "class") if here else work
    (tmp_path / "class/04_optimizers.ipynb").rename(where / "04_optimizers.ipynb")
    monkeypatch.chdir(where)
    progress.record("04.5", "pass")
    capsys.readouterr()
    assert cli.main(["answer", "4.5"]) == 0
    mine, worked = capsys.readouterr().out.split("Worked answer:")
    assert "raise NotImplementedError" in mine
    assert "loss <= 4 * best" in worked


@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_reader_who_has_read_enough_breaks_nothing(work, buffered):
    script = "import sys; from dlsys import cli; sys.exit(cli.main())"
    command = [sys.executable, "-c", script, "answer", "04.5"]
    progress.record("04.5", "pass")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONUNBUFFERED": buffered}) as run:
        run.stdout.close()
        assert (run.stderr.read(), run.wait()) == ("", 1)


def test_the_card_names_the_worked_answer_only_where_there_is_one(monkeypatch, tmp_path, capsys):
    for folder, named in [(paths.SOLUTIONS, True), (tmp_path / "none", False)]:
        monkeypatch.setattr(paths, "SOLUTIONS", folder)
        cards.show_verdict(Verdict("pass", "01.4"), catalog.trap("01.4"))
        assert ("dlsys answer 01.4" in capsys.readouterr().out) is named


DOCUMENTED = 'def f(x):\n    """What\n\n    it does."""\n    return x'


@pytest.mark.parametrize(("code", "left"), [
    (DOCUMENTED, "def f(x):\n    return x"),
    (f"import math\n{DOCUMENTED}", "import math\ndef f(x):\n    return x"),
    *((code, code) for code in ("def f(x): 'a'; return x", "def f(x):\n    'alone'",
                                "def f(x):\n    print(x)\n    return x", "%time\n" + DOCUMENTED,
                                DOCUMENTED.replace("f(x)", "g(x)"))),
])
def test_the_docstring_is_left_out_and_no_code_is(code, left):
    assert answer.without_docstring(code, "f") == left


def test_answers_stand_side_by_side_where_the_terminal_is_wide_enough(monkeypatch):
    answers = [("Yours:", "a = 1\nb\x1b[31m"), ("Worked answer:", "a = 2")]
    monkeypatch.setenv("COLUMNS", "25")
    assert answer.side_by_side(answers) == (
        "Yours:  |  Worked answer:\n        |\na = 1   |  a = 2\nb [31m  |")
    monkeypatch.setenv("COLUMNS", "24")
    assert answer.side_by_side(answers) == "Yours:\n\na = 1\nb [31m\n\nWorked answer:\n\na = 2"


def test_without_the_solutions_one_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    progress.record("01.4", "pass")
    assert cli.main(["answer", "01.4"]) == 2
    assert "has no answer here" in capsys.readouterr().err


def test_the_page_for_assistants_names_folders_and_fields_that_exist():
    text = (paths.ROOT / "AGENTS.md").read_text("utf-8")
    for folder in ("solutions", "lessons", "src/dlsys_checks"):
        assert f"`{folder}/`" in text
        assert (paths.ROOT / folder).is_dir()
    fields = cli.exercise_data(catalog.trap("01.1"), Verdict("todo", "01.1"))
    assert {"law", "read", "hint"} <= set(fields)
    assert all(f"`{field}`" in text for field in ("law", "read", "hint"))
