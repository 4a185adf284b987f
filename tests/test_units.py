"""What the course teaches and where: every unit leads to a section that is there."""

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
    """The aim, and the share of them that was open before the first text was written: 0.56."""
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
    """It wants a cause, not a list of sections above it; a name, such as *dead ReLU*, is both."""
    taught = {query for query in QUERIES if units.rank(query)}
    assert taught <= {"dead relu", "overfitting", "weight initialisation"}


def test_a_word_that_nothing_teaches_finds_nothing():
    assert units.rank("zymurgy") == units.rank("") == []


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
