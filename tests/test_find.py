"""`dlsys find`: the finder's rows in the terminal, ranked as on the page."""

import itertools
import math

import pytest
from browser import offline_page
from docutils.nodes import make_id
from test_book_finder import FIRST, MESSAGES, QUERIES, STRANGE

from dlsys import cli, find
from dlsys_helpers import catalog
from dlsys_watch.rules import all_rules
from tools import book_finder, finder_record, finder_words
from tools.nightly import mark_nightly

ROWS = find.rows()
KNOWN = find.index(ROWS)
PHRASES = [phrase["said"] for name in finder_record.PHRASES
           for phrase in finder_record.phrases(name)][::3]  # a third shows whether two counts agree


def test_the_rows_are_those_of_the_page():
    made = book_finder.rows_file(book_finder.built_lessons())
    assert find.STORED.read_text("utf-8") == made, ".venv/bin/python -m tools.book_finder"


def test_a_row_names_the_rules_of_its_traps():
    stored = {cause["trap"]: set(cause["rules"]) for row in ROWS for cause in row["causes"]
              if "trap" in cause}
    assert stored.keys() == {trap.id for trap in catalog.traps()}
    wanted = {trap: {rule.id for rule in all_rules() if rule.trap == trap} for trap in stored}
    assert stored == wanted


def test_phrases_of_people_who_do_not_know_the_cause_find_it_as_often_as_recorded():
    assert finder_record.stale() == []
    assert finder_record.fallen() == []


def test_a_count_below_its_floor_is_told_with_what_to_do(monkeypatch):
    got = finder_record.RECORD.entries()["fresh"]
    monkeypatch.setitem(finder_record.FLOORS["fresh"], "honest", got["honest"] + 1)
    [line] = finder_record.fallen()
    assert f"got {got['honest']} of {got['without']}" in line
    assert f"expected at least {got['honest'] + 1}" in line


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


SAID = [(["loss", "stuck"], "04.5", 1), (["loss", "stuck", "low"], "04.5", 1),
        (["stuck", "low"], "09.3", 1), (["driver", "stuck"], find.NONE, 1)]


def test_a_word_speaks_for_the_cause_whose_phrases_have_it():
    told = finder_words.trained(SAID)
    # As scikit-learn smooths it: 1 + log((1 + phrases) / (1 + phrases with the word)).
    assert {word: rare for word, (rare, *_) in told["words"].items()} == {
        "driver": 192, "loss": 151, "low": 151, "stuck": 100}
    assert told["causes"] == [find.NONE, "04.5", "09.3"]
    for word, place in (("loss", 1), ("driver", 0)):
        _, *pairs = told["words"][word]
        weights = dict(zip(itertools.accumulate(pairs[::2]), pairs[1::2], strict=True))
        assert max(weights, key=weights.get) == place


def test_a_cause_is_as_likely_as_the_softmax_of_its_words(monkeypatch):
    said = {"causes": [find.NONE, "04.5"], "bias": [5, -5],
            "words": {"loss": [300, 1, 20], "nan": [400, 0, -10, 1, 10]}}
    monkeypatch.setattr(find, "synonyms", dict)
    monkeypatch.setattr(find, "stored", lambda: {"said": said})
    # A vector (0.6, 0.8): 0.5 - 0.8 * 1 beside -0.5 + 0.6 * 2 + 0.8 * 1.
    one, other = math.exp(-0.3), math.exp(1.5)
    assert find.likely(["loss", "nan", "loss", "zebra"]) == pytest.approx(
        {find.NONE: one / (one + other), "04.5": other / (one + other)}, abs=1e-9)
    assert find.likely(["zebra"]) == {}


def test_a_word_speaks_for_the_groups_it_is_in():
    one = find.widened(["segfault", "abort", "segfault"])
    assert one == ["segfault", "abort", "~crash"]
    assert find.widened(find.plain("killed")) == ["crash", "~crash", "~preempt"]
    assert find.widened(["zebra", "zebra"]) == ["zebra"]


def test_a_group_counts_less_than_a_word_as_rare():
    said = [(["loss", "~high"], "04.5", 1), (["stuck"], find.NONE, 1)]
    told = finder_words.trained(said)
    less = finder_words.GROUP * told["words"]["loss"][0]
    assert told["words"]["~high"][0] == pytest.approx(less, abs=1)  # both are rounded


def test_phrases_that_stand_are_not_learnt_again(monkeypatch):
    monkeypatch.setattr(finder_words, "read", lambda rows: SAID)
    told = finder_words.weights([], {})
    monkeypatch.setattr(finder_words, "trained", lambda said: {"causes": "anew"})
    assert finder_words.weights([], told) is told
    monkeypatch.setattr(finder_words, "read", lambda rows: SAID[1:])
    assert finder_words.weights([], told)["causes"] == "anew"


def test_a_number_that_no_row_has_is_not_told_as_missing():
    assert find.rank(KNOWN, "loss is nan after 31337 steps").missing == []


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """A page of the same rows with the finder's own script."""
    rows = "".join(f"<tr><td>{number}</td></tr>" for number in range(len(ROWS)))
    file = tmp_path_factory.mktemp("finder") / "page.html"
    told = book_finder.script(book_finder.built_lessons())
    script = (book_finder.BOOK / "assets" / "finder" / "finder.js").read_text("utf-8")
    box = book_finder.BOX.partition("<script")[0]
    file.write_text(f'<meta charset="utf-8"><article>{box}<div><div class="symptoms"><table><tbody>'
                    f"{rows}</tbody></table></div></div></article><script>{told}</script>"
                    f"<script>{script}</script>", "utf-8")
    tab = offline_page(browser)
    tab.goto(file.as_uri())
    return tab


@pytest.mark.parametrize("query", [*QUERIES, *MESSAGES, *STRANGE, "zebra", "softmax-twice",
                                   *mark_nightly(PHRASES, PHRASES[::4].__contains__)])
def test_the_terminal_ranks_as_the_page(page, query):
    page.fill("#finder", query)
    said = page.locator(".finder-said").inner_text()
    shown = page.locator(".finder-found tbody tr td:first-child").all_text_contents()
    hits, causes, fits, missing = find.rank(KNOWN, query)
    listed = page.locator(".finder-causes li").all_text_contents()
    assert [ROWS.index(row) for row in hits] == [int(number) for number in shown]
    assert listed == [find.cause_line(cause) for cause in causes]
    assert fits == (not said.startswith("Nothing fits"))
    assert page.locator(".finder-causes").is_visible() == bool(hits)
    if hits:
        assert page.locator(".finder-causes p").inner_text() == (
            find.LIKELY if fits else find.NEAREST)
    assert (f"No row has: {', '.join(missing)}." in said) == bool(missing)


def test_what_is_found_is_printed_with_trap_fault_and_rule(capsys, monkeypatch):
    monkeypatch.setenv("DLSYS_BOOK", "https://book.example/")
    assert cli.main(["find", "decoder", "sees", "the", "future"]) == 0
    causes, first = capsys.readouterr().out.split("\n2. ")[0].split("Signs:\n")
    assert causes.startswith(f"Likeliest causes:\n- {find.cause_line('08.1')}\n")
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
