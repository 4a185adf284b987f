"""A lesson asks for a guess, keeps it, and answers with the measurement; no step stops it."""

import html
import json
import os
import re
import shutil
import subprocess

import nbformat
import pytest
from nbclient import NotebookClient

from dlsys_helpers import guess, guesses, json_lines, measured, paths, progress
from dlsys_helpers.claims import ClaimFailed
from dlsys_helpers.explorers import _page, write_assets
from dlsys_helpers.paths import NOTEBOOKS
from tools import lessons
from tools.canonical import canonical

node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
COLOURS = ["red", "green", "`blue`"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("DLSYS_PROGRESS", raising=False)
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "my-work")
    for kept in (guesses.ASKED, guesses.SAID, guesses.MEASURED, json_lines.notes_given):
        kept.clear()
    return tmp_path / "my-work"


def asked(choices=(), unit=""):
    guess("01.1", "Which?", choices=choices, unit=unit)
    return guesses.ASKED["01.1"]


def answers(capsys, answer, sure, *value, **how):
    """What `measured` prints after this answer."""
    guesses.hear(guesses.ASKED["01.1"], {"guess": answer, "sure": sure})
    capsys.readouterr()
    measured("01.1", *value, **how)
    return capsys.readouterr().out.strip().replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(("answer", "sure", "says"), [
    (0.1, True, "sure; measured 2,134 %, right from 1,000 to 3,000 %: 21,344 times too low."),
    (-5, True, "sure; measured 2,134 %, right from 1,000 to 3,000 %: too low."),
    (2000, False, "not sure; measured 2,134 %: right, as is 1,000 to 3,000 %."),
    (2999.5, True, "sure; measured 2,134 %: right, as is 1,000 to 3,000 %."),
    (3000.5, True, "sure; measured 2,134 %, right from 1,000 to 3,000 %: 1.4 times too high."),
])
def test_a_number_is_answered_by_what_was_measured(capsys, answer, sure, says):
    asked(unit="%")
    said = answers(capsys, answer, sure, 2134.4, right=(1000, 3000))
    assert said == f"You said {answer} % and were {says}"


def test_a_near_miss_and_a_small_one_say_how_far(capsys):
    asked(unit="%")
    assert answers(capsys, 16, True, 79, right=(60, 90)) == (
        "You said 16 % and were sure; measured 79 %, right from 60 to 90 %: 4.9 times too low.")
    asked(unit="%")
    assert answers(capsys, 1e-5, True, 1.02e-5, right=(1.01e-5, 2e-5)).endswith(
        "right from 0.0000101 to 0.00002 %: too low.")


@pytest.mark.parametrize(("answer", "says"), [(4, ": right"), (8, ": 2 times too high")])
def test_one_right_number_is_no_band(capsys, answer, says):
    asked(unit="bytes")
    assert answers(capsys, answer, True, 4, right=(4, 4)) == (
        f"You said {answer} bytes and were sure; measured 4 bytes{says}.")


@pytest.mark.parametrize(("answer", "says"), [("red", "“red” and were sure; measured “green”."),
                                              ("green", "“green” and were sure; measured “green”"
                                                        ": right.")])
def test_a_choice_is_answered_by_the_right_one(capsys, answer, says):
    asked(COLOURS)
    assert answers(capsys, answer, True, 1) == f"You said {says}"


@pytest.mark.parametrize(("value", "shown"), [
    (64, "64"), (5002, "5,002"), (64.0, "64"), (6.4387, "6.4"), (37.22, "37"), (184.4, "184"),
    (0.0042, "0.0042"), (3e-7, "3e-07"), (-0.5, "-0.5")])
def test_without_a_guess_it_says_only_what_was_measured(capsys, value, shown):
    asked(unit="%")
    capsys.readouterr()
    measured("01.1", value, right=(-1, 10_000))
    assert capsys.readouterr().out == f"Measured: {shown}\N{NO-BREAK SPACE}%.\n"


def test_a_session_that_did_not_ask_goes_on(capsys):
    measured("01.1", 2)
    measured("01.2", 6.4, right=(1, 9))
    assert capsys.readouterr().out == (
        "Measured: “choice 3”.\nMeasured: 6.4.\n")


def test_a_measurement_outside_of_what_counts_as_right_stops_like_a_claim():
    asked(unit="%")
    with pytest.raises(ClaimFailed, match=r"measured 01\.1: got 31, expected 2 to 20\."):
        measured("01.1", 31, right=(2, 20))
    with pytest.raises(ClaimFailed, match="got nan"):
        measured("01.1", float("nan"), right=(2, 20))


@pytest.mark.parametrize(("choices", "unit"), [
    ((), ""), (COLOURS, "%"), (COLOURS[:2], ""), ([*COLOURS, "a", "b"], ""),
    (["red", "red", "green"], "")])
def test_a_question_without_answers_is_refused(choices, unit):
    with pytest.raises(ValueError, match=r"guess 01\.1: got .*, expected three or four"):
        guess("01.1", "Which?", choices=choices, unit=unit)


# ---- what a guess keeps

def lines(folder):
    return [json.loads(line) for line in (folder / ".guesses.jsonl").read_text().splitlines()]


def test_a_guess_is_kept_at_once_and_judged_once_it_is_measured(folder):
    question = asked(unit="%")
    guesses.hear(question, {"guess": 5, "sure": True})
    assert [(e["guess"], e["sure"], e["right"]) for e in lines(folder)] == [(5, True, None)]
    for _ in range(2):  # run the cell again
        measured("01.1", 6.4, right=(2, 20))
    assert [e["right"] for e in lines(folder)] == [None, True]
    assert set(lines(folder)[0]) == {"id", "guess", "right", "sure", "time"}


def test_a_later_session_remembers_the_guess(capsys):
    guesses.hear(asked(COLOURS), {"guess": "red", "sure": False})
    guesses.SAID.clear()
    capsys.readouterr()
    measured("01.1", 0)
    assert "You said “red” and were not sure" in capsys.readouterr().out


def test_a_guess_that_the_question_no_longer_offers_is_forgotten(capsys):
    progress.record_guess("01.1", "yellow", True)
    asked(COLOURS)
    capsys.readouterr()
    measured("01.1", 0)
    assert capsys.readouterr().out == "Measured: “red”.\n"


def test_a_guess_after_the_measurement_is_judged_when_it_is_made(folder):
    question = asked(COLOURS)
    measured("01.1", 0)
    guesses.hear(question, {"guess": "green", "sure": True})
    assert [e["right"] for e in lines(folder)] == [False]


@pytest.mark.parametrize("setting", ["off", "/dev/null/no-folder"])
def test_where_nothing_can_be_written_the_guess_still_counts(capsys, monkeypatch, setting):
    monkeypatch.setenv("DLSYS_PROGRESS", setting)
    asked(unit="%")
    assert answers(capsys, 5, True, 6.4, right=(2, 20)).endswith(
        "measured 6.4 %: right, as is 2 to 20 %.")


def test_a_damaged_file_costs_one_guess_and_stops_nothing(folder, capsys):
    progress.record_guess("01.1", "red", True)
    with open(folder / ".guesses.jsonl", "a") as file:
        file.write('{"id": "01.1", "guess": \n')
    asked(COLOURS)
    capsys.readouterr()
    measured("01.1", 0)
    assert "You said “red”" in capsys.readouterr().out
    assert (folder / ".guesses.damaged-1.jsonl").exists()


# ---- what a notebook stores

@pytest.fixture(scope="module")
def stored():
    """A notebook that asks and measures, after a run and in canonical form."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in (
        "from dlsys_helpers import guess, measured\n"
        "guess('01.1', 'Is `a` < b?', choices=['yes', '`no`', 'a \"third\"'])",
        "measured('01.1', 2)")])
    NotebookClient(book, kernel_name="python3").execute(
        env={**os.environ, "DLSYS_PROGRESS": "off"})
    return [cell.outputs for cell in canonical(book).cells]


def test_the_stored_question_reads_without_a_script(stored):
    [output] = stored[0]
    assert set(output.data) == {"text/html", "text/plain"}
    assert output.data["text/plain"].splitlines() == [
        "Your guess: Is `a` < b?", "  - yes", "  - `no`", '  - a "third"']
    shown = re.sub("<[^>]+>", " ", output.data["text/html"])
    assert "Is  a  &lt; b?" in shown
    assert "<li><code>no</code></li>" in output.data["text/html"]


def test_a_page_finds_question_and_measurement_in_what_is_stored(stored):
    [question], [result] = stored
    facts = re.search(r'data-guess="([^"]*)"', question.data["text/html"])[1]
    assert json.loads(html.unescape(facts)) == {
        "id": "01.1", "text": "Is `a` < b?", "choices": ["yes", "`no`", 'a "third"'], "unit": ""}
    facts = re.search(r'data-measured="([^"]*)"', result.data["text/html"])[1]
    assert json.loads(html.unescape(facts)) == {
        "id": "01.1", "shown": '“a "third"”', "right": 'a "third"'}


def test_a_run_of_all_cells_says_only_what_was_measured(stored):
    assert stored[1][0].data["text/plain"] == 'Measured: “a "third"”.'
    assert len(stored[1]) == 1


def test_right_choices_of_quizzes_stand_in_every_place():
    """Always taking the first choice, or the last, teaches nothing and should often be wrong."""
    places = []
    for path in sorted(NOTEBOOKS.glob("[0-9][1-9]_*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if 'class="quiz"' in cell.source:
                choices = cell.source.split("<summary>")[1:]
                places += [i for i, c in enumerate(choices) if ">Right.<" in c]
    shares = [places.count(place) / len(places) for place in range(3)]
    assert min(shares) >= 0.15, shares
    assert max(shares) <= 0.5, shares


@pytest.fixture(scope="module")
def fairness():
    return [row for path in paths.lessons() if not path.stem.startswith("00")
            for row in lessons.fairness(lessons.Source(path))]


def test_the_right_choice_of_a_guess_stands_in_every_place_as_often_as_chance_puts_it(fairness):
    chosen = [row for row in fairness if row.choices]
    assert len(chosen) >= 30
    for place in range(4):
        chance = sum(1 / row.choices for row in chosen if place < row.choices) / len(chosen)
        share = sum(row.place == place for row in chosen) / len(chosen)
        assert abs(share - chance) <= 0.05, (place, share, chance)


def test_whoever_is_quoted_above_a_guess_is_right_in_about_a_third_of_the_cases(fairness):
    quoted = [row.quoted for row in fairness if row.quoted is not None]
    assert len(quoted) >= 20
    assert 0.25 <= sum(quoted) / len(quoted) <= 0.40


# ---- the front end says the same

@node
def test_the_page_says_the_same_sentence_as_the_kernel(tmp_path):
    script = (_page.HERE / "guess.js").read_text("utf-8")
    (tmp_path / "guess.mjs").write_text(script)
    share = guesses.Measurement("1", "6.4\N{NO-BREAK SPACE}%", (2, 20), 6.4)
    cases = [(guesses.Question("1", "?", (), "%"), share, answer, sure)
             for answer, sure in ((0.5, True), (2, False), (20, True), (1e-7, True), (-3, True),
                                  (0, True), (1.6, True), (21, True), (8e6, True))]
    wide = guesses.Measurement("1", "2,134 MB", (1000, 2500), 2134.4)
    cases += [(guesses.Question("1", "?", (), "MB"), wide, answer, True)
              for answer in (999, 2668, 21_344, 1e9)]
    cases += [(guesses.Question("1", "?", tuple(COLOURS)), guesses.Measurement("1", "“red”", "red"),
               answer, True) for answer in COLOURS]
    calls = [[{"guess": answer, "sure": sure}, question.unit, result._asdict()]
             for question, result, answer, sure in cases]
    run = subprocess.run(["node", "--input-type=module", "-e",
                          f"import {{ sentence }} from {str(tmp_path / 'guess.mjs')!r};"
                          f"console.log(JSON.stringify({json.dumps(calls)}.map("
                          "(c) => sentence(...c))))"], capture_output=True, text=True, check=True)
    said = [guesses.sentence(question, result, {"guess": answer, "sure": sure})
            for question, result, answer, sure in cases]
    assert [line.replace("1e-7", "1e-07") for line in json.loads(run.stdout)] == said


@node
def test_the_page_script_is_no_module_and_parses(tmp_path):
    script, style = write_assets(tmp_path, "guess")
    subprocess.run(["node", "--check", script], check=True)
    assert "\nexport" not in script.read_text()
    assert style.read_text() == (_page.HERE / "guess.css").read_text()
