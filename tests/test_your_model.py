"""The notebook *Your model* with only the learner's parts, its copy, its report, its place."""

import functools
import html
import json
from collections import Counter

import pytest
import torch

from dlsys import cli, start_page, work_folder
from dlsys_helpers import cards, claims, guesses, paths, plots, progress
from dlsys_helpers.lesson_names import YOUR_MODEL
from dlsys_model import parts as catalogue
from dlsys_model import report, show, standins
from dlsys_model.network import Network, Shape
from dlsys_model.part_table import BY_ID, CATALOGUE
from dlsys_model.parts import Parts
from dlsys_model.text import Text
from dlsys_model.training import Plan, Training
from tools import lessons
from tools.run_cells import run_cell

SOURCE = paths.ROOT / "lessons" / f"{YOUR_MODEL}.py"
NOTEBOOK = paths.NOTEBOOKS / f"{YOUR_MODEL}.ipynb"
# Called in other processes; and by a plan with patience, as the rehearsal's is.
ELSEWHERE = {"09.6", "09.11", "06.3"}


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "work")
    monkeypatch.setenv("DLSYS_PROGRESS", str(tmp_path / "work"))
    return tmp_path / "work"


# Smaller, as a learner may set them, to save time; nbval runs the original with stand-ins.
STEPS, VALIDATION = 24, 2200  # steps of training; letters held out


@pytest.mark.nightly  # each part has its rehearsal in test_model_after
def test_the_notebook_runs_with_all_parts_the_learners(work, monkeypatch):
    """Each claim holds, and each part is called; their rehearsal is in test_model_after."""
    calls, real = Counter(), catalogue.load

    def counted(id, fn):
        @functools.wraps(fn)
        def call(*args, **kwargs):
            calls[id] += 1
            return fn(*args, **kwargs)
        return call

    def all_mine(*origin):
        if origin:
            return real(*origin)
        own = real(paths.SOLUTIONS, BY_ID)._own
        return Parts({id: counted(id, fn) for id, fn in own.items()}, (), paths.SOLUTIONS)
    monkeypatch.setattr(catalogue, "load", all_mine)
    claims.LOG.clear()
    names = {"__name__": "__main__"}
    for cell in lessons.read(SOURCE).of(kind="code"):
        if cell.source.startswith("rehearse("):
            continue
        run_cell(cell.source, f"<{cell['id']}>", names)
        if cell.source.startswith("STEPS ="):
            names["STEPS"] = STEPS
        if cell.source.startswith("text = prose("):
            names["text"] = names["text"]._replace(valid=names["text"].valid[:VALIDATION])
    assert len(claims.LOG) > 20
    assert all(claim.holds for claim in claims.LOG)
    assert {part.id for part in CATALOGUE} - set(calls) == ELSEWHERE
    assert names["status"] == -9
    assert names["resumed"].log() == names["unbroken"].log()
    assert names["pair"][0]["losses"] == pytest.approx(names["alone"].losses, abs=1e-5)
    page = (work / report.FILE).read_text("utf-8")
    assert page.count("✓ mine") == len(CATALOGUE)
    assert page.count("no guess") == 16
    assert all(name in page for name in ("float32", "8 bits", "student", "ONNX"))


def test_guesses_have_ids_of_their_own_and_are_all_answered():
    code = [cell.source for cell in lessons.read(SOURCE).of(kind="code")]
    asked = [source.split('"')[1] for source in code if source.startswith("guess(")]
    measured = [source.split('"')[1] for source in code if source.startswith("measured(")]
    assert set(asked) == set(measured) == {f"model.{n}" for n in range(1, len(asked) + 1)}
    assert len(asked) == len(measured) == len(set(asked))
    for n in set(asked):
        assert _place(code, "guess", n) < _place(code, "measured", n), n


def _place(code: list[str], call: str, id: str) -> int:
    return next(k for k, source in enumerate(code) if source.startswith(f'{call}("{id}"'))


# ---- what it shows

def test_the_map_ticks_what_is_yours_and_leads_to_started_stages(work, monkeypatch):
    shown = []
    monkeypatch.setattr(cards, "emit", lambda page, text, **_: shown.append((page, text)))
    work.mkdir()
    (work / "05_normalization.ipynb").write_text("{}")
    mine = Parts({"05.2": standins.told_apart}, ["08.10 decode_step: a <note>"])
    show.map_of(mine)
    [(page, text)] = shown
    assert page.count("solid") == 1
    assert page.count("dashed") == len(CATALOGUE) - 1
    assert "#cell-id=05-2-exercise-1" in page
    assert "cell-id=08-10" not in page, "stage 8 was not started"
    assert "a &lt;note&gt;" in page
    assert "✓ 05.2  told_apart" in text
    assert f"1 of {len(CATALOGUE)} parts are yours" in text


@pytest.mark.parametrize("watched", [True, False])
def test_a_bar_and_a_curve_are_renewed_while_somebody_watches(monkeypatch, watched):
    torch.manual_seed(0)
    ids = torch.randint(12, (400,))
    run = Training(Network(Shape(12, 16, 1, 2, 8), Parts()), Text(ids, ids[:40], "abcdefghijkl"),
                   Plan(steps=6, rows=2, warm=1, every=2))
    shown, last = [], []
    monkeypatch.setattr(cards, "watched", lambda: watched)
    monkeypatch.setattr("IPython.display.display", lambda thing, display_id, update: shown.append(
        (display_id, update)))
    monkeypatch.setattr(plots, "show", lambda figure, alt: last.append(alt))
    show.follow(run)
    assert run.step == 6
    assert shown == ([("your-model-bar", n > 0) if what == 0 else ("your-model-curve", n > 0)
                      for n in range(3) for what in (0, 1)] if watched else [])
    assert len(last) == 1


def test_the_stored_curve_is_of_a_full_run():
    record = show.full_run()
    assert record["log"][-1]["step"] == record["plan"]["steps"] == 1000
    assert record["log"][-1]["valid"] < 1.5
    assert record["most_memory"] < 1.5e9
    assert len(record["sample"]) > 400


# ---- the learner's copy

def test_a_copy_has_no_outputs_and_is_never_overwritten(work, capsys):
    assert cli.main(["start", "model"]) == 0
    assert "Your notebook is work/your_model.ipynb." in capsys.readouterr().out
    path = work / "your_model.ipynb"
    book = json.loads(path.read_text("utf-8"))
    assert all(not cell["outputs"] for cell in book["cells"] if cell["cell_type"] == "code")
    path.write_text("mine")
    assert cli.main(["start", "model"]) == 0
    assert "work/your_model.ipynb already exists and is unchanged." in capsys.readouterr().out
    assert path.read_text() == "mine"


def test_the_start_page_gives_a_copy_at_a_click(work):
    button, _answer = start_page.model_menu().children
    assert button.description == "Start your model"
    button.click()
    assert (work / "your_model.ipynb").exists()
    said = start_page.model_html()
    assert "nothing was overwritten" in said
    assert 'your_model.ipynb">work/your_model.ipynb</a>' in said


def test_a_full_disk_is_said(work, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(work_folder.os, "open", full)
    with pytest.raises(work_folder.WorksheetError, match="cannot write the notebook of your model"):
        work_folder.start_model()
    assert "cannot write the notebook of your model" in start_page.model_html()


# ---- the report

LOG = [{"step": 5, "loss": 3.0, "valid": 3.1}, {"step": 10, "loss": 2.0, "valid": 2.2}]


def written(**sizes) -> str:
    return report.write(Parts(), LOG, "<b>wrote & wrote</b>", sizes)


def test_the_report_shows_what_was_measured_and_guessed(work, monkeypatch):
    monkeypatch.setattr(guesses, "MEASURED", {})
    monkeypatch.setattr(guesses, "ASKED", {})
    progress.record_guess("model.1", 7.0, True)
    guesses.guess("model.1", "How `large`?", unit="kB")
    guesses.measured("model.1", 5.0, right=(4, 6))
    assert written(small=(12_345, 2.5)) == "Your report: work/your_model.html"
    page = (work / report.FILE).read_text("utf-8")
    for part in ("<td>How large?</td><td>7\N{NO-BREAK SPACE}kB</td><td>5\N{NO-BREAK SPACE}kB</td>",
                 "<td>small</td><td>12 kB</td><td>2.500</td>", "validation loss 2.200 nats",
                 html.escape("<b>wrote & wrote</b>"), "10 steps", "@media print", "<polyline"):
        assert part in page
    assert page.count("<tr><td>") == len(CATALOGUE) + 2
    assert "http" not in page


def test_progress_counts_the_report(work, capsys):
    cli.main(["progress"])
    assert "Your model" not in capsys.readouterr().out
    written()
    cli.main(["progress"])
    assert "Your model: built, work/your_model.html" in capsys.readouterr().out


def test_a_report_that_cannot_be_written_says_so(work, monkeypatch):
    work.write_text("a file where the folder should be")
    with pytest.raises(report.ReportError, match=r"your_model\.html: cannot be written"):
        written()
    monkeypatch.setenv("DLSYS_PROGRESS", "off")
    assert written() == "No report is kept: DLSYS_PROGRESS is off."
