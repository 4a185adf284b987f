"""The repair bench in a real browser: by mouse and keyboard, on a phone, without its script."""

import re
import shutil

import pytest
from browser import forgetful_phone, offline_page, violations
from playwright.sync_api import expect

from dlsys_helpers import catalog
from tools import book, book_repair, proof, repair_candidates

ID = "02.3"
BENCH = repair_candidates.bench(ID)
FIRST = BENCH.mistakes[0]
NUMBER = "<pre>share: 0.0 %</pre>"
PAGE = f"""<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">
<title>Repair</title><link rel="stylesheet" href="course.css"><style>
html {{ --pst-color-text-base: #222; --pst-color-text-muted: #48566b; }}
html[data-theme=dark] {{ --pst-color-text-base: #ced6dd; --pst-color-text-muted: #9ca4af;
color: #ced6dd; background: #14181e; }}</style></head>
<body><main class="bd-article"><h1>Repair</h1>{book_repair.FILES.format(up="")}
{book_repair.drawn(catalog.trap(ID), BENCH, NUMBER)}<p>After it.</p></main></body></html>"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repair")
    shutil.copytree(book.BOOK / "assets" / "site", folder / "site")
    shutil.copy(book.BOOK / "_static/course.css", folder / "course.css")
    (folder / "page.html").write_text(PAGE, "utf-8")
    return (folder / "page.html").as_uri()


@pytest.fixture(scope="module")
def tab(browser):
    opened = offline_page(browser)
    yield opened
    opened.close()


@pytest.fixture
def page(tab, address):
    yield forgetful_phone(tab, address)
    assert tab.problems == []


def choice(page, code):
    """The button of the candidate whose whole code this is."""
    return page.locator(".repair-choice", has_text=re.compile(f"^{re.escape(code)}$"))


def test_nothing_is_marked_before_a_choice_and_each_choice_says_what_the_check_says(page):
    expect(page.locator(".repair-choice")).to_have_count(1 + len(BENCH.mistakes))
    expect(page.locator(".tried")).to_have_count(0)
    expect(page.get_by_text("Passed.")).to_have_count(0)
    told = proof.feedback_by_mistake(ID)
    for mistake in BENCH.mistakes:
        choice(page, mistake.code).click()
        said = page.locator("li", has=choice(page, mistake.code)).get_by_role("status")
        expect(said).to_contain_text(told[mistake.name])
    choice(page, BENCH.right).click()
    right = page.locator("li.right").get_by_role("status")
    expect(right).to_contain_text("Passed. The check accepts it. Found at try 5 of 5.")
    expect(right).to_contain_text("share: 0.0 %")
    expect(page.locator("li.right")).to_have_count(1)



def test_the_keyboard_does_it_all_and_keeps_its_place(page):
    button = choice(page, FIRST.code)
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_be_focused()
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(page.get_by_text("Not right yet.")).to_be_visible()
    page.keyboard.press("Space")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(page.get_by_text("Not right yet.")).to_have_count(0)
    page.keyboard.press("Space")
    choice(page, BENCH.right).click()
    expect(page.get_by_text("Found at try 2 of 5.")).to_be_visible()


def test_each_visit_has_an_order_of_its_own(page):
    def order():
        page.reload()
        return tuple(page.locator(".repair-choice").all_inner_texts())
    seen = {order() for _ in range(12)}
    assert len(seen) > 1
    assert {tuple(sorted(one)) for one in seen} == {tuple(sorted(
        [BENCH.right, *(m.code for m in BENCH.mistakes)]))}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_narrow_phone_shows_every_line_and_nobody_is_shut_out(page, theme):
    page.set_viewport_size({"width": 320, "height": 700})
    page.evaluate("(theme) => document.documentElement.dataset.theme = theme", theme)
    for code in (FIRST.code, BENCH.right):
        choice(page, code).click()
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    height, line = choice(page, BENCH.right).locator("code").evaluate(
        "(node) => [node.offsetHeight, parseFloat(getComputedStyle(node).lineHeight)]")
    assert height >= line * len(BENCH.right.splitlines()), "its lines run into one"
    assert violations(page) == []


def test_without_a_script_each_verdict_is_folded_below_its_code(browser, address):
    page = browser.new_page(java_script_enabled=False)
    page.goto(address)
    expect(page.locator("ol details")).to_have_count(1 + len(BENCH.mistakes))
    expect(page.get_by_text("Passed.")).to_be_hidden()
    page.locator("li[data-right] summary").click()
    expect(page.get_by_text("Passed.")).to_be_visible()
    page.close()
