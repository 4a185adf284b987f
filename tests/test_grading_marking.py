"""Similar answers, regrade requests, marking by hand, and Gradescope's zip."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import grading_samples as samples
import pytest
from test_grading_reports import exercise, result

from dlsys import cli
from dlsys.grading import gradescope, shapes
from dlsys.grading.books import marking, overrides, pages, reports, scoring, similar
from dlsys.grading.books.due import Course
from dlsys.grading.books.scoring import Scoring
from dlsys_files import notebook_reader
from tools import solutions

RUN = {"begun": "2026-03-05T09:00:00+00:00", "settings": {"key": "00"}}
ANSWER = '''
def stop(losses: list, patience: int) -> int:
    """Where it stops."""
    best, since = float("inf"), 0
    for epoch, loss in enumerate(losses):  # each epoch
        since += 1
        if loss < best:
            best, since = loss, 0
        if since == patience:
            break
    return epoch
'''
RENAMED = '''
def stop(values, wait):
    lowest, n = float('inf'), 0

    for k, v in enumerate(values):
        n += 1
        if v < lowest:
            lowest, n = v, 0
        if n == wait: break
    return k
'''
OTHER = '''
def stop(losses, patience):
    lows = [min(losses[:k + 1]) for k in range(len(losses))]
    for epoch in range(patience, len(losses)):
        if lows[epoch - patience] == lows[epoch]:
            return epoch
    return len(losses) - 1
'''
CHANGED = ANSWER.replace("return epoch", "return int(epoch)")


def shape(source: str) -> dict:
    return shapes.shape(source, "stop")


def test_what_was_not_found_comes_before_what_passes():
    eve, none = result("eve", "p"), result("none", "t")
    eve["exercises"][0] |= {"status": "missing", "points": 0}
    rows = marking.by_exercise([result("ada", "p"), none, eve, result("bob", "w")])["01.1"]
    assert [row["name"] for row in rows] == ["bob", "eve", "none", "ada"]


def test_a_page_on_which_nothing_was_found_says_how_to_ask_for_another_look():
    eve = result("eve", "pp")
    eve["exercises"][1] |= {"status": "missing", "points": 0, "message": "f is not defined."}
    assert "Regrade 01.2: your reason" in pages.feedback([eve], {"run": RUN})


# ---- similar answers

def test_names_comments_docstring_and_layout_are_left_aside():
    one = shape(ANSWER)

    assert similar.kind_of(one, shape(ANSWER.replace("  # each epoch", ""))) == "exact"
    assert similar.kind_of(one, shape(RENAMED)) == "form"
    assert similar.kind_of(one, shape(CHANGED)) == "near"
    assert similar.kind_of(one, shape(OTHER)) == ""


def test_a_library_is_no_name_of_ones_own():
    one = shape("def stop(x):\n    y = torch.sum(x)\n    return y\n")

    assert one["form"] != shape("def stop(x):\n    y = numpy.sum(x)\n    return y\n")["form"]
    assert one["form"] == shape("def stop(a):\n    b = torch.sum(a)\n    return b\n")["form"]


@pytest.mark.parametrize("source", [
    "def stop(:", "x = 1", "", "def stop(x):\n" + "    x = [x]\n" * 4000, "(" * 5000 + "\n",
    "def stop(x): return \0"], ids=["broken", "no def", "empty", "long", "deep", "null"])
def test_what_cannot_be_read_has_no_shape(source):
    assert shape(source) == {}


def test_answers_that_were_written_apart_are_never_listed():
    """Take the right answers by other routes from three stages, at least 20 for each."""
    for stage in ("01", "08", "13"):
        for id in solutions.answers(stage):
            known = similar.published(id)
            assert len(known) > 3, id
            assert not [(a, b) for k, (a, one) in enumerate(known)
                        for b, other in known[:k] if similar.kind_of(one, other)], id


def alike(name: str, source: str, status: str = "pass") -> dict:
    given = result(name, "ppppp")
    given["exercises"][2] = exercise(2, status, shape=shape(source), answer=source)
    return given


def test_a_list_to_look_at_names_groups_and_the_published_answer():
    worked = solutions.answers("08")["08.4"][1]
    renamed = worked.replace("total", "sums").replace("weights", "w_")
    copied = result("kim", "ppppp")
    copied["exercises"][0] |= {"id": "08.4", "shape": shapes.shape(renamed, "tiled_attention")}
    wrong = shapes.shape(worked.replace("math.sqrt(D)", "math.sqrt(M)"), "tiled_attention")
    mistaken = [result(name, "ppppp") for name in ("max", "moe")]
    for one in mistaken:
        one["exercises"][0] |= {"id": "08.4", "shape": wrong}
    found = similar.alike_answers([alike("ada", ANSWER), alike("bob", RENAMED, "wrong"),
                           alike("eve", OTHER), copied, *mistaken])

    assert [(one.exercise, one.kind, one.who, one.published) for one in found] == [
        ("01.3", "form", ("ada", "bob"), ""), ("08.4", "form", ("kim",), "the worked answer"),
        ("08.4", "near", ("max", "moe"), "the worked answer"),
        ("08.4", "exact", ("max", "moe"), "")]  # both with the same mistake


def variant(number: int) -> str:
    """An answer with a form that no other number below 64 gives."""
    lines = (f"    patience = patience {'+-'[number >> k & 1]} losses[{k}]\n" for k in range(6))
    return f"def stop(losses, patience):\n{''.join(lines)}    return patience\n"


def test_forty_hand_ins_of_one_learner_are_not_compared_with_each_other(monkeypatch):
    compared = []
    monkeypatch.setattr(shapes, "likeness", lambda a, b: compared.append((a, b)) or 0.0)
    monkeypatch.setattr(similar, "published", lambda _: ())
    many = [alike("mal", variant(number)) for number in range(40)]

    assert similar.alike_answers([*many, alike("ada", variant(40))]) == []
    assert len({one["exercises"][2]["shape"]["form"] for one in many}) == 40
    assert len(compared) == 40  # each only with ada's


def test_answers_of_quite_another_length_are_told_apart_at_a_glance(monkeypatch):
    monkeypatch.setattr(shapes, "likeness", lambda *_: 1 / 0)
    more = "".join(f"    losses[{k}] = [losses, {k}]\n" for k in range(40))
    long = shape(variant(1).replace("    return", f"{more}    return"))
    assert similar.kind_of(shape(variant(2)), long) == ""


def test_peoples_names_are_for_the_instructor_alone(tmp_path):
    results = [alike("ada", ANSWER), alike("bob", RENAMED)]
    grades = {"run": RUN, "results": results}

    assert "Answers that are alike" in pages.overview(grades)
    assert "bob" not in pages.feedback(results[:1], grades)
    assert "lowest" not in pages.feedback(results[1:], grades)  # nobody's code is on a page
    reports.write_all(grades, tmp_path)
    assert (tmp_path / "similar.csv").stat().st_mode & 0o777 == 0o600


# ---- regrade requests, and the instructor's own comments

def test_a_text_cell_asks_for_another_look():
    cells = [{"cell_type": "markdown", "source": "**Regrade 1.4:** my loop is right.\nThanks"},
             {"cell_type": "code", "source": "# Regrade 01.2: not here"},
             {"cell_type": "markdown", "source": ["Regrade 01.3: first\n", "regrade 01.3: last"]}]
    book = {"nbformat": 4, "cells": cells, "metadata": {"dlsys": {"stage": 1}}}

    found = notebook_reader.parse(json.dumps(book).encode())
    assert found.requests == {"01.4": "my loop is right.", "01.3": "last"}


@pytest.mark.parametrize(("line", "said"), [
    ("## Regrade 1.4\nmy loop", {"01.4": "my loop"}), ("**regrade 1.4** - my loop",
                                                      {"01.4": "my loop"}),
    ("Regrade exercise 01.4: my loop", {"01.4": "my loop"}), ("Regrade 01.4 my loop",
                                                              {"01.4": "my loop"}),
    ("Regrade: all of it, please", {"": "all of it, please"}),
    ("I do not want to regrade 01.4: my loop", {}), ("Regrade policy", {})])
def test_a_request_is_read_as_people_write_it(line, said):
    """The grader once silently ignored two of three forms."""
    cells = [{"cell_type": "markdown", "source": line}, samples.code("check('01.4', f)")]
    assert notebook_reader.parse(samples.notebook(cells)).requests == said


def asking() -> dict:
    given = result("bob", "ppwpp")
    given["exercises"][2]["request"] = "<b>my ratio</b> is of norms"
    return given


def test_a_request_is_seen_and_answered_by_a_comment_of_ones_own(tmp_path):
    (tmp_path / "comments.csv").write_text("name,comment\nnorms,You divide squares of norms.\n")
    (tmp_path / "overrides.csv").write_text(
        "learner,exercise,points,comment\nbob,01.3,2,@norms Half right.\nbob,01.1,,\n")
    rows = overrides.read(tmp_path)
    assert len(rows) == 1  # a row without points or comment says nothing
    (one,) = scoring.scored([asking()], rows, Scoring())
    grades = {"run": RUN, "results": [one]}

    page = " ".join(pages.feedback([one], grades).split())
    assert "You asked for another look: &lt;b&gt;my ratio&lt;/b&gt; is of norms" in page
    assert "By hand, 2 instead of 0: You divide squares of norms. Half right." in page
    assert "No answer yet." in pages.feedback([asking()], grades)
    assert "Asked for another look" in pages.overview(grades)
    pages.write_all(grades, tmp_path)
    mine = (tmp_path / "marking/01.3.html").read_text()
    assert "<code>@norms</code> You divide squares of norms." in mine
    assert "(1 times here)" in mine
    assert "<b>my ratio" not in mine


@pytest.mark.parametrize(("comments", "said"), [
    ("name,comment\n", "got the comment @norms, expected one of none"),
    ("name,comment\nsign,The sign.\n", "expected one of @sign"),
    ("name,comment\nnorms,a\nnorms,b\n", "row 3: got a second comment called norms"),
    ("name,comment\nno rms,a\n", "row 2: got 'no rms,a'"), ("a,b\n", "expected name,comment")])
def test_a_comment_that_is_not_there_is_named(tmp_path, comments, said):
    (tmp_path / "comments.csv").write_text(comments)
    (tmp_path / "overrides.csv").write_text(
        "learner,exercise,points,comment\nbob,01.3,2,see @norms\n")
    with pytest.raises(overrides.BadOverride, match=said):
        overrides.read(tmp_path)


def test_one_exercise_of_the_class_is_on_one_page(tmp_path):
    results = [alike("ada", ANSWER), asking(), alike("eve", "<script>", "wrong")]
    grades = {"run": RUN, "results": results}
    pages.write_all(grades, tmp_path)
    text = (tmp_path / "marking/01.3.html").read_text()

    assert text.index("<h2>bob</h2>") < text.index("<h2>eve</h2>") < text.index("<h2>ada</h2>")
    assert "<code>eve,01.3,,</code>" in text
    assert "&lt;script&gt;" in text
    assert "<script>" not in text
    assert [p.name for p in sorted((tmp_path / "marking").iterdir())] == [
        "01.1.html", "01.2.html", "01.3.html", "01.4.html", "01.5.html", "overrides.csv"]
    given = (tmp_path / "marking/overrides.csv").read_text("utf-8-sig").splitlines()
    assert len(given) == 16
    (tmp_path / "overrides.csv").write_bytes((tmp_path / "marking/overrides.csv").read_bytes())
    assert overrides.read(tmp_path) == []  # empty rows change nothing


def test_pages_of_exercises_that_are_not_asked_for_any_more_go(tmp_path):
    pages.write_all({"run": RUN, "results": [result("ada", "ppppp")]}, tmp_path)
    rules = Scoring(course=Course(asked={1: ("01.2",)}))
    pages.write_all({"run": RUN, "results": scoring.scored([result("ada", "ppppp")], [], rules)},
                    tmp_path)
    assert [p.name for p in (tmp_path / "marking").glob("*.html")] == ["01.2.html"]


def test_two_people_of_one_name_have_rows_of_their_own():
    ada, other = result("ada", "p", "1", "canvas"), result("ada", "p", "2", "canvas")
    other["name"] = "ada_2_99_x.ipynb"
    assert [*marking.callings([ada, other]).values()] == ["ada.ipynb", "ada_2_99_x.ipynb"]
    assert [*marking.callings([ada, result("bob", "p")]).values()] == ["ada", "bob"]


# ---- Gradescope

@pytest.fixture
def autograder(tmp_path):
    """Gradescope's folders with the zip of 01.1 and 01.4 in them, set up by setup.sh itself.

    A few programs replace the machine's and record how they were called.
    """
    wheel = tmp_path / "dlsys_helpers-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x", "")
    assert cli.main(["autograder", "1", "--exercises", "1.1,1.4", "--wheel", str(wheel),
                     "--out", str(tmp_path / "a.zip")]) == 0
    base, programs = tmp_path / "auto grader", tmp_path / "bin"
    for folder in ("source", "submission", "results"):
        (base / folder).mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.extractall(base / "source")
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert modes["setup.sh"] == modes["run_autograder"] == 0o755
    programs.mkdir()
    python = f"exec {shlex.quote(sys.executable)} \"$@\"\n"
    fake = ('#!/bin/bash\necho "$0 $@" >> ' + shlex.quote(str(tmp_path / "log")) + "\n"
            'if [ "$3" = venv ]; then mkdir -p "${@: -1}/bin"; cp ' + shlex.quote(
                str(programs / "real")) + ' "${@: -1}/bin/python"; fi\n')
    for name, text in (("real", f"#!/bin/bash\n{python}"), ("python3", fake), ("apt-get", fake)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{programs}:/usr/bin:/bin"}
    subprocess.run(["bash", str(base / "source/setup.sh")], env=env, check=True)
    (base / "source/run_autograder").rename(base / "run_autograder")
    (base / "run_autograder").chmod(0o755)
    return base, (tmp_path / "log").read_text(), env


def test_setup_installs_what_the_stage_and_the_grader_need(autograder):
    _, log, _ = autograder
    installs = [line for line in log.splitlines() if " uv pip install " in line]

    assert len(installs) == 2
    assert {"torch", "numpy", "jinja2", "distributed", "cryptography"} <= set(installs[0].split())
    assert installs[1].endswith("dlsys_helpers-1.0-py3-none-any.whl")
    assert "--no-deps" in installs[1]


def grade_in(autograder, data: bytes, name: str = "work.ipynb") -> dict:
    base, _, env = autograder
    (base / "submission" / name).write_bytes(data)
    done = subprocess.run([str(base / "run_autograder")], env=env, capture_output=True, text=True,
                          timeout=300, cwd="/")
    assert done.returncode == 0, done.stderr
    return json.loads((base / "results/results.json").read_text())


def test_gradescope_gets_points_and_a_line_for_each_exercise_asked_for(autograder):
    found = grade_in(autograder, samples.worksheet(
        e4="def dead_units(h):\n    return int((h[0] == 0).sum())"))

    assert found["score"] == 3  # 01.1 has three points; 01.4, wrong, has three as well
    assert [(one["name"][:5], one["score"], one["max_score"], one["status"])
            for one in found["tests"]] == [("01.1 ", 3, 3, "passed"), ("01.4 ", 0, 3, "failed")]
    assert "count" in found["tests"][1]["output"]
    assert found["stdout_visibility"] == "hidden"


@pytest.mark.parametrize(("data", "said"), [
    (b"%PDF-1.7", "is a PDF, not a notebook"),
    (json.dumps({"nbformat": 4, "cells": [{"cell_type": "code", "source": "1"}], "metadata": {
        "dlsys": {"stage": 1, "view": "lesson"}}}).encode(), "Hand in 01_activations.ipynb, the")])
def test_gradescope_says_what_to_hand_in(autograder, data, said):
    found = grade_in(autograder, data)

    assert (found["score"], found["tests"]) == (0, [])
    assert said in found["output"]


def test_an_autograder_that_stops_says_so_and_writes_results(tmp_path, capsys):
    (tmp_path / "submission").mkdir()
    assert gradescope.main([str(tmp_path)]) == 0

    found = json.loads((tmp_path / "results/results.json").read_text())
    assert found["output"].startswith("The autograder itself stopped (FileNotFoundError)")
    assert "FileNotFoundError" in capsys.readouterr().err


def test_another_stage_has_no_points_at_gradescope():
    found = gradescope.autograder_results([result("ada", "ppppp")], 8)
    assert (found["score"], found["output"]) == (
        0, "ada.ipynb is for stage 1, but stage 8 was asked for.")


def test_a_zip_that_is_there_is_left_alone(tmp_path, capsys):
    wheel = tmp_path / "dlsys_helpers-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x", "")
    out = Path(tmp_path / "a.zip")
    out.write_text("mine")
    assert cli.main(["autograder", "1", "--wheel", str(wheel), "--out", str(out)]) == 2
    assert out.read_text() == "mine"
    assert "cannot be written (File exists)" in capsys.readouterr().err
