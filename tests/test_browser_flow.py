"""A lesson part by part, in a browser: the row of dots, the core path, all on one page."""

import re
import shutil

import pytest
from browser import forgetful_phone, offline_page, violations
from playwright.sync_api import expect

from dlsys_helpers.explorers import write_assets
from tools import book

HEADER = book.GUESS_FIRST.partition("html\n")[2].rpartition("```")[0].replace("../", "")


def section(id, title, core=False):
    mark = ' <span class="core">core</span>' if core else ""
    way = '<p class="step-next">Next on the core path.</p>' if core else ""
    return (f'<section id="{id}"><h2>{title}{mark}<a class="headerlink" href="#{id}">#</a></h2>'
            f'<p>About {title}.</p><p id="deep-{id}">Deep in {title}.</p>{way}</section>')


PARTS = ["Begin", "Concept", "01.1 One", "01.2 Two", "01.3 Three", "Quiz"]
PAGE = f"""<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">
<title>Flow</title><link rel="stylesheet" href="course.css"></head><body><main>
<article class="bd-article"><section id="lesson"><h1>1. Lesson</h1>{HEADER}<p>The hook.</p>
{section("concept", "Concept")}{section("trap-01-1", "01.1 One", True)}
{section("trap-01-2", "01.2 Two")}{section("trap-01-3", "01.3 Three", True)}
{section("quiz", "Quiz")}</section></article></main></body></html>"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flow")
    write_assets(folder / "explorers", "guess")
    shutil.copytree(book.BOOK / "assets" / "site", folder / "site")
    shutil.copyfile(book.BOOK / "_static" / "course.css", folder / "course.css")
    (folder / "page.html").write_text(PAGE, "utf-8")
    return (folder / "page.html").as_uri()


@pytest.fixture(scope="module")
def tab(browser):
    opened = offline_page(browser)
    yield opened
    opened.close()


@pytest.fixture
def page(tab, address):
    """The page in a browser that remembers nothing yet; afterwards, check that no script failed."""
    yield forgetful_phone(tab, address)
    assert tab.problems == []


def shown(page):
    """The titles of the visible parts."""
    texts = ["The hook.", *(f"About {title}." for title in PARTS[1:])]
    return [title for title, text in zip(PARTS, texts, strict=True)
            if page.get_by_text(text).is_visible()]


def dots(page):
    return [dot.get_attribute("aria-label")
            for dot in page.get_by_role("navigation").get_by_role("link").all()]


def test_a_lesson_begins_with_its_first_part_and_leads_through_all(page):
    seen = []
    for title in PARTS:
        seen += shown(page)
        assert page.locator("[aria-current]").get_attribute("aria-label").startswith(title)
        if title != PARTS[-1]:
            page.locator(".flow-on").click()
    assert seen == PARTS
    expect(page.locator(".flow-on")).to_have_count(0)
    page.locator(".flow-back").click()
    assert shown(page) == ["01.3 Three"]


def test_each_part_has_a_dot_with_its_name(page):
    assert dots(page) == ["Begin", "Concept", "01.1 One (core)", "01.2 Two", "01.3 Three (core)",
                          "Quiz"]
    page.get_by_role("link", name="01.2 Two").click()
    assert shown(page) == ["01.2 Two"]


def test_the_core_path_passes_over_the_other_traps_and_is_remembered(page):
    page.get_by_role("button", name="Core path only").click()
    assert dots(page) == ["Begin", "Concept", "01.1 One (core)", "01.3 Three (core)", "Quiz"]
    page.get_by_role("link", name="01.1 One").click()
    expect(page.locator(".flow-on")).to_have_text("01.3 Three \N{RIGHTWARDS ARROW}")
    expect(page.get_by_text("Next on the core path.").first).to_be_hidden()
    page.reload()
    expect(page.locator(".flow-on")).to_have_text("01.3 Three \N{RIGHTWARDS ARROW}")
    page.get_by_role("button", name="All traps").click()
    expect(page.locator(".flow-on")).to_have_text("01.2 Two \N{RIGHTWARDS ARROW}")


@pytest.mark.parametrize("place", ["trap-01-2", "deep-trap-01-2"])
def test_an_address_opens_the_part_that_it_leads_to(page, address, place):
    page.goto(f"{address}#{place}")
    assert shown(page) == ["01.2 Two"]
    expect(page.locator(f"#{place}")).to_be_in_viewport()
    page.goto(f"{address}#nowhere")
    assert shown(page) == ["Begin"]


def test_the_whole_lesson_stands_on_one_page_and_that_is_remembered(page):
    page.get_by_role("button", name="The whole lesson on one page").click()
    assert shown(page) == PARTS
    expect(page.locator(".flow-on")).to_be_hidden()
    page.reload()
    assert shown(page) == PARTS
    page.get_by_role("button", name="One part at a time").click()
    assert shown(page) == ["Begin"]


def test_paper_has_the_whole_lesson(page):
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown(page) == PARTS
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert shown(page) == ["Begin"]


def test_what_the_browser_finds_in_a_hidden_part_opens_it(page):
    page.locator("#quiz").dispatch_event("beforematch")
    assert shown(page) == ["Quiz"]


def test_a_browser_that_remembers_nothing_goes_part_by_part(browser, address):
    page = offline_page(browser)
    page.add_init_script("Object.defineProperty(window, 'localStorage', "
                         "{ get() { throw new DOMException('denied', 'SecurityError'); } })")
    page.goto(address)
    page.get_by_role("button", name="Core path only").click()
    assert len(dots(page)) == 5
    assert page.problems == []
    page.close()


def test_without_javascript_it_is_one_long_page(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert shown(page) == PARTS
    expect(page.get_by_role("button")).to_have_count(0)
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(page, theme):
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    # This page has no theme, so add the theme's background, text and link colours.
    page.add_style_tag(content="html[data-theme=dark] { background: #14181e; color: #ced6dd; }"
                               "a { color: var(--pst-color-link); }")
    for _ in range(2):
        assert violations(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag22aa"]}) == []
        page.locator(".flow-on").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert re.search("flow-inside", page.locator("html").get_attribute("class"))
