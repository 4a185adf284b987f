"""The built book as a reader meets it: its files, then its pages in a browser without a network."""

import json
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
import yaml
from browser import offline_page, violations
from bs4 import BeautifulSoup

from dlsys_helpers import catalog, checking
from dlsys_helpers.paths import EXERCISES, NOTEBOOKS
from dlsys_helpers.stages import stage
from tools import book

LESSON, WORKSHEET, START = "notebooks/01_activations", "exercises/01_activations", "index"
GENERATED = {"search.html", "genindex.html"}  # pages of the theme without content of ours


@cache
def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text("utf-8"), "html.parser")


def pages(html: Path) -> dict[str, BeautifulSoup]:
    return {str(p.relative_to(html)): soup(p) for p in sorted(html.rglob("*.html"))
            if p.name not in GENERATED and "_static" not in p.parts}


def article(html: Path, name: str) -> str:
    return soup(html / f"{name}.html").find("article").get_text(" ", strip=True)


# ---- files

def test_every_internal_link_and_anchor_leads_somewhere(html):
    broken = []
    for name, page in pages(html).items():
        for a in page.find_all("a", href=True):
            parts = urlsplit(a["href"])
            if parts.scheme in {"http", "https"}:
                continue
            target = (html / name).parent / unquote(parts.path) if parts.path else html / name
            anchor = unquote(parts.fragment)
            if not target.is_file() or (
                    anchor and target.suffix == ".html" and not soup(target.resolve()).find(
                        id=anchor)):
                broken.append(f"{name}: {a['href']}")
    assert broken == []


def test_no_page_loads_anything_from_elsewhere(html):
    loads = [f"{name}: {tag[attribute]}" for name, page in pages(html).items()
             for tag in page.find_all(["script", "link", "img", "iframe"])
             for attribute in ("src", "href") if tag.get(attribute, "").startswith(("http", "//"))]
    assert loads == []


def test_only_pages_with_formulas_carry_mathjax(html):
    for name, page in pages(html).items():
        loads = page.find("script", src=lambda s: s and "/mathjax/" in s) is not None
        assert loads == (page.select_one(".math") is not None), name


def test_every_image_has_alt_text(html):
    images = [(name, img) for name, page in pages(html).items() for img in page.find_all("img")]
    assert images
    assert [(name, img.get("src", "")[-40:]) for name, img in images if not img.get("alt")] == []


def test_no_launch_button_without_a_public_address(html):
    assert yaml.safe_load((book.BOOK / "_config.yml").read_text())["repository"]["url"] == ""
    for page in pages(html).values():
        assert not page.find("a", href=lambda h: h and ("mybinder" in h or "colab" in h))


def test_launch_buttons_open_the_notebook_itself(tmp_path):
    config = yaml.safe_load((book.BOOK / "_config.yml").read_text())
    config["repository"]["url"] = "https://github.com/owner/course"
    config["sphinx"]["config"] = {"html_context": {"default_mode": "auto"}}
    source = tmp_path / "_build" / "source"
    (source / "notebooks").mkdir(parents=True)
    book.save_yaml(book.settings(config), source / "_config.yml")
    book.save_yaml({"format": "jb-book", "root": "index",
                    "chapters": [{"file": "notebooks/01_activations"}]}, source / "_toc.yml")
    (source / "index.md").write_text("# Start\n")
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# One")],
                   metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}),
                   source / "notebooks" / "01_activations.ipynb")
    page = soup(book.render(tmp_path) / "notebooks" / "01_activations.html")
    hrefs = {urlsplit(a["href"]).netloc: a["href"] for a in page.find_all("a", href=True)}
    assert hrefs["mybinder.org"].endswith(
        "/v2/gh/owner/course/main?urlpath=lab/tree/notebooks/01_activations.ipynb")
    assert hrefs["colab.research.google.com"].endswith(
        "/github/owner/course/blob/main/notebooks/01_activations.ipynb")


@pytest.mark.parametrize("folder", [NOTEBOOKS, EXERCISES])
def test_what_a_reader_downloads_is_the_notebook_itself(html, folder):
    name = "01_activations.ipynb"
    offered = html / "_sources" / folder.name / name
    assert offered.read_bytes() == (folder / name).read_bytes()


def test_numbers_on_the_start_page_are_those_of_the_stored_lesson(html):
    stored = json.loads((NOTEBOOKS / "01_activations.ipynb").read_text("utf-8"))
    output = "".join("".join(o["text"]) for c in stored["cells"] if c["cell_type"] == "code"
                     and c["metadata"]["dlsys"].get("trap") == "01.1"
                     for o in c["outputs"] if o["output_type"] == "stream")
    readings = soup(html / "index.html").select(".reading")
    assert len(readings) >= 3
    for reading in readings:
        value = reading.strong.extract().get_text()
        assert f"{reading.get_text().strip()}: {value}" in output


@pytest.mark.parametrize("trap", catalog.traps(), ids=lambda t: t.id)
def test_each_trap_is_listed_with_title_and_exercise(html, trap):
    assert trap.title in article(html, "traps")
    assert f"{trap.id} {trap.function}" in article(html, "wrong_answers")
    stem = stage(int(trap.id[:2])).stem
    for folder, anchor in (("notebooks", "trap"), ("exercises", "exercise")):
        page = soup(html / folder / f"{stem}.html")
        assert page.find(id=f"{anchor}-{trap.id.replace('.', '-')}")


@pytest.mark.parametrize("trap", catalog.traps(), ids=lambda t: t.id)
def test_each_trap_has_a_page_that_the_index_leads_to(html, trap):
    name = f"traps/{trap.id.replace('.', '-')}"
    page = soup(html / f"{name}.html").find("article")
    assert page.h1.get_text().startswith(f"{trap.id} ")
    assert len(page.select("div.highlight-python")) >= 2
    assert len(page.select("h2")) >= 5
    assert soup(html / "traps.html").select(f'article a[href="{name}.html"]')


def test_the_page_of_wrong_answers_shows_each_with_its_own_diagnosis(html):
    # The page sets apostrophes as a printer would.
    rows = [[cell.get_text().translate({8216: "'", 8217: "'"})
             for cell in row.find_all("td")[:2]]
            for row in soup(html / "wrong_answers.html").select("article tbody tr")]
    registered = [w for t in catalog.traps() for w in checking.find(t.id).wrong_answers]
    assert Counter(name for name, _ in rows) == Counter(w.name for w in registered)
    assert [w.name for w in registered
            if not any(name == w.name and w.says in told for name, told in rows)] == []


def test_hints_and_choices_are_folded(html):
    for page, least in ((WORKSHEET, 2 * len(catalog.traps(1))), (LESSON, 3)):
        folded = soup(html / f"{page}.html").select("article details:not(.hide)")
        assert len(folded) >= least
        assert not any(d.has_attr("open") for d in folded)


# ---- in a browser, every request refused

# One page of each kind that we write: axe takes seconds where a page is long.
PLAIN = "how_to_use"
AUDITED = {START, LESSON, WORKSHEET, "wrong_answers", "traps/03-1", "symptoms", PLAIN}
DESK = {"width": 1280, "height": 900}
MOUNTED = """document.querySelectorAll('[data-explorer]').length
             === document.querySelectorAll('.xp-controls').length"""


@pytest.fixture(scope="module")
def opened(browser, html):
    """Shows a page in the one tab of all tests, with whatever the browser complains about."""
    tab = offline_page(browser, color_scheme="light", viewport=DESK)
    tab.add_init_script("localStorage.setItem('dlsys-show-everything', 'yes')")
    tab.on("console", lambda m: tab.problems.append(m.text) if m.type == "error" else None)

    def show(name: str):
        address = (html / f"{name}.html").as_uri()
        if tab.url != address:
            tab.refused.clear()
            tab.problems.clear()
            tab.goto(address)
            tab.wait_for_function(MOUNTED)
        return tab

    return show


def objections(page, theme: str) -> list[tuple[str, str]]:
    """What axe finds in the article, or in the dark theme: there only contrast can differ.

    The bars around the article belong to the theme, drawings to their own tests.
    """
    page.emulate_media(color_scheme=theme)
    page.wait_for_function(f"document.documentElement.dataset.theme === '{theme}'")
    rules = {"runOnly": ["color-contrast"]} if theme == "dark" else {}
    return violations(page, context={"include": [["article"]],
                                     "exclude": [["mjx-container"], [".xp svg"]]},
                      # A page from disk may not read its style sheets, which axe would preload.
                      options={"resultTypes": ["violations"], "preload": False, **rules})


def flaws(page, name: str) -> dict:
    """All that is wrong with an open page: requests, errors, its width on a phone, axe."""
    page.set_viewport_size({"width": 390, "height": 800})
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    page.set_viewport_size(DESK)
    found = {"refused": page.refused[:], "problems": page.problems[:], "wide": max(wide, 0)}
    if name in AUDITED:
        found |= {theme: objections(page, theme) for theme in ("dark", "light")}
    return {what: value for what, value in found.items() if value}


def test_every_page_opens_without_network_or_complaint_fits_a_phone_and_is_accessible(opened, html):
    names = [name.removesuffix(".html") for name in pages(html)]
    assert len(names) >= 8
    assert set(names) >= AUDITED
    found = {name: flaws(opened(name), name) for name in names}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


PLANTED = {
    "refused": "fetch('http://example.com/').catch(() => null)",
    "problems": "setTimeout(() => { throw new Error('planted'); })",
    "wide": "document.querySelector('article').append(Object.assign("
            "document.createElement('div'), {style: 'width: 900px; height: 9px'}))",
    "light": "document.querySelector('article').append(new Image())",
    "dark": "document.querySelector('article').append(Object.assign(document.createElement('p'), "
            "{innerText: 'pale', style: 'color: #222; background: #111'}))",
}


@pytest.mark.parametrize("flaw", PLANTED)
def test_a_planted_flaw_is_seen(opened, flaw):
    page = opened(PLAIN)
    page.reload()
    page.evaluate(f"() => {{ {PLANTED[flaw]} }}")
    page.wait_for_timeout(50)
    seen = flaws(page, PLAIN)
    page.refused.clear()
    page.problems.clear()
    assert flaw in seen


def test_formulas_are_drawn(opened):
    page = opened(LESSON)
    page.wait_for_selector("article mjx-container svg")
    formulas = page.locator("article .math").count()
    assert formulas > 0
    assert page.locator("article mjx-container").count() >= formulas
    assert page.locator("[data-mjx-error], mjx-merror").count() == 0


@pytest.mark.parametrize(("name", "least"), [(START, 1), (LESSON, 2)])
def test_explorers_answer_to_the_keyboard(opened, name, least):
    page = opened(name)
    assert page.locator(".xp-controls").count() >= least
    for explorer in page.locator("[data-explorer]").all():
        before = explorer.locator(".xp-say").inner_text()
        explorer.locator("input[type=range]").first.focus()
        page.keyboard.press("Home")
        page.wait_for_function("([e, old]) => e.querySelector('.xp-say').innerText !== old",
                               arg=[explorer.element_handle(), before])


def test_every_step_says_its_name(opened):
    said = opened(LESSON).evaluate("""() => [...document.querySelectorAll('[class*="role-"]')]
        .map(e => getComputedStyle(e, '::before').content.replaceAll('"', ''))""")
    counts = Counter(said)
    for step in ("Predict", "Break it", "Look", "Why, and the repair", "Your turn", "Keep"):
        assert counts[step] >= len(catalog.traps(1)), counts


def test_code_is_not_cut(opened):
    cut = opened(LESSON).evaluate("""() => [...document.querySelectorAll('.cell_input pre')]
        .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 80))""")
    assert cut == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_keep_their_own_colours(opened, theme):
    page = opened(LESSON)
    page.emulate_media(color_scheme=theme)
    page.wait_for_function(f"document.documentElement.dataset.theme === '{theme}'")
    styles = page.evaluate("""() => [...document.querySelectorAll('.cell_output img')]
        .map(e => getComputedStyle(e)).map(s => s.filter + ' ' + s.backgroundColor)""")
    page.emulate_media(color_scheme="light")
    assert styles
    assert set(styles) == {"none rgba(0, 0, 0, 0)"}
