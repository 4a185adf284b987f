"""`dlsys find`: the finder's rows in the terminal, ranked as on the page."""

import json

import pytest
from browser import offline_page
from docutils.nodes import make_id
from test_book_finder import FIRST, MESSAGES, QUERIES, STRANGE

from dlsys import cli, find
from dlsys_helpers import catalog
from dlsys_watch.rules import all_rules
from tools import book_finder, finder_record, finder_words

ROWS = find.rows()
KNOWN = find.index(ROWS)
PHRASES = [phrase["said"] for name in finder_record.PHRASES
           for phrase in finder_record.phrases(name)][::3]  # a third shows whether two counts agree
# Of 48, 43 and 35 phrases with a trap, and of 16, 9 and 18 without; they may rise only.
FOUND = {"seen": 48, "fresh": 28, "newest": 25}
HONEST = {"seen": 11, "fresh": 7, "newest": 17}


def test_the_rows_are_those_of_the_page():
    made = book_finder.rows_file(book_finder.built())
    assert find.STORED.read_text("utf-8") == made, ".venv/bin/python -m tools.book_finder"


def test_a_row_names_the_rules_of_its_traps():
    stored = {cause["trap"]: set(cause["rules"]) for row in ROWS for cause in row["causes"]
              if "trap" in cause}
    assert stored.keys() == {trap.id for trap in catalog.traps()}
    wanted = {trap: {rule.id for rule in all_rules() if rule.trap == trap} for trap in stored}
    assert stored == wanted


def test_phrases_of_people_who_do_not_know_the_cause_find_it_as_often_as_recorded():
    got = finder_record.record()
    assert got == json.loads(book_finder.RECORD.read_text("utf-8")), (
        ".venv/bin/python -m tools.finder_record")
    assert all(got[name]["found"] >= least for name, least in FOUND.items())
    assert all(got[name]["honest"] >= least for name, least in HONEST.items())


@pytest.mark.parametrize(("query", "place"), [*QUERIES.items(), *MESSAGES.items()])
def test_a_query_of_real_life_finds_its_place(query, place):
    answer = find.rank(KNOWN, query)
    assert answer.fits
    best = answer.hits[:1 if query in FIRST else find.MOST]
    assert any(place in text for row in best for text in (
        *(trap.replace(".", "-") for trap in find.traps(row)), row["see"],
        make_id(row.get("page", "")))), best


@pytest.mark.parametrize(("one", "other"), [
    ("warm-up", "warmup"), ("fine-tuning", "finetune"), ("OOM", "out of memory"), ("NaNs", "nan"),
    ("val_loss", "validation losses"), ("CrossEntropyLoss", "cross entropy"),
    ("10.00 %", "10%"), ("utilisation", "utilization"), ("optimiser", "optimizer")])
def test_spellings_are_read_as_one_word(one, other):
    assert find.plain(one) == find.plain(other) != []


@pytest.mark.parametrize("said", ["2.303", "2.302585", "0.693", "4.605", "1.386"])
def test_the_loss_of_a_guess_is_understood(said):
    assert "guessing" in find.plain(f"loss stuck at {said}")
    assert "guessing" not in find.plain(f"loss {float(said) + 0.02}")


def test_words_are_counted_by_cause_and_share_the_weight_of_their_phrase(monkeypatch):
    said = [("loss stuck", "04.5", 1), ("stuck", "09.3", 0.5), ("the", "09.3", 1)]
    monkeypatch.setattr(finder_words, "phrases", lambda rows: said)
    assert finder_words.counts([]) == {
        "causes": ["04.5", "09.3"], "meant": [100, 50],
        "words": {"loss": [0, 71], "stuck": [0, 71, 1, 50]}}  # 71: a hundred by the root of two


def test_a_cause_is_the_likelier_the_more_of_its_phrases_have_the_words(monkeypatch):
    said = {"causes": [find.NONE, "04.5", "09.3"], "meant": [100, 100, 100],
            "words": {"loss": [1, 90], "stuck": [1, 40, 2, 90], "driver": [0, 90]}}
    rules = {"weights": {"strange": 1}}
    monkeypatch.setattr(find, "stored", lambda: {"said": said, "rules": rules})
    find.wholes.cache_clear()
    try:
        # Counts of loss: 10, 100 and 10 of 120, 160 and 120, with ten for each word of each cause.
        odds = [10 / 120, 100 / 160, 10 / 120]
        assert find.likely(["loss"]) == pytest.approx(
            dict(zip(said["causes"], [one / sum(odds) for one in odds], strict=True)), abs=1e-9)
        driver = find.likely(["driver"])
        assert driver[find.NONE] > max(driver["04.5"], driver["09.3"])
        assert find.likely(["zebra"]) == {}
        assert find.likely(["loss", "zebra"])[find.NONE] > find.likely(["loss"])[find.NONE]
    finally:
        find.wholes.cache_clear()


def test_a_number_that_no_row_has_is_not_told_as_missing():
    assert find.rank(KNOWN, "loss is nan after 31337 steps").missing == []


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """A page of the same rows with the finder's own script."""
    rows = "".join(f"<tr><td>{number}</td></tr>" for number in range(len(ROWS)))
    file = tmp_path_factory.mktemp("finder") / "page.html"
    told = book_finder.script(book_finder.built())
    script = (book_finder.BOOK / "vendor" / "finder" / "finder.js").read_text("utf-8")
    box = book_finder.BOX.partition("<script")[0]
    file.write_text(f'<meta charset="utf-8"><article>{box}<div><div class="symptoms"><table><tbody>'
                    f"{rows}</tbody></table></div></div></article><script>{told}</script>"
                    f"<script>{script}</script>", "utf-8")
    tab = offline_page(browser)
    tab.goto(file.as_uri())
    return tab


@pytest.mark.parametrize("query", [*QUERIES, *MESSAGES, *STRANGE, *PHRASES, "zebra",
                                   "softmax-twice"])
def test_the_terminal_ranks_as_the_page(page, query):
    page.fill("#finder", query)
    said = page.locator(".finder-said").inner_text()
    shown = page.locator(".finder-found tbody tr td:first-child").all_text_contents()
    hits, causes, fits, missing = find.rank(KNOWN, query)
    listed = page.locator(".finder-causes li").all_text_contents()
    assert [ROWS.index(row) for row in hits] == [int(number) for number in shown]
    assert listed == [find.told(cause) for cause in causes]
    assert fits == (not said.startswith("Nothing fits"))
    assert page.locator(".finder-causes").is_visible() == fits
    assert (f"No row has: {', '.join(missing)}." in said) == bool(missing)


def test_what_is_found_is_printed_with_trap_fault_and_rule(capsys, monkeypatch):
    monkeypatch.setenv("DLSYS_BOOK", "https://book.example/")
    assert cli.main(["find", "decoder", "sees", "the", "future"]) == 0
    causes, first = capsys.readouterr().out.split("\n2. ")[0].split("Signs:\n")
    assert causes.startswith(f"Likeliest causes:\n- {find.told('08.1')}\n")
    assert first.startswith("1. A language model's loss is far too low")
    assert f"trap 08.1  {catalog.trap('08.1').name}" in first
    assert "https://book.example/traps/08-1.html" in first
    assert "dlsys watch says no-causal-mask" in first


def test_several_causes_are_printed_in_their_order(capsys):
    assert cli.main(["find", "gpu", "utilization", "low"]) == 0
    first, *_ = capsys.readouterr().out.partition("Signs:")[2].split("\n2. ")
    assert first.index("trap 09.10") < first.index("or The loader is too slow")
    assert find.NO_TRAP in first


@pytest.mark.parametrize("query", STRANGE)
def test_what_no_row_is_about_is_said(capsys, monkeypatch, query):
    monkeypatch.setenv("DLSYS_BOOK", "https://book.example/")
    assert cli.main(["find", query]) == 1
    said = capsys.readouterr().out
    assert said.startswith("Nothing fits")
    assert f"https://book.example/search.html?q={query.replace(' ', '+')}" in said


def test_words_that_no_row_has_are_named(capsys):
    assert cli.main(["find", "zebra"]) == 1
    assert capsys.readouterr().out == (
        "Nothing fits. No row has: zebra. Try a word of the message, or a number.\n")


def test_a_query_without_a_word_is_one_line(capsys):
    assert cli.main(["find", "the"]) == cli.BAD_INPUT
    assert capsys.readouterr().err == (
        "dlsys: find: got 'the', expected a word of what you see, or a number.\n")


def test_the_file_holds_no_markup():
    texts = [text for row in ROWS
             for text in (row["see"], *row["also"], row["test"], row.get("page", ""))]
    assert not [text for text in texts if "**" in text.replace("`**`", "") or "](" in text
                or "\\_" in text]
