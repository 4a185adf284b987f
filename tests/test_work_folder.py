"""The learner's copies of lesson and worksheet: their content and where their links lead."""

import json
import os
import re
import subprocess
import sys

import pytest

from dlsys import doctor, work_folder
from dlsys_helpers import catalog, paths

LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")
WITHIN = re.compile(r"\]\(#((?:[^()]|\([^()]*\))+)\)")


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "work")
    return tmp_path / "work"


def cells(path) -> list[dict]:
    return json.loads(path.read_text("utf-8"))["cells"]


def targets(path) -> set[str]:
    """The links to other files in a notebook's text."""
    return {target for cell in cells(path) if cell["cell_type"] == "markdown"
            for target in LINK.findall("".join(cell["source"]))}


@pytest.mark.parametrize("number", [stage.number for stage in catalog.written()])
def test_links_of_the_copies_lead_to_a_cell_of_their_sibling(work, number):
    started = work_folder.start(number)
    assert targets(started.path) == {started.lesson.name}
    found = [target.partition("#cell-id=") for target in targets(started.lesson)]
    own = [id for name, _, id in found if name == started.lesson.name]
    first = catalog.traps(number)[0].id.replace(".", "-")
    assert own == [f"{first}-guess-1"], "the way to the first guess"
    led = [id for name, _, id in found if name == started.path.name]
    assert len(led) == len(catalog.traps(number)) == len(found) - len(own)
    assert {*led} <= {cell["id"] for cell in cells(started.path)}
    assert {*own} <= {cell["id"] for cell in cells(started.lesson)}


@pytest.mark.parametrize("number", [stage.number for stage in catalog.written()])
def test_links_of_a_short_copy_lead_to_what_it_holds(work, number):
    started = work_folder.start(number, core=True)
    on_path = {trap.id for trap in catalog.traps(number) if trap.core}
    told = dict.fromkeys(cell["metadata"].get("dlsys", {}).get("trap")
                         for cell in cells(started.lesson))  # in the order of the lesson
    core = [id.replace(".", "-") for id in told if id in on_path]
    assert len(core) == len(on_path)
    assert targets(started.path) == {started.lesson.name}
    assert targets(started.lesson) == {
        f"{started.lesson.name}#cell-id={core[0]}-guess-1",
        *(f"{started.path.name}#cell-id={id}-exercise-1" for id in core)}
    texts = ["".join(cell["source"]) for cell in cells(started.lesson)
             if cell["cell_type"] == "markdown"]
    headings = {text.partition("\n")[0].lstrip("# ").replace(" ", "-") for text in texts
                if text.startswith("#")}
    assert {target for text in texts for target in WITHIN.findall(text)} <= headings


@pytest.mark.parametrize("number", [0, *(stage.number for stage in catalog.written())])
def test_no_link_of_a_shipped_lesson_leads_to_a_file_of_the_course(number):
    (path,) = paths.NOTEBOOKS.glob(f"{number:02d}_*.ipynb")
    assert targets(path) == set()


def test_answers_are_gone_and_the_rest_is_there(work):
    started = work_folder.start(1)
    shipped = cells(paths.NOTEBOOKS / "01_activations.ipynb")
    for cell, before in zip(cells(started.lesson), shipped, strict=True):
        if before["metadata"]["dlsys"]["role"] in {"look", "why", "repair", "more", "folklore"}:
            assert cell.get("outputs", []) == []
            assert "nbval-check-output" not in cell["metadata"]["tags"]
        else:
            assert cell.get("outputs") == before.get("outputs")
    assert any(cell.get("outputs") for cell in cells(started.lesson))


@pytest.mark.parametrize("number", [stage.number for stage in catalog.written()])
def test_nothing_that_answers_a_question_is_open_below_it(work, number):
    """As JupyterLab folds: up to the next heading that is no deeper than the folded one."""
    under, shown = 9, set()
    for cell in cells(work_folder.start(number).lesson):
        source = "".join(cell["source"])
        level = len(source) - len(source.lstrip("#")) if cell["cell_type"] == "markdown" else 0
        if 0 < level <= under:
            folded = cell["metadata"].get("jp-MarkdownHeadingCollapsed", False)
            under = level if folded else 9
            shown.add(source.lstrip("# ").partition(":")[0])
        elif under == 9:
            shown.add(cell["metadata"]["dlsys"]["role"])
    assert not shown & {"Why", "Repair", "More"}, "the fault stands in a heading, too"
    assert not shown & {"look", "why", "repair", "more", "folklore", "keep"}
    assert shown >= {"break", "guess", "exercise", "quiz"}


@pytest.mark.parametrize("number", [stage.number for stage in catalog.written()])
def test_no_output_of_a_trap_stands_below_its_guess_and_hosts_fold_the_rest(work, number):
    """In every host, outputs are gone, and the host's own mark folds code and text."""
    made = json.loads(work_folder.start(number).lesson.read_text("utf-8"))
    asked, left, open_code = set(), [], []
    for cell in made["cells"]:
        trap = cell["metadata"]["dlsys"].get("trap")
        if "guess" in cell["metadata"]["tags"]:
            asked.add(trap)
        elif trap in asked and cell.get("outputs"):
            left.append(cell["id"])
        hidden = cell["metadata"].get("jupyter", {}).get("source_hidden", False)
        marks = [cell["metadata"].get(name) for name in ("cellView", "_kg_hide-input")]
        if marks != (["form", True] if hidden else [None, None]):
            open_code.append(cell["id"])
    folded = [cell["metadata"]["id"] for cell in made["cells"]
              if cell["metadata"].get("jp-MarkdownHeadingCollapsed")]
    assert len(asked) == len(catalog.traps(number))
    assert (left, open_code) == ([], [])
    assert made["metadata"]["colab"]["collapsed_sections"] == folded != []


@pytest.mark.parametrize("number", [stage.number for stage in catalog.written()])
def test_a_copy_runs_what_the_lesson_runs(work, number):
    """Cell by cell; `make colab` and `make newest` run such copies."""
    (shipped,) = paths.NOTEBOOKS.glob(f"{number:02d}_*.ipynb")
    code = [["".join(c["source"]) for c in cells(path) if c["cell_type"] == "code"]
            for path in (shipped, work_folder.start(number).lesson)]
    assert code[0] == code[1] != []


def lesson(*of_cells: dict, code: str = "a1") -> bytes:
    named = [{"id": f"c{number}", **cell} for number, cell in enumerate(of_cells)]
    return json.dumps({"metadata": {"dlsys": {"stage": 1, "rests_on": {"code": code}}},
                       "nbformat": 4, "cells": named}).encode()


def test_headings_that_answer_are_folded_and_others_are_not():
    made = work_folder.lesson_copy(lesson(*(
        {"cell_type": "markdown", "metadata": {"dlsys": {"role": "step"}}, "source": source}
        for source in ("### Keep", ["### Look\n"], "### Your turn", "### Why: it is"))),
        catalog.written()[0], "w")
    folded = [cell["metadata"].get("jp-MarkdownHeadingCollapsed") for cell in
              json.loads(made)["cells"]]
    assert folded == [True, True, None, None]
    assert json.loads(made)["cells"][-1]["source"] == "#### Why: it is"


def test_what_is_there_stays(work):
    work.mkdir()
    (work / "01_lesson.ipynb").write_text("my notes")
    (work / "00_start_here.ipynb").write_text("mine, too")
    assert work_folder.start(1).created
    assert work_folder.start_page().read_text() == "mine, too"
    assert (work / "01_lesson.ipynb").read_text() == "my notes"


def test_doctor_names_an_older_lesson(work, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    shipped = tmp_path / "01_activations.ipynb"
    code = {"cell_type": "code", "metadata": {}, "source": "1"}
    shipped.write_bytes(lesson(code))
    work_folder.start(1)
    only = catalog.written()[:1]
    monkeypatch.setattr(catalog, "written", lambda: only)
    assert list(doctor.my_lessons()) == []
    shipped.write_bytes(lesson(code, code="b2"))
    (found,) = doctor.my_lessons()
    assert "01_lesson.ipynb is older" in found.text
    assert "dlsys start 1 --copy" in found.remedy


def test_the_folder_follows_the_environment(tmp_path):
    script = "from dlsys import work_folder; print(work_folder.start(1).path)"
    env = {**os.environ, "DLSYS_WORK": str(tmp_path / "desk")}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True,
                          check=True)
    assert done.stdout.strip() == str(tmp_path / "desk/01_activations.ipynb")
    assert sorted(os.listdir(tmp_path / "desk")) == ["01_activations.ipynb", "01_lesson.ipynb"]
