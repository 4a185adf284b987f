"""`dlsys find`: the finder's rows in the terminal, ranked as on the page."""

import itertools
import math

import pytest
from browser import offline_page
from docutils.nodes import make_id
from test_book_finder import FIRST, MESSAGES, QUERIES, STRANGE
from test_units import asked

from dlsys import cli, find, units
from dlsys_helpers import catalog
from dlsys_watch.rules import all_rules
from tools import book_finder, book_units, finder_gate, finder_record, finder_words
from tools.nightly import mark_nightly

ROWS = find.rows()
KNOWN = find.index(ROWS)
PHRASES = [phrase["said"] for name in finder_record.PHRASES
           for phrase in finder_record.phrases(name)][::3]  # a third is enough to compare


def test_an_answer_that_is_wrong_too_often_is_told_with_what_to_do(monkeypatch):
    got = finder_record.RECORD.entries()["unseen"]["mistaken"]
    most = got - 1 - finder_record.SLACK
    monkeypatch.setitem(finder_record.CEILINGS, "unseen", most + 1)
    assert finder_record.fallen() == []
    monkeypatch.setitem(finder_record.CEILINGS, "unseen", most)
    [line] = finder_record.fallen()
    assert line.startswith(f"unseen phrases, mistaken: got {got}, expected at most {got - 1}. Look")


def test_a_likely_answer_without_the_right_cause_is_a_mistake(monkeypatch):
    said = [{"said": "one", "traps": ["01.1"]}, {"said": "two"}, {"said": "three", "cause": "c"},
            {"said": "four"}, {"said": "five", "cause": "c"}]
    answers = {"one": ("likely", "01.1"), "two": (find.UNSURE, "01.1"), "three": ("likely", "01.1"),
               "four": ("very likely", "01.1"), "five": (find.UNSURE, "c")}
    monkeypatch.setattr(finder_record, "phrases", lambda name: said)
    monkeypatch.setattr(find, "rank", lambda known, query: find.Answer(
        [], [answers[query][1]], answers[query][0], []))
    got = finder_record.measure("unseen")
    assert got["mistaken"] == 2
    assert (got["with"], got["without"], got["rows"]) == (1, 2, 2)
    assert (got["found"], got["nothing"], got["hedged"], got["told"]) == (1, 0, 1, 1)


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
    least = got["honest"] + 1 + finder_record.SLACK
    monkeypatch.setitem(finder_record.FLOORS["fresh"], "honest", least - 1)
    assert finder_record.fallen() == []
    monkeypatch.setitem(finder_record.FLOORS["fresh"], "honest", least)
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
    # With scikit-learn's smoothing: 1 + log((1 + phrases) / (1 + phrases with the word)).
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
    # A vector (0.6, 0.8): 0.5 - 0.8 * 1 compared with -0.5 + 0.6 * 2 + 0.8 * 1.
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
    """A page with the same rows and the finder's own script."""
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


LONG = " ".join(f"step {number} loss 0.{number} time {number} ms" for number in range(300))
HOSTILE = {"markup": "<b>loss</b> is &lt;nan&gt; <script>alert(1)</script>",
           "long": LONG, "one word": "x" * 10_000, "German": "der Verlust sinkt nicht",
           "address": "https://example.com/loss/nan?gradient=1 zebra"}


@pytest.mark.parametrize("query", [*QUERIES, *MESSAGES, *STRANGE, "zebra", "softmax-twice",
                                   *HOSTILE.values(),
                                   *mark_nightly(PHRASES, PHRASES[::4].__contains__)])
def test_the_terminal_ranks_as_the_page(page, query):
    page.fill("#finder", query)
    answer, said = find.rank(KNOWN, query), page.locator(".finder-said").inner_text()
    shown = page.locator(".finder-found tbody tr td:first-child").all_text_contents()
    listed = page.locator(".finder-causes li").all_text_contents()
    assert [ROWS.index(row) for row in answer.hits if answer.fits] == [*map(int, shown)]
    assert listed == [find.with_watch(find.cause_line(cause), cause) for cause in answer.causes]
    assert answer.fits == (not said.startswith(find.NONE_OF_OURS))
    assert page.locator(".finder-causes").is_visible() == bool(answer.causes)
    if answer.causes:
        assert page.locator(".finder-causes p").inner_text() == find.HEADINGS[answer.sure]
    steps = page.locator(".finder-search li")
    assert steps.all_text_contents() == find.search()
    assert steps.first.is_visible() == (answer.sure in ("", find.UNSURE))
    assert said.endswith(" ".join(find.notes(answer)))


@pytest.mark.parametrize("query", [
    *QUERIES, *STRANGE, "weight decay", "tied embeddings", "typical batch size", LONG,
    "Flash-Attention 3", "heavy ball velocity update", "flash attention on Hopper",
    *(question for kind in ("seen", "fresh", "strange") for question, _ in asked(kind)[::3])])
def test_the_page_names_the_same_lessons(page, query):
    page.fill("#finder", query)
    box, answer = page.locator(".finder-taught"), find.rank(KNOWN, query)
    named, perhaps = units.rank(query), units.nearest(query, answer)
    said = [box.locator("p").inner_text(),
            *(f"- {item}" for item in box.locator("li").all_text_contents())]
    assert (said if box.is_visible() else []) == (
        units.lines(named) or units.lines(perhaps, units.PERHAPS))
    assert box.locator("a").evaluate_all("all => all.map(a => a.getAttribute('href'))") == [
        book_units.address(unit) for unit in named or perhaps]


@pytest.mark.parametrize("query", ["???", "\u635f\u5931\u4e0d\u4e0b\u964d", "\N{FIRE}"])
def test_text_without_a_word_is_told_what_the_finder_reads(page, query):
    page.fill("#finder", query)
    assert page.locator(".finder-said").inner_text() == find.ENGLISH
    assert not page.locator(".finder-causes").is_visible()
    assert not page.locator(".finder-search").is_visible()
    page.fill("#finder", " ")
    assert page.locator(".finder-said").inner_text() == ""


def test_how_to_search_stands_first_where_no_cause_fits_and_else_last(page, capsys):
    def places(*parts):
        return [page.locator(part).bounding_box()["y"] for part in parts]

    page.fill("#finder", "speaker diarization mixes up voices")
    search, causes = places(".finder-search", ".finder-causes")
    assert search < causes
    page.fill("#finder", "loss")
    causes, signs, search = places(".finder-causes", ".finder-found", ".finder-search")
    assert causes < signs < search
    assert page.locator(".finder-said").inner_text().startswith("Possible: ")
    assert cli.main(["find", "speaker diarization mixes up voices"]) == 1
    said = capsys.readouterr().out
    assert said.index(find.SEARCH) < said.index(find.HEADINGS[""])


def test_the_page_takes_what_is_asked_as_text(page):
    page.fill("#finder", '<img src=x onerror="document.title = 1"> zebra')
    assert page.locator(".finder-said img").count() == 0
    assert page.title() == ""
    assert "zebra" in page.locator(".finder-said").inner_text()


def test_what_is_found_is_printed_with_trap_fault_and_rule(capsys, monkeypatch):
    monkeypatch.setenv("DLSYS_BOOK", "https://book.example/")
    assert cli.main(["find", "decoder", "sees", "the", "future"]) == 0
    causes, first = capsys.readouterr().out.split("\n2. ")[0].split("Signs:\n")
    assert causes.startswith(f"Very likely one of these causes:\n- {find.cause_line('08.1')}; ")
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
    assert said.startswith(find.NONE_OF_OURS)
    assert all(f"- {step}\n" in said for step in find.search())
    assert "Signs:" not in said
    assert f"https://book.example/search.html?q={query.replace(' ', '+')}" in said


def test_words_that_no_row_has_are_named(capsys):
    assert cli.main(["find", "zebra"]) == 1
    assert capsys.readouterr().out.startswith(
        f"{find.NONE_OF_OURS}\nThe finder does not know: zebra.\n{find.ENGLISH}\n{find.SEARCH}\n")


@pytest.mark.parametrize("query", ["the", "", "???", "\u635f\u5931\u4e0d\u4e0b\u964d", "<b></b>"])
def test_a_query_without_a_word_is_one_line(capsys, query):
    assert cli.main(["find", query]) == cli.BAD_INPUT
    assert capsys.readouterr().err == (
        f"dlsys: find: got {query!r}, expected words for what you see, in English, or a number.\n")


def test_a_query_in_another_language_is_told_that_english_is_read(capsys):
    assert cli.main(["find", HOSTILE["German"]]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == [find.NONE_OF_OURS,
                        "The finder does not know: der, verlust, sinkt, nicht.", find.ENGLISH]


def test_tags_addresses_and_entities_are_not_words_and_tokens_are():
    assert find.plain(HOSTILE["markup"]) == find.plain("loss nan alert 1")
    assert find.plain(HOSTILE["address"]) == find.plain("zebra")
    assert find.plain("loss <pad> a < b > c") == find.plain("loss pad a b c")


def test_of_many_unknown_words_the_first_are_named_and_no_more_than_a_part_of_a_long_one():
    words = ["zz" + chr(97 + place) * 3 for place in range(13)]
    [note, _] = find.notes(find.rank(KNOWN, " ".join(words)))
    assert note == f"The finder does not know: {', '.join(words[:10])} and 3 more."
    [note, _] = find.notes(find.rank(KNOWN, HOSTILE["one word"]))
    assert note == f"The finder does not know: {'x' * 40}."


def test_where_most_words_are_unknown_a_possible_cause_is_none():
    """The finder knows two of five words, "memory" and "error", and they say little."""
    answer = find.rank(find.index(find.rows()), "NVLink ECC uncorrectable memory error")
    assert not answer.fits
    assert any("dmesg" in step for step in find.search())


def test_of_a_long_text_the_ends_are_read_and_it_says_so():
    answer = find.rank(KNOWN, LONG)
    ends = find.rules()["ends"]
    assert answer.skipped == len(list(find.tokens(LONG))) - 2 * ends > 0
    assert find.long_text() in find.notes(answer)
    assert find.excerpt([*range(5 * ends)]) == [*range(ends), *range(4 * ends, 5 * ends)]
    assert find.rank(KNOWN, "loss is nan").skipped == 0


@pytest.mark.parametrize("query", [*QUERIES, *MESSAGES])
def test_signs_and_causes_agree(query):
    answer = find.rank(KNOWN, query)
    named = [set(find.causes_of(row)) for row in answer.hits]
    assert all(named_here.intersection(answer.causes) for named_here in named)
    assert set(answer.causes) <= set.union(*named)


def test_each_cause_that_is_shown_tells_its_rules_not_only_the_first(capsys):
    row = next(row for row in ROWS if len(row["causes"]) > 1 and not row["causes"][0].get("rules")
               and "trap" in row["causes"][0] and row["causes"][1].get("rules"))
    _, first, other, *_ = find.printed_row(row)
    assert first.endswith("; dlsys watch has no rule for it")
    assert other.endswith(f"; {find.watch_says(row['causes'][1]['rules'])}")
    assert cli.main(["find", row["see"]]) == 0
    listed = capsys.readouterr().out.partition("Signs:")[0].splitlines()[1:]
    traps = [cause for cause in find.rank(KNOWN, row["see"]).causes if cause in find.watched()]
    told = {line.split()[1]: line for line in listed}
    assert all(told[trap].endswith(find.watch_line(trap)) for trap in traps)


GATE = {"bias": -1, "odds": 2, "best": 0.5, "quoted": 0.7, "alone": 0.4}


@pytest.mark.parametrize(("shares", "exact", "much"), [
    ({find.NONE: 0.2, "04.5": 0.6, "09.3": 0.2}, False,
     1 / (1 + math.exp(1 - 2 * math.log(3) - 0.5 * math.log(0.6)))),
    ({find.NONE: 0.9, "04.5": 0.1}, False,
     1 / (1 + math.exp(1 - 2 * math.log(1 / 9) - 0.5 * math.log(0.1)))),
    ({find.NONE: 0.9, "04.5": 0.1}, True, 0.7), ({}, False, 0), ({}, True, 0.7)])
def test_belief_is_a_logistic_curve_over_the_best_share_and_that_of_none(
        monkeypatch, shares, exact, much):
    monkeypatch.setattr(find, "rules", lambda: {"gate": GATE})
    assert find.belief(shares, exact, 2) == pytest.approx(much)


def test_one_word_alone_is_no_more_than_possible(monkeypatch):
    answer = find.rank(KNOWN, "loss")
    assert (answer.sure, find.rank(KNOWN, "loss loss").sure) == (find.UNSURE, find.UNSURE)
    monkeypatch.setattr(find, "rules", lambda: {"gate": GATE})
    assert find.belief({find.NONE: 0.01, "04.5": 0.99}, False, 1) == GATE["alone"]


def test_how_sure_the_finder_is_is_said_in_words():
    levels = find.rules()["sure"]
    assert [least for least, _ in levels] == sorted((least for least, _ in levels), reverse=True)
    assert [word for _, word in levels] == [word for word in find.HEADINGS if word]
    assert levels[-1][1] == find.UNSURE
    assert [find.in_words(least) for least, _ in levels] == [word for _, word in levels]
    assert find.in_words(levels[-1][0] - 0.01) == ""


def test_the_file_holds_no_markup():
    texts = [text for row in ROWS
             for text in (row["see"], *row["also"], row["test"], row.get("page", ""))]
    assert not [text for text in texts if "**" in text.replace("`**`", "") or "](" in text
                or "\\_" in text]


# ---- how far to trust the finder

def test_a_repository_is_in_one_fold_however_it_is_spelled():
    places = {finder_gate.fold({"said": said, "from": source}) for said, source in (
        ("a", "Owner/Name#1"), ("b", "owner/name#22"))}
    assert len(places) == 1
    folds = {finder_gate.fold({"from": f"owner/name{number}#1"}) for number in range(40)}
    assert folds == set(range(finder_gate.FOLDS))


def test_the_evidence_is_the_best_share_beside_none_and_by_itself():
    odds, alone = finder_gate.evidence({find.NONE: 0.2, "04.5": 0.6, "09.3": 0.2})
    assert (odds, alone) == (pytest.approx(math.log(3)), pytest.approx(math.log(0.6)))
    assert finder_gate.evidence({find.NONE: 0, "04.5": 1})[0] == pytest.approx(
        -math.log(find.LEAST))


def test_the_curve_rises_with_the_evidence_and_kinds_count_alike():
    strong, weak = (3.0, -0.1), (-3.0, -3.0)
    found = [(strong, True, True)] * 40 + [(weak, True, False)] * 10 + [(weak, False, False)] * 5
    bias, odds, best = finder_gate.fitted(found)
    assert odds > 0
    assert bias + odds * strong[0] + best * strong[1] > 2
    assert bias + odds * weak[0] + best * weak[1] < -2


@pytest.mark.nightly
def test_the_finders_curve_is_the_one_that_is_fitted():
    gate = find.rules()["gate"]
    assert finder_gate.fitted(finder_gate.asked()) == pytest.approx(
        (gate["bias"], gate["odds"], gate["best"]), abs=0.3)
