"""What the course teaches and where: every unit leads to an existing section."""

import csv

import pytest
from test_book_finder import QUERIES

from dlsys import cli, find, units
from dlsys_helpers import catalog
from dlsys_helpers.paths import ROOT
from dlsys_helpers.stages import stage
from tools import book_finder, book_pages, book_units

STAGES = range(1, 13)  # the sources of the course end with stage 12
LESSONS = book_finder.built_lessons()
HEADINGS = {number: {line.lstrip("#").strip() for cell in notebook.cells
                     if cell.cell_type == "markdown" for line in cell.source.splitlines()
                     if line.startswith(("## ", "### "))}
            for number, notebook in LESSONS.items()}
PAGES = {path.stem for path in (ROOT / "book").glob("*.md")} | {
    "symptoms", "concepts", *book_pages.generated(LESSONS)}


def test_every_stage_has_units_and_no_id_stands_twice():
    ids = [unit.id for unit in units.units()]
    assert {unit.stage for unit in units.units()} == {*STAGES}
    assert len(ids) == len({*ids}) == 429


@pytest.mark.parametrize("number", STAGES)
def test_every_unit_leads_to_a_section_a_trap_or_a_page(number):
    lost = [f"{unit.id}: {unit.section}" for unit in units.units()
            if unit.stage == number and not is_there(unit)]
    assert lost == []


def is_there(unit):
    if unit.page:
        return unit.page in PAGES
    if unit.trap:
        return unit.trap in {trap.id for trap in catalog.traps()}
    number, heading = unit.heading
    return heading in HEADINGS[number]


def test_nine_in_ten_are_taught_in_open_text():
    """That is the aim; before the first text was written, the share was 0.56."""
    known = units.units()
    assert sum(unit.open for unit in known) >= 0.9 * len(known)


def test_what_is_folded_is_said_to_be():
    folded = [unit for unit in units.units() if unit.section.startswith("More of trap")]
    assert folded
    assert not any(unit.open for unit in folded)


@pytest.mark.parametrize(("query", "number"), [
    ("translation equivariance", 7), ("perceptron", 1), ("chain rule", 2), ("weight decay", 4),
    ("positional encoding", 8), ("gradient checkpointing", 9)])
def test_a_concept_is_found_by_its_name(query, number, capsys):
    assert number in [unit.stage for unit in units.rank(query)[:units.MOST]]
    assert cli.main(["find", query]) == 0
    assert f"stage {number}, " in capsys.readouterr().out


def test_what_somebody_sees_is_no_concept():
    """A symptom needs a cause, not a list of sections; a name such as *dead ReLU* is both."""
    taught = {query for query in QUERIES if units.rank(query)}
    assert taught <= {"dead relu", "overfitting", "weight initialisation"}


def test_a_word_that_nothing_teaches_finds_nothing():
    for said in ("zymurgy", ""):
        assert units.rank(said) == units.nearest(said, answer(said)) == []


# ---- questions longer than a name, or with a word that no unit has

KNOWN = find.index(find.rows())
BY_ID = {unit.id: unit for unit in units.units()}


def answer(query):
    return find.rank(KNOWN, query)


def shown(query):
    """The places that the finder gives for a question, as exact or as possible matches."""
    return [unit.place for unit in units.rank(query) or units.nearest(query, answer(query))]


def asked(kind):
    """Questions, each with the unit that it is about.

    seen: used to choose the words in same.csv. fresh: written for forty other units before the
    rules. strange: about something that the course does not teach.
    """
    with (ROOT / "tests" / "taught_questions.csv").open(encoding="utf-8", newline="") as file:
        return [(row["question"], BY_ID.get(row["unit"])) for row in csv.DictReader(file)
                if row["kind"] == kind]


@pytest.mark.parametrize(("kind", "places", "causes"), [("seen", 24, 38), ("fresh", 25, 30)])
def test_a_question_finds_its_place_as_often_as_when_the_rules_were_made(kind, places, causes):
    """places: found among the places; causes: found there or as a trap among fitting causes."""
    questions = asked(kind)
    placed = [unit.place in shown(query) for query, unit in questions]
    caused = [answer(query).fits and unit.trap in answer(query).causes for query, unit in questions]
    assert len(questions) == 40
    assert sum(placed) >= places
    assert sum(one or other for one, other in zip(placed, caused, strict=True)) >= causes


def test_a_question_about_something_else_is_seldom_led_to_a_lesson():
    questions = [query for query, _ in asked("strange")]
    assert len(questions) == 25
    assert [query for query in questions if units.rank(query)] == []
    assert len([query for query in questions if shown(query)]) <= 2


@pytest.mark.parametrize(("query", "id"), [
    ("tied embeddings", "S08.25"), ("heavy ball velocity update", "S04.01"),
    ("page-locked memory", "S09.41"), ("transformer mlp", "S01.41"),
    ("typical batch size", "S12.40"), ("quantize on the fly", "S11.03"),
    ("number format for training, serving and phones", "S11.27")])
def test_words_that_mean_the_same_find_the_same_place(query, id):
    assert BY_ID[id].place in shown(query)


def test_what_is_perhaps_meant_stands_below_that_no_cause_fits(capsys):
    assert cli.main(["find", "typical batch size"]) == 1
    said = capsys.readouterr().out
    assert said.startswith(find.NONE_OF_OURS)
    line = "- the book's page guide_hyperparameters: Batch sizes by field"
    assert said.index(f"{units.PERHAPS}\n{line}") < said.index(find.SEARCH)


def test_a_folded_place_says_so_and_a_trap_that_is_a_cause_is_not_named_again():
    query = "a file with weights_only and numpy numbers, an atomic write, two slots and more"
    named = [unit.place for unit in units.nearest(query, find.Answer([], [], "", []))]
    assert {"stage 12, trap 12.8", "stage 12, More of trap 12.8"} <= {*named}
    caused = [unit.place for unit in units.nearest(
        query, find.Answer([], ["12.8"], find.UNSURE, []))]
    assert "stage 12, trap 12.8" not in caused
    assert "stage 12, More of trap 12.8" in caused
    assert BY_ID["S02.22"].place == "stage 2, *The switches at work*, folded"


def test_next_to_a_likely_cause_two_words_are_not_enough():
    unsure, likely = answer("zebra"), find.Answer([], ["03.4"], "likely", [])
    query = "loss stuck at 0.693"
    assert units.nearest(query, unsure) != units.nearest(query, likely) == []


def test_a_pasted_log_is_led_to_no_lesson():
    log = " ".join(f"step {number} loss 0.{number} lr 0.1 grad norm 2.{number} w{number}"
                   for number in range(2000))
    assert shown(log) == []


@pytest.mark.parametrize("row", ["S01.1,a neuron,,yes", "S01.1,a neuron,One neuron,maybe"])
def test_a_row_without_a_section_or_a_state_is_refused(tmp_path, row):
    path = tmp_path / "01.csv"
    path.write_text(f"id,unit,section,open\n{row}\n", "utf-8")
    with pytest.raises(ValueError, match=r"01\.csv:2: .* expected id,unit,section,open"):
        units.read(path)


def test_the_page_names_every_unit_and_its_place():
    page = book_units.page([*LESSONS])
    assert page.count("\n| ") == len(units.units()) + 2 * len(STAGES)
    assert f"notebooks/{stage(1).stem}.html#" in page
    assert "What you can learn here" in page


def test_the_words_of_a_unit_are_read_as_those_of_the_finder():
    [first, *_] = units.rank("normalising")
    assert {*find.plain("normalization")} & units.tokens_of(first)
