"""The symptom finder: its rows, and the queries of real life that must find their place."""

import pytest
from browser import offline_page
from test_book_traps import trap_lesson

from dlsys_helpers import catalog
from dlsys_helpers.stages import stage
from tools import book_finder

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
}


def test_a_row_of_a_trap_takes_test_and_fix_from_its_keep_cell():
    row = book_finder.of_trap("seen", "01.1", {1: trap_lesson()})
    assert (row.test, row.fix) == ("Assert it.", "No_grad is\nnot eval.")
    assert "(traps/01-1.md)" in row.page


def test_a_row_for_a_later_stage_says_that_it_is_not_covered():
    row = book_finder.written({"see": "s", "test": "t", "fix": "f", "stage": 12}, {})
    assert row.page == f"Not covered yet: stage 12, {stage(12).title}"


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
    rows = finder.locator(".finder-found tbody tr").all()[:3]
    assert any(place in row.inner_html() for row in rows), [r.inner_text() for r in rows]


@pytest.mark.parametrize(("query", "place"), QUERIES.items())
def test_the_search_of_the_site_begins_with_the_place(searching, query, place):
    page, address = searching
    page.goto(f"{address}?q={query.replace(' ', '+').replace('%', '%25')}")
    page.wait_for_selector(".finder-hits")
    hits = page.locator(".finder-hits li").all()
    assert len(hits) <= 3
    assert any(place in hit.inner_html() for hit in hits) or any(
        place in hit.inner_text() for hit in hits), [h.inner_text() for h in hits]


def test_words_that_fit_nothing_leave_all_rows_and_say_so(finder):
    finder.fill("#finder", "zebra")
    assert "Nothing fits" in finder.locator(".finder-said").inner_text()
    assert finder.locator("div.symptoms:not(.finder-found) tbody tr").first.is_visible()
    assert finder.locator(".finder-found").is_hidden()


def test_without_a_script_all_rows_stand_and_no_box(browser, html):
    page = browser.new_page(java_script_enabled=False)
    page.goto((html / "symptoms.html").as_uri())
    assert page.locator("#finder").is_hidden()
    rows = page.locator("div.symptoms tbody tr")
    assert rows.count() > len(catalog.traps())
    assert all(row.is_visible() for row in rows.all())
    page.close()
