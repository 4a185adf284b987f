"""`dlsys find`: the finder's rows in the terminal, ranked as on the page."""

import html
import json

import pytest
from browser import offline_page
from docutils.nodes import make_id
from test_book_finder import FIRST, MESSAGES, QUERIES, STRANGE

from dlsys import cli, find
from dlsys_helpers import catalog
from dlsys_watch.rules import all_rules
from tools import book_finder

ROWS = find.rows()


def test_the_rows_are_those_of_the_page():
    made = book_finder.rows_file(book_finder.built())
    assert find.ROWS.read_text("utf-8") == made, ".venv/bin/python -m tools.book_finder"


def test_a_row_names_the_rules_of_its_trap():
    stored = {row["trap"]: set(row["rules"]) for row in ROWS if "trap" in row}
    assert stored.keys() == {trap.id for trap in catalog.traps()}
    wanted = {trap: {rule.id for rule in all_rules() if rule.trap == trap} for trap in stored}
    assert stored == wanted


@pytest.mark.parametrize(("query", "place"), [*QUERIES.items(), *MESSAGES.items()])
def test_a_query_of_real_life_finds_its_place(query, place):
    answer = find.rank(ROWS, query)
    assert answer.fits
    best = answer.hits[:1 if query in FIRST else find.MOST]
    assert any(place in text for row in best for text in (
        row.get("trap", "").replace(".", "-"), row["see"], make_id(row["page"]))), best


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """A page of the same rows with the finder's own script."""
    rows = "".join(f"<tr><td>{html.escape(row['see'])}</td><td>{html.escape(row['rest'])}</td></tr>"
                   for row in ROWS)
    file = tmp_path_factory.mktemp("finder") / "page.html"
    script = (book_finder.BOOK / "vendor" / "finder" / "finder.js").read_text("utf-8")
    box = book_finder.BOX.partition("<script")[0]
    file.write_text(f'<meta charset="utf-8"><article>{box}<div><div class="symptoms"><table><tbody>'
                    f"{rows}</tbody></table></div></div></article><script>{script}</script>",
                    "utf-8")
    tab = offline_page(browser)
    tab.goto(file.as_uri())
    return tab


@pytest.mark.parametrize("query", [*QUERIES, *MESSAGES, *STRANGE, "zebra", "softmax-twice"])
def test_the_terminal_ranks_as_the_page(page, query):
    page.fill("#finder", query)
    said = page.locator(".finder-said").inner_text()
    shown = page.locator(".finder-found tbody tr td:first-child").all_text_contents()
    hits, fits, missing = find.rank(ROWS, query)
    assert [row["see"] for row in hits] == shown
    assert fits == (not said.startswith("Nothing fits"))
    assert bool(missing) == ("No row has" in said)


def test_what_is_found_is_printed_with_trap_fault_and_rule(capsys, monkeypatch):
    monkeypatch.setenv("DLSYS_BOOK", "https://book.example/")
    assert cli.main(["find", "decoder", "sees", "the", "future"]) == 0
    first, *_ = capsys.readouterr().out.split("\n2. ")
    assert first.startswith("1. A language model's loss is far too low")
    assert f"trap 08.1  {catalog.trap('08.1').name}" in first
    assert "https://book.example/traps/08-1.html" in first
    assert "dlsys watch says no-causal-mask" in first


@pytest.mark.parametrize("query", STRANGE)
def test_what_no_row_is_about_is_said(capsys, query):
    assert cli.main(["find", query]) == 1
    assert capsys.readouterr().out.startswith("Nothing fits well; these share a word or two.")


def test_words_that_no_row_has_are_named(capsys):
    assert cli.main(["find", "zebra"]) == 1
    assert capsys.readouterr().out == (
        "Nothing fits. No row has: zebra. Try a word of the message, or a number.\n")


def test_a_query_without_a_word_is_one_line(capsys):
    assert cli.main(["find", "the"]) == cli.BAD_INPUT
    assert capsys.readouterr().err == (
        "dlsys: find: got 'the', expected a word of what you see, or a number.\n")


def test_the_file_holds_no_markup():
    texts = [text for row in json.loads(find.ROWS.read_text("utf-8"))
             for text in (row["see"], row["test"], row.get("page", ""))]
    assert not [text for text in texts if "**" in text.replace("`**`", "") or "](" in text
                or "\\_" in text]
