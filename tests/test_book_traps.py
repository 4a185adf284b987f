"""What the page of a trap takes from the cells of its lesson."""

import re

import pytest
from test_book import cell, figure, lesson, printed

from dlsys_helpers import catalog
from dlsys_helpers.errors import UserError
from tools import book, book_pages, book_traps

KEEP = ("**Keep:** no_grad is\nnot eval. **In your\nown code:** assert it. **Source:** notes. "
        "**Seen in the wild:** owner/name 12.")


def trap_lesson(keep=KEEP, *more):
    facts = {"trap": "01.1"}
    held = printed("drift: 0.032\n"), book.nbformat.v4.new_output(
        "display_data", {"text/plain": "holds: it moved: 0.032, above 0.005"})
    plumbing = cell("code", "class Counter: ...", "break", **facts)
    plumbing.metadata["jupyter"] = {"source_hidden": True}
    return lesson(plumbing, cell("code", "first = reader(x)\nprint(first)", "break", **facts),
                  cell("code", "claim('it moved', drift)", "look", held, **facts),
                  cell("markdown", "Eval mode switches both off.", "why", **facts),
                  cell("code", "draw()", "why", [figure(alt='Two "modes".')], **facts),
                  cell("code", "reader.eval()", "repair", **facts),
                  cell("markdown", keep, "keep", **facts), *more)


def test_a_page_tells_symptom_code_number_repair_test_and_where_it_happened():
    text = book_traps.page(catalog.trap("01.1"), trap_lesson())
    trap = catalog.trap("01.1")
    told = [f"# 01.1 {book_pages.plain(trap.name)}\n", trap.symptom, "first = reader(x)",
            "drift: 0.032", "it moved: 0.032, above 0.005", "Eval mode switches both off.",
            'alt="Two &quot;modes&quot;." loading="lazy" width="1" height="1"', "reader.eval()",
            "Assert it.", "no_grad is", "**A related fault:**", "owner/name 12.",
            f"{trap.title} <trap-01-1>", "<exercise-01-1>"]
    places = [text.find(part) for part in told]
    assert -1 not in places
    assert places == sorted(places)
    assert "Counter" not in text, "what the notebook folds is not the code that does it"


def test_the_figures_of_a_page_lie_where_it_looks_for_them(tmp_path):
    text = book_traps.page(catalog.trap("01.1"), trap_lesson())
    book_traps.write_pictures({1: trap_lesson()}, tmp_path / "figures")
    [shown] = re.findall(r'src="\.\./figures/([^"]+)"', text)
    assert [file.name for file in (tmp_path / "figures").iterdir()] == [shown]


def test_of_two_figures_of_the_cause_the_page_shows_that_which_marks_the_fault():
    lesson = trap_lesson(KEEP, cell("code", "draw(marks=[1])", "why", [figure(alt="The fault.")],
                                    trap="01.1"))
    text = book_traps.page(catalog.trap("01.1"), lesson)
    assert 'alt="The fault."' in text
    assert "two &quot;modes&quot;" not in text.lower()


def test_a_name_in_the_code_that_folded_code_defines_is_said_to_be_the_lessons():
    lesson = trap_lesson()
    lesson.cells[1].source = "first = Counter(reader(x))\nprint(first)"
    text = book_traps.page(catalog.trap("01.1"), lesson)
    assert "`Counter`: defined in {ref}`the lesson <trap-01-1>`, in folded code." in text
    assert "class Counter" not in text


def test_what_was_measured_waits_for_a_guess_and_the_rest_of_the_page_does_not():
    facts = {"trap": "01.1"}
    asked = cell("code", "guess(...)", "guess", [html_output('<div data-guess="{}">How?</div>')],
                 **facts)
    told = cell("code", "measured(...)", "look", [html_output("<p data-measured>So.</p>")], **facts)
    for made, tag in ((asked, "guess"), (told, "measured")):
        made.metadata["tags"].append(tag)
    text = book_traps.page(catalog.trap("01.1"), trap_lesson(KEEP, asked, told))
    before, waiting = text.split("::::::{div} waits")
    waiting, after = waiting.split("\n::::::\n", 1)
    assert "How?" in before
    assert "So." in waiting
    assert "drift: 0.032" in waiting
    assert "it moved: 0.032" in waiting
    assert after.lstrip().startswith("## Why")
    assert "## What was measured" in book_traps.page(catalog.trap("01.1"), trap_lesson())


def html_output(text):
    return book.nbformat.v4.new_output("display_data", {"text/html": text})


def test_a_repair_that_only_reports_is_told_in_words():
    facts = {"trap": "01.1"}
    lesson = trap_lesson()
    lesson.cells = [c for c in lesson.cells if c.source != "reader.eval()"]
    lesson.cells += [cell("markdown", "Ask both the same.", "repair", **facts),
                     cell("code", "print(drift)", "repair", **facts)]
    repair = book_traps.page(catalog.trap("01.1"), lesson).partition("## The repair")[2]
    assert repair.startswith("\n\nAsk both the same.\n\n## ")


def test_cells_of_another_trap_stay_out():
    other = cell("code", "other = 1", "break", trap="01.2")
    assert "other = 1" not in book_traps.page(catalog.trap("01.1"), trap_lesson(KEEP, other))


def test_a_repair_stands_behind_what_its_why_defines_and_a_tag_names_another_cell():
    facts = {"trap": "01.1"}
    told = cell("code", "def still(m):\n    return m.eval()\n\nother = 1", "why", **facts)
    repair = cell("code", "still(reader)", "repair", **facts)
    lesson = trap_lesson()
    lesson.cells = [c for c in lesson.cells if c.source != "reader.eval()"]
    lesson.cells += [told, repair]
    text = book_traps.page(catalog.trap("01.1"), lesson)
    assert "```python\ndef still(m):\n    return m.eval()\n```\n\n```python\nstill(" in text
    assert "other = 1" not in text
    named = cell("code", "reader.train(False)", "look", **facts)
    named.metadata["tags"] = ["for-repair"]
    lesson.cells.append(named)
    repair = book_traps.page(catalog.trap("01.1"), lesson).partition("## The repair")[2]
    assert repair.startswith("\n\n```python\nreader.train(False)\n```\n\n## ")


def test_without_a_sighting_the_page_has_no_section_for_it():
    text = book_traps.page(catalog.trap("01.1"), trap_lesson(KEEP.partition("**Seen")[0]))
    assert "Seen in the wild" not in text


def test_a_keep_cell_without_a_test_stops_the_book_and_says_what_to_write():
    with pytest.raises(UserError, match=r"trap 01\.1: .* has Keep, .* \*\*In your own code:\*\*"):
        book_traps.page(catalog.trap("01.1"), trap_lesson("**Keep:** this."))


def test_pages_below_another_are_those_of_its_folder():
    below = ["traps/01-1", "wrong_answers/01", "wrong_answers/02"]
    assert book.chapter("wrong_answers", below) == {
        "file": "wrong_answers",
        "sections": [{"file": "wrong_answers/01"}, {"file": "wrong_answers/02"}]}
    assert book.chapter("symptoms", below) == {"file": "symptoms"}
