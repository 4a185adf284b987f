"""The symptom finder: its rows, and real-life queries that must find the right page."""

import re

import pytest
import yaml
from browser import offline_page
from test_book_traps import trap_lesson

from dlsys import find
from dlsys_helpers import catalog, paths
from tools import book_finder, finder_record, finder_words, trap_rows

# What people type, and the page or the words of the row that must be among the first three.
QUERIES = {
    "loss stuck at 0.693": "03-4", "CUDA out of memory during validation": "02-5",
    "why is my validation loss lower than training loss": "Validation loss lower",
    "loss is nan": "Loss is NaN", "dead relu": "01-4", "loss stuck at 1.46": "03-1",
    "grad can be implicitly created only for scalar outputs": "02-2",
    "model gives different predictions every time for same input": "01-1",
    "memory keeps increasing every iteration": "02-5",
    "accuracy stuck at 10% mnist not learning": "01-3",
    "gradient accumulation gives different results than large batch": "02-4",
    "clip_grad_norm_ not working gradients still exploding": "03-3",
    "Using a target size that is different to the input size": "03-2",
    "Detected call of lr_scheduler.step() before optimizer.step()": "04-3",
    "learning rate warmup": "04-6", "Adam worse than SGD same learning rate": "04-2",
    "exclude LayerNorm and bias from weight decay": "04-1",
    "for loop over tensor slow": "01-5", "results not reproducible with same seed": "reproducible",
    "AdamW vs Adam different results": "04-4",
    "element 0 of tensors does not require grad and does not have a grad_fn": "five-switches",
    "Trying to backward through the graph a second time": "five-switches",
    "DDP hangs": "09-3", "deadlock": "09-3",
    "overfitting": "06-3", "learning rate schedule has no effect": "04-3",
    "training accuracy 100% test accuracy 50%": "06-3", "gpu utilization": "09-10",
    "gpu utilisation": "09-10", "weight initialisation": "05-4",
    "val better than train": "Validation loss lower",
    "dataloader workers return the same random numbers": "12-3",
}
FIRST = {"overfitting", "val better than train", "gpu utilization", "DDP hangs", "deadlock",
         "training accuracy 100% test accuracy 50%", "learning rate schedule has no effect"}
# Queries that no row is about, and their words that no row contains.
STRANGE = {"speaker diarization mixes up voices": "speaker, diarization, voices",
           "the webcam image flickers": "webcam, flickers",
           "could not download the license": "license"}


def test_each_source_is_a_public_thread_of_its_own():
    told = yaml.safe_load((book_finder.BOOK / "symptoms.yml").read_text("utf-8"))["groups"]
    rows = [row for group in told.values() for row in group if "source" in row]
    sources = [source for row in rows for source in row["source"]]
    assert len(rows) >= 120
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", source) for source in sources)
    assert all(len(row["source"]) == len(set(row["source"])) for row in rows)


def test_the_phrases_come_from_other_repositories_than_the_rows():
    told = yaml.safe_load((book_finder.BOOK / "symptoms.yml").read_text("utf-8"))["groups"]
    ours = {source.partition("#")[0].lower() for group in told.values() for row in group
            for source in row.get("source", ())}
    sets = [{phrase["from"].partition("#")[0].lower() for phrase in finder_record.phrases(name)}
            for name in finder_record.PHRASES]
    counted = yaml.safe_load(finder_words.SAID.read_text("utf-8"))
    assert set.union(*sets).isdisjoint(
        phrase["from"].partition("#")[0].lower() for phrase in counted["gathered"])
    assert len(set.union(ours, *sets)) == len(ours) + sum(map(len, sets))
    phrases = [phrase for name in finder_record.PHRASES for phrase in finder_record.phrases(name)]
    assert len(phrases) == len({phrase["said"] for phrase in phrases}) == 169 + 167 + 90 + 47 + 44
    assert {trap for phrase in phrases for trap in phrase.get("traps", ())} <= {
        trap.id for trap in catalog.traps()}


def test_phrases_are_told_for_every_trap_and_for_causes_that_a_row_names():
    told = yaml.safe_load(finder_words.SAID.read_text("utf-8"))
    named = {cause for row in find.rows() for cause in find.causes_of(row)}
    traps = {trap.id for trap in catalog.traps()}
    assert traps <= told["causes"].keys() <= named
    assert {trap for phrase in told["gathered"] for trap in phrase.get("traps", ())} <= traps
    sentences = {phrase["cause"] for phrase in told["gathered"] if "cause" in phrase}
    assert {phrase["cause"] for phrase in finder_record.phrases("unseen") if "cause" in phrase} | (
        sentences) <= told["causes"].keys() & named
    assert all(len(said.splitlines()) >= trap_rows.PHRASES
               for cause, said in told["causes"].items() if cause in traps)


def test_spellings_are_no_words_of_two_groups():
    told = yaml.safe_load((book_finder.BOOK / "finder.yml").read_text("utf-8"))["same"]
    words = [word for group in told for word in group]
    assert len(words) == len(set(words))


def test_a_group_of_close_words_has_its_own_name_and_words_that_are_read():
    rules = book_finder.rules()
    groups = [group.split() for group in rules["like"]]
    names = [group[0] for group in groups]
    assert len(names) == len(set(names))
    assert all(len(group) == len(set(group)) >= 2 for group in groups)
    assert {token for group in groups for token in group}.isdisjoint(rules["idle"])


def test_levels_are_the_loss_of_a_guess_and_the_floor_of_a_second_softmax():
    levels = book_finder.rules()["levels"]
    assert ["guessing", 2.3026] in levels
    assert ["guessing", 0.6931] in levels
    assert ["second", 1.4612] in levels


def test_a_row_of_a_trap_takes_test_and_fix_from_its_keep_cell():
    row = book_finder.row_from_entry({"see": "seen", "trap": "01.1"}, {1: trap_lesson()})
    assert (row.test, row.fix) == ("Assert it.", "no_grad is\nnot eval.")
    assert "(traps/01-1.md)" in book_finder.places(row)
    rules = "`eval-in-train-mode`, `steps-in-eval-mode` or `never-in-train-mode`"
    place, _, gallery = book_finder.places(row).partition(f"; dlsys watch says {rules}")
    assert place.startswith("[01.1 ")
    assert gallery.startswith('; <a href="gallery.html#fault-')


def test_several_causes_are_numbered_and_one_without_a_trap_says_so():
    row = book_finder.row_from_entry({"see": "s", "causes": ["a slow loader", "01.1"], "test": "t"},
                              {1: trap_lesson()})
    first, second = book_finder.places(row).split("<br>")
    assert first == "1. a slow loader; no trap shows it"
    assert second.startswith("2. [01.1 ")
    assert (row.test, row.fix) == ("t", "no_grad is\nnot eval.")


def test_other_words_are_cut_at_commas_but_not_in_parentheses():
    assert book_finder.other_words({"also": "a b, c (N, 1), d"}) == ["a b", "c (N, 1)", "d"]


def test_the_page_shows_the_first_other_words_and_the_finder_knows_all():
    row = book_finder.Row("s", [f"w{number}" for number in range(9)], "t", "f", [], "p")
    assert book_finder.cells(row)[0] == "**s** Also: w0, w1, w2, w3, w4, w5"
    assert book_finder.stored_row(row)["also"] == row.also


def test_a_row_without_a_trap_leads_to_a_part_of_a_lesson_or_says_that_none_shows_it():
    own = {"see": "s", "test": "`t`", "fix": "f"}
    assert book_finder.cells(book_finder.row_from_entry(own, {})) == (
        "**s**", "`t`", "f", "No trap shows it")
    row = book_finder.row_from_entry(own | {"lesson": 1, "part": "Further: a part"}, {})
    assert row.page == ('<a href="notebooks/01_activations.html#further-a-part">'
                        "Lesson 1: a part</a>")


@pytest.mark.parametrize(("page", "leads"), [
    ("No trap shows it", ("Symptom finder", "symptoms.html?q=Loss+%3C+1")),
    ("[Which loss](guide_loss.md)", ("Which loss", "guide_loss.html")),
    ('<a href="notebooks/02.html#a">Lesson 2: a</a>', ("Lesson 2: a", "notebooks/02.html#a")),
])
def test_the_search_leads_from_a_row_to_its_page_or_to_that_row(page, leads):
    assert book_finder.link_of(book_finder.Row("Loss < 1", [], "t", "f", [], page)) == leads


@pytest.mark.parametrize("guide", ["guide_loss", "guide_schedule"])
def test_the_signs_of_a_guide_are_rows_word_for_word(guide):
    text = (book_finder.BOOK / f"{guide}.md").read_text("utf-8")
    rows = book_finder.signs(guide)
    assert len(rows) >= 6
    assert all(f"| {row.see} | {row.fix} |" in text for row in rows)


def test_a_guide_without_signs_is_an_error():
    with pytest.raises(ValueError, match="no table under '## Signs of"):
        book_finder.signs("guide_optimizer")


def test_each_trap_has_a_row_that_leads_to_its_page(finder):
    hrefs = finder.locator("div.symptoms tbody a").evaluate_all("all => all.map(a => a.href)")
    assert [t.id for t in catalog.traps()
            if not any(h.endswith(f"traps/{t.id.replace('.', '-')}.html") for h in hrefs)] == []


@pytest.fixture(scope="module")
def finder(browser, html):
    tab = offline_page(browser)
    tab.goto((html / "symptoms.html").as_uri())
    tab.wait_for_selector("#finder")
    return tab


@pytest.fixture(scope="module")
def searching(browser, html):
    return offline_page(browser), (html / "search.html").as_uri()


@pytest.mark.parametrize(("query", "place"), QUERIES.items())
def test_the_filter_finds_the_place_in_three_rows(finder, query, place):
    finder.fill("#finder", query)
    rows = finder.locator(".finder-found tbody tr").all()[:1 if query in FIRST else 3]
    assert find.NONE_OF_OURS not in finder.locator(".finder-said").inner_text()
    assert any(place in row.inner_html() for row in rows), [r.inner_text() for r in rows]


# test_find tries all of them and compares the order on the page with its own.
@pytest.mark.parametrize(("query", "place"), [
    pytest.param(*pair, marks=() if pair[0] in FIRST else pytest.mark.nightly)
    for pair in QUERIES.items()])
def test_the_search_of_the_site_begins_with_the_place(searching, query, place):
    page, address = searching
    page.goto(f"{address}?q={query.replace(' ', '+').replace('%', '%25')}")
    page.wait_for_selector(".finder-hits")
    hits = page.locator(".finder-hits li").all()
    assert len(hits) <= 3
    assert any(place in hit.inner_html() for hit in hits) or any(
        place in hit.inner_text() for hit in hits), [h.inner_text() for h in hits]


# Complete messages as torch prints them.
MESSAGES = {
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, "
    "cuda:0 and cpu! (when checking argument for argument mat1 in method wrapper_CUDA_addmm)":
        "09-14",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 23.69 GiB of which 1.2 GiB is free.": "CUDA out of memory",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 784x10)": "07-11",
    "RuntimeError: one of the variables needed for gradient computation has been modified by an "
    "inplace operation: [torch.FloatTensor [10, 5]], output 0 of AsStridedBackward0": "02-3",
}


@pytest.mark.parametrize(("message", "place"), MESSAGES.items())
def test_a_whole_message_fits_the_row_that_has_three_of_its_words(finder, message, place):
    finder.fill("#finder", message)
    assert find.NONE_OF_OURS not in finder.locator(".finder-said").inner_text()
    assert place in finder.locator(".finder-found tbody tr").first.inner_html()


@pytest.mark.parametrize(("query", "lacks"), STRANGE.items())
def test_the_finder_says_when_no_row_is_about_what_is_asked(finder, searching, query, lacks):
    finder.fill("#finder", query)
    said = finder.locator(".finder-said").inner_text()
    assert said == f"{find.NONE_OF_OURS} The finder does not know: {lacks}."
    assert finder.locator(".finder-search li").all_text_contents() == find.search()
    page, address = searching
    page.goto(f"{address}?q={query.replace(' ', '+')}")
    page.wait_for_selector(".finder-more")
    assert page.locator(".finder-hits").count() == 0
    page.locator(".finder-more a").click()
    page.wait_for_selector(".finder-search li")
    assert page.locator("#finder").input_value() == query
    page.locator(".finder-pages").click()
    page.wait_for_selector(".finder-more")


def test_coming_back_to_the_finder_finds_what_was_asked(finder):
    start = finder.url
    finder.fill("#finder", "loss is nan")
    said = finder.locator(".finder-said").inner_text()
    finder.locator(".finder-found tbody a").first.click()
    finder.wait_for_selector("article h1")
    finder.go_back()
    finder.wait_for_selector(".finder-found tbody tr")
    assert finder.locator("#finder").input_value() == "loss is nan"
    assert finder.locator(".finder-said").inner_text() == said
    finder.fill("#finder", "")
    assert finder.url == start.partition("?")[0]


def test_words_that_fit_nothing_leave_all_rows_and_say_so(finder):
    finder.fill("#finder", "zebra")
    said = finder.locator(".finder-said").inner_text()
    assert said == f"{find.NONE_OF_OURS} The finder does not know: zebra. {find.ENGLISH}"
    assert finder.locator("div.symptoms:not(.finder-found) tbody tr").first.is_visible()
    assert finder.locator(".finder-found").is_hidden()


def test_the_page_says_how_well_it_answers(html):
    got = finder_record.RECORD.entries()
    text = " ".join((html / "symptoms.html").read_text("utf-8").split())
    newest, unseen = got["newest"], got["unseen"]
    assert (f"The cause of {unseen['with']} of these phrases is a trap. For {unseen['shown']} of "
            "them, the right trap is among the three causes shown") in text
    every = sum(unseen[kind] for kind in ("with", "without", "rows"))
    assert f"{unseen['mistaken']} of the {every} phrases" in text
    assert f"trap for {newest['shown']} of {newest['with']} phrases" in text
    later = got["later"]
    assert f"For {later['nothing']} of the {later['without']} phrases whose cause is in" in text


def test_without_a_script_all_rows_stand_and_no_box(browser, html):
    page = browser.new_page(java_script_enabled=False)
    page.goto((html / "symptoms.html").as_uri())
    assert page.locator("#finder").is_hidden()
    rows = page.locator("div.symptoms tbody tr")
    assert rows.count() > len(catalog.traps())
    assert all(row.is_visible() for row in rows.all())
    page.close()


def test_an_answer_without_a_cause_leads_to_the_method():
    assert 'href="method.html"' in book_finder.BOX.partition("finder-search")[2]
    assert 'href="incidents.html"' in book_finder.BOX.partition("finder-search")[2]


def test_the_log_of_the_method_is_the_report_that_it_names():
    """It repeats book/same.md: what agrees, and the loss that is twice as large as the other."""
    report = (paths.ROOT / "book" / "same.md").read_text("utf-8").partition("```text")[2]
    for said in ("weights before the first step: 4 agree", "data: 1 agree",
                 "output of a module: 4 agree", "First difference: step 1, loss",
                 "2 times the first's"):
        assert said in report
    log = (paths.ROOT / "book" / "method.md").read_text("utf-8")
    assert "all four agree" in log
    assert "the second is two times the first" in log
