"""A lesson may present its traps in a different order from their numbers."""

import json
import re

import nbformat
import pytest

from dlsys_helpers import catalog
from dlsys_helpers.paths import ROOT
from tools import book_pages, build, lessons

LESSON = ROOT / "lessons" / "09_scaling.py"
TEXT = LESSON.read_text("utf-8")


def read(tmp_path, text, draft=False):
    path = tmp_path / "lessons" / LESSON.name
    path.parent.mkdir(parents=True)
    path.write_text(text, "utf-8")
    return lessons.read(path, draft)


def test_the_catalog_lists_traps_in_the_order_in_which_they_are_told(tmp_path):
    source = read(tmp_path, TEXT)
    assert source.traps != sorted(source.traps, key=lessons.place)
    [text] = build.catalog_files([source]).values()
    assert [trap["id"] for trap in json.loads(text)] == source.traps


def test_the_trap_index_is_in_the_order_of_the_numbers():
    """Readers look a trap up there by its number."""
    notebook = nbformat.read(ROOT / "notebooks" / "09_scaling.ipynb", as_version=4)
    found = re.findall(r"^\| (09\.\d+) \|", book_pages.traps_page({9: notebook}), re.M)
    assert found == [f"09.{n}" for n in range(1, len(catalog.traps(9)) + 1)]


def test_a_number_that_is_left_out_is_refused_and_noted_in_a_draft(tmp_path):
    text = TEXT.replace('trap="09.5"', 'trap="09.15"').replace('("09.5"', '("09.15"')
    with pytest.raises(lessons.RuleBroken, match=r"none is 09\.5"):
        read(tmp_path / "finished", text)
    assert "none is 09.5" in "\n".join(read(tmp_path / "draft", text, draft=True).notes)


def test_an_id_of_another_stage_is_refused(tmp_path):
    text = TEXT.replace('trap="09.5"', 'trap="08.5"')
    with pytest.raises(lessons.RuleBroken, match=r"08\.5 is of another stage"):
        read(tmp_path, text)


def test_concepts_between_traps_open_a_part_with_a_heading(tmp_path):
    assert "concept" in lessons.parts(read(tmp_path / "as_it_is", TEXT))
    with pytest.raises(lessons.RuleBroken, match="between traps without a heading"):
        read(tmp_path / "without", TEXT.replace("# ## One card\n", "# One card\n"))
