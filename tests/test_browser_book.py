"""The built book as a reader sees it: its files, then its pages in a browser without network."""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from browser import offline_page, violations
from bs4 import BeautifulSoup

from benchmarks import weights
from dlsys_checks import registry
from dlsys_helpers import catalog, drawing_canvas, plots
from dlsys_helpers.stages import stage
from tools import book, frames
from tools.nightly import mark_nightly

LESSON, WORKSHEET, START = "notebooks/01_activations", "exercises/01_activations", "index"
GENERATED = {"search.html", "genindex.html", "404.html"}  # without our own content


CODE = re.compile(r"<pre>.*?</pre>", re.DOTALL)
COLOURS = re.compile(r'<span( class="\w+")?>|</span>')


def bare(code: re.Match) -> str:
    """Remove only the spans that colour code, which are half of all elements."""
    left = COLOURS.sub("", code[0])
    return code[0] if "<span" in left else left


@cache
def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(CODE.sub(bare, path.read_text("utf-8")), "html.parser")


@cache
def anchors(path: Path) -> set[str]:
    """The ids on a page, cached because hundreds of links ask for them."""
    return {tag["id"] for tag in soup(path).find_all(id=True)}


def pages(html: Path) -> dict[str, BeautifulSoup]:
    return {str(p.relative_to(html)): soup(p) for p in sorted(html.rglob("*.html"))
            if p.name not in GENERATED and "_static" not in p.parts
            and (p.name != "index.html" or p.parent == html)}  # a folder's only redirects


def article(html: Path, name: str) -> str:
    """The text of a page, with typewriter apostrophes for its typographic ones."""
    text = soup(html / f"{name}.html").find("article").get_text(" ", strip=True)
    return text.replace("\u2019", "'")


# ---- files

def is_dead_link(html: Path, name: str, href: str) -> bool:
    """Whether a link of a page leads to a missing file or anchor of the book."""
    parts = urlsplit(href)
    if parts.scheme in {"http", "https"}:
        return False
    path, anchor = unquote(parts.path), unquote(parts.fragment)
    target = ((html / name).parent / path).resolve() if path else html / name
    return not target.is_file() or bool(
        anchor and target.suffix == ".html" and anchor not in anchors(target))


def test_every_internal_link_and_anchor_leads_somewhere(html):
    assert not is_dead_link(html, f"{LESSON}.html", "#trap-01-1")
    assert is_dead_link(html, f"{LESSON}.html", "#trap-01-0")
    assert is_dead_link(html, f"{LESSON}.html", "../index.html#nowhere")
    assert is_dead_link(html, f"{LESSON}.html", "nowhere.html")
    broken = [f"{name}: {href}" for name, page in pages(html).items()
              for href in {a["href"] for a in page.find_all("a", href=True)}
              if is_dead_link(html, name, href)]
    assert broken == []


def test_no_page_loads_anything_from_elsewhere(html):
    loads = [f"{name}: {tag[attribute]}" for name, page in pages(html).items()
             for tag in page.find_all(["script", "link", "img", "iframe"])
             for attribute in ("src", "href") if tag.get(attribute, "").startswith(("http", "//"))]
    assert loads == []


def left_out(page: BeautifulSoup) -> int:
    """The bytes of frames that the record counts for this page and the test build leaves out.

    Frames in a separate file do not count, because opening the page does not load them.
    """
    return sum(max(0, frames.RECORD.entry(box["data-explorer"]).get("bytes", 0)
                   - len(box.find("script", type="text/plain").string) * 3 // 4)
               for box in page.select("[data-explorer]") if not box.select("[data-rest]"))


MOST_BYTES = {**{folder: 1000 * aim for folder, aim in weights.AIMS_KB.items()},
              # The gallery has curves; the finder has rows, and weights of words for causes.
              "gallery.html": 320_000, "symptoms.html": 250_000,
              "review_changes.html": 145_000}  # sixty changes with their runs, for a whole form


def test_a_page_of_text_weighs_under_100_kb_and_a_lesson_under_200(html):
    found = {name: sum(map(weights.zipped, weights.opened(html / name, page))) + left_out(page)
             for name, page in pages(html).items()}
    heavy = {name: weight for name, weight in found.items()
             if weight > MOST_BYTES.get(name, MOST_BYTES.get(name.partition("/")[0], 100_000))}
    assert heavy == {}
    assert len(found) > 20


def test_the_file_of_a_traps_page_is_under_80_kb_with_its_bench(html):
    found = {page.name: page.read_text("utf-8") for page in (html / "traps").glob("[0-9]*.html")}
    assert {name for name, text in found.items() if len(text.encode()) >= 80_000} == set()
    assert len(found) == len(catalog.traps())
    assert sum("data-repair" in text for text in found.values()) > 0.9 * len(found)


def test_formulas_are_mathml_and_none_is_left_as_tex(html):
    found = {name: page.select("article math") for name, page in pages(html).items()}
    assert len(found[f"{LESSON}.html"]) > 10
    bare = [f"{name}: {text}" for name, page in pages(html).items()
            for text in page.find_all(string=re.compile(r"\\\(|\\frac|\$[^$\n]+\$"))
            if not text.find_parent(["pre", "code", "script"])]
    assert bare == []


def test_every_page_says_what_it_is(html):
    for name, page in pages(html).items():
        said = {tag.get("name") or tag.get("property"): tag["content"]
                for tag in page.select("head meta[content]")}
        assert 20 < len(said["description"]) <= 200, name
        assert said["og:title"], name
        assert said["og:description"] == said["description"], name
        assert "og:url" not in said
        assert page.select_one("link[rel=icon]"), name
    titles = Counter(page.title.get_text() for page in pages(html).values())
    assert max(titles.values()) == 1
    assert titles["Deep Learning Systems"] == 1


def test_robots_are_welcome_and_a_lost_reader_is_led_on(html):
    assert (html / "robots.txt").read_text() == "User-agent: *\nAllow: /\n"
    lost = soup(html / "404.html")
    assert len(lost.find_all("a")) > 2
    assert all((html / tag["href"]).is_file() for tag in lost.find_all(["a", "link"]))
    assert (html / lost.form["action"]).is_file()
    assert lost.base is None  # without a public address


def test_everything_that_folds_has_a_name(html):
    nameless = [name for name, page in pages(html).items() for fold in page.find_all("summary")
                if not (fold.get("aria-label") or fold.get_text(strip=True))]
    assert nameless == []
    labels = {fold.get("aria-label") for page in pages(html).values()
              for fold in page.select("article summary")}
    assert labels == {None}


def test_no_heading_of_a_table_is_empty(html):
    """The corner above the row names is a cell like any other."""
    empty = [f"{name}: {head.parent}" for name, page in pages(html).items()
             for head in page.select("article th") if not head.get_text(strip=True)]
    assert empty == []


def test_no_key_alone_is_a_shortcut(html):
    """WCAG 2.1.4. The theme has two kinds of shortcuts, one of which is on by default."""
    options = (html / "_static" / "documentation_options.js").read_text("utf-8")
    assert dict(re.findall(r"(ENABLE_SEARCH_SHORTCUTS|NAVIGATION_WITH_KEYS): (\w+)", options)) == {
        "ENABLE_SEARCH_SHORTCUTS": "false", "NAVIGATION_WITH_KEYS": "false"}


def test_nothing_offers_what_is_not_there(html):
    drawn = set(re.findall(r"\.(fa-[\w-]+) \{", (book.BOOK / "_static/icons.css").read_text()))
    for name, page in pages(html).items():
        assert bool(page.select(".secondary-toggle")) == bool(
            page.select("#pst-secondary-sidebar")), name
        assert not page.select('a[href*="_sources"][href$=".md"]'), name
        assert icons(page) <= drawn, name


def icons(page: BeautifulSoup) -> set[str]:
    """The theme's icons on a page: fa-list and the like, without its words for size and kind."""
    return {name for i in page.find_all(["i", "span"]) for name in i.get("class", [])
            if name.startswith("fa-")} - {"fa-solid", "fa-lg"}


def test_a_strict_content_policy_may_forbid_scripts_in_a_page(html):
    """A script with a type, text/plain or JSON, is data."""
    for path in html.rglob("*.html"):
        page = soup(path)
        assert [str(s)[:80] for s in page.select("script:not([src]):not([type])")] == [], path
        assert [tag.name for tag in page.find_all(True)
                if any(name.startswith("on") for name in tag.attrs)] == [], path
    assert not [*html.rglob("*.map")]


def test_no_backtick_is_left_in_a_page(html):
    left = [f"{name}: {text.strip()[:60]}" for name, page in pages(html).items()
            for text in page.select_one("article").find_all(string=re.compile("`"))
            if not text.find_parent(["pre", "code", "script", "style"])]
    assert left == []


@pytest.mark.parametrize("trap", catalog.traps(), ids=lambda t: t.id)
def test_trap_and_worksheet_lead_to_each_other_at_their_permanent_anchors(html, trap):
    number, stem = trap.id.replace(".", "-"), stage(int(trap.id[:2])).stem
    lesson, sheet = (soup(html / folder / f"{stem}.html") for folder in ("notebooks", "exercises"))
    assert lesson.select(f'article a[href="../exercises/{stem}.html#exercise-{number}"]')
    assert sheet.select(f'article a[href="../notebooks/{stem}.html#trap-{number}"]')
    for page, anchor in ((lesson, f"trap-{number}"), (sheet, f"exercise-{number}")):
        heading = page.find(id=anchor).find(["h2", "h3"])
        assert heading.select_one("a.headerlink")["href"] == f"#{anchor}"


def test_every_image_has_alt_text(html):
    images = [(name, img) for name, page in pages(html).items() for img in page.find_all("img")]
    assert images
    assert [(name, img.get("src", "")[-40:]) for name, img in images if not img.get("alt")] == []


def test_no_launch_button_without_a_public_address(html):
    assert yaml.safe_load((book.BOOK / "_config.yml").read_text())["repository"]["url"] == ""
    for page in pages(html).values():
        assert not page.find("a", href=re.compile(r"//(mybinder\.org|colab\.research)"))


@pytest.mark.parametrize(("folder", "name"), [
    ("notebooks", "01_lesson.ipynb"), ("exercises", "01_activations.ipynb")])
def test_what_a_reader_downloads_is_the_learners_copy(html, folder, name):
    [link] = soup(html / f"{folder}/01_activations.html").select("article a[download]")
    offered = (html / folder / link["href"]).resolve()
    assert offered == (html / "open" / name).resolve()
    of_theme = html / "_sources" / folder / "01_activations.ipynb"
    assert offered.read_bytes() == of_theme.read_bytes()


@pytest.mark.parametrize("trap", catalog.traps(), ids=lambda t: t.id)
def test_each_trap_is_listed_with_title_and_exercise(html, trap):
    listed = article(html, "traps")
    assert trap.name in listed
    assert trap.title in listed
    page = soup(html / f"traps/{trap.id.replace('.', '-')}.html")
    assert trap.name in page.title.get_text().replace("\u2019", "'")
    assert f"{trap.id} {trap.function}" in article(html, f"wrong_answers/{trap.id[:2]}")
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


@pytest.mark.parametrize("number", [s.number for s in catalog.written()])
def test_the_page_of_wrong_answers_shows_each_with_its_own_diagnosis(html, number):
    # The page uses typographic apostrophes.
    name = f"wrong_answers/{number:02d}.html"
    rows = [[cell.get_text().translate({8216: "'", 8217: "'"})
             for cell in row.find_all("td")[:2]]
            for row in soup(html / name).select("article tbody tr")]
    registered = [w for t in catalog.traps(number) for w in registry.find(t.id).wrong_answers]
    assert [cell.get_text() for row in soup(html / "wrong_answers.html").select("article tr")
            if row.select(f'a[href="{name}"]') for cell in row.find_all("td")[1:]] == [
        str(len(catalog.traps(number))), str(len(registered))]
    assert Counter(name for name, _ in rows) == Counter(w.name for w in registered)
    assert [w.name for w in registered
            if not any(name == w.name and w.is_told(told) for name, told in rows)] == []


def test_hints_and_choices_are_folded(html):
    for page, least in ((WORKSHEET, 2 * len(catalog.traps(1))), (LESSON, 3)):
        folded = soup(html / f"{page}.html").select("article details:not(.hide)")
        assert len(folded) >= least
        assert not any(d.has_attr("open") for d in folded)


# ---- in a browser that refuses every request

# One page of each kind that we write, and one part of each kind in a lesson, because axe takes
# seconds on a long page.
PLAIN, TRAP = "how_to_use", "traps/03-1"
WHOLE = {START, WORKSHEET, TRAP, "guide_optimizer", "your_model", PLAIN}
PARTS = {LESSON: ["#trap-01-1", ".role-quiz", ".tag_role-explore", ".tag_role-gpu .cell_output"],
         "symptoms": ["article .finder", "article section section:first-of-type"],
         "wrong_answers/01": ["article section section:first-of-type"]}
DESK, LAPTOP, PHONE = ({"width": width, "height": 900} for width in (1280, 1440, 390))
NARROW = {"width": 320, "height": 640}  # where WCAG 2.2, 1.4.10, forbids scrolling sideways
MOUNTED = """document.querySelectorAll('[data-explorer]').length
             === document.querySelectorAll('.xp-controls').length"""


# While colours fade into the other theme, their contrast is too low.
STILL = """addEventListener('DOMContentLoaded', () => document.head.append(Object.assign(
    document.createElement('style'), {textContent: '* {transition: none !important}'})))"""


WHOLE_PAGE = """localStorage.setItem('dlsys-show-everything', 'yes');
    localStorage.setItem('dlsys-parts', 'whole')"""


@pytest.fixture(scope="module")
def opened(browser, html):
    """Show a page in the one tab of all tests and collect the browser's complaints."""
    tab = offline_page(browser, color_scheme="light", viewport=DESK)
    tab.add_init_script(WHOLE_PAGE)
    tab.add_init_script(STILL)
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


# Keep only these parts of an article, because axe walks everything on a page.
KEEP = """parts => {
  const kept = parts.flatMap(part => [...document.querySelectorAll(part)]);
  for (const e of document.querySelectorAll('article *'))
    if (!kept.some(part => part.contains(e) || e.contains(part))) e.remove();
}"""


def objections(page, name: str, **rules) -> list[tuple[str, str]]:
    """Axe's violations on a page, or in its parts; drawings have their own tests."""
    inside = {"include": [[part] for part in PARTS[name]]} if name in PARTS else {}
    return violations(page, context={"exclude": [[".xp svg"]], **inside},
                      # A page from disk may not read the style sheets that axe would preload.
                      options={"resultTypes": ["violations"], "preload": False, **rules})


def dark_objections(page, name: str) -> list[tuple[str, str]]:
    """In the dark theme only contrast can differ."""
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    found = objections(page, name, runOnly=["color-contrast"])
    page.emulate_media(color_scheme="light")
    return found


CUT = """[...document.querySelectorAll('.cell_input pre')]
    .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
    .map(e => e.innerText.slice(0, 80))"""


CUT_ENDS = """[...document.querySelectorAll('.prev-next-area a')]
    .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"""


# One template makes the pages of traps, others those of worksheets, wrong answers and presenters.
# We open these pages, and show the articles of the rest in one of them.
SOME = {TRAP, "traps/01-1", "traps/04-9", "wrong_answers/01", "present/09",
        WORKSHEET, "exercises/09_scaling"}
ALIKE = ("traps/", "exercises/", "wrong_answers/", "present/")
# One page of each template; the nightly run opens the others.
OF_A_KIND = WHOLE | PARTS.keys() | {"present/09", "traps", "gallery", "watch"}


def flaws(page, name: str) -> dict:
    """Collect all that is wrong with an open page: requests, errors, code that is cut, links at its
    end that a phone cuts, its width and what no keyboard reaches there, axe at the desk. Leaves
    the page in a different size, where the next page may begin."""
    found = {"refused": page.refused[:], "problems": page.problems[:]}
    looks = LOOKS if page.viewport_size != NARROW else LOOKS[::-1]  # start with the current size
    for what, size, look in looks:
        if page.viewport_size != size:
            page.set_viewport_size(size)
        found[what] = page.evaluate(look)
    if name in WHOLE | PARTS.keys():
        page.set_viewport_size(DESK)
        if name in PARTS:
            page.evaluate(KEEP, PARTS[name])
        found |= {"light": objections(page, name), "dark": dark_objections(page, name)}
    if name in PARTS:
        page.goto("about:blank")  # so no later test finds the shortened page
    return {what: value for what, value in found.items() if value}


# Axe calls this scrollable-region-focusable, but takes seconds a page for this one rule.
UNREACHED = """async () => {
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  const scrolls = (overflow, size, shown) => /auto|scroll/.test(overflow) && size > shown + 13;
  const reached = e => e.tabIndex >= 0 && e.checkVisibility();
  const long = e => e.scrollWidth > e.clientWidth + 13 || e.scrollHeight > e.clientHeight + 13;
  return [...document.body.querySelectorAll('*')].filter(long).filter(e => {
    const style = getComputedStyle(e);
    return (scrolls(style.overflowX, e.scrollWidth, e.clientWidth)
            || scrolls(style.overflowY, e.scrollHeight, e.clientHeight))
           && e.checkVisibility() && ![e, ...e.querySelectorAll('*')].some(reached);
  }).map(e => e.outerHTML.slice(0, 100));
}"""
WIDE = "Math.max(document.documentElement.scrollWidth - innerWidth, 0)"
LOOKS = [("cut", LAPTOP, CUT), ("ends", PHONE, CUT_ENDS), ("phone", PHONE, UNREACHED),
         ("wide", NARROW, WIDE)]
ARTICLE = re.compile(r"<article.*</article>", re.DOTALL)
SHOW = "html => { document.querySelector('article').outerHTML = html; }"


def flaws_of_articles(page, articles: dict[str, str]) -> dict:
    """Show each article in place of an open page's own, and collect what is wrong: network
    requests, code that is cut, the width on a narrow phone."""
    found = {}
    for what, size, look in (("cut", LAPTOP, CUT), ("wide", NARROW, WIDE)):
        page.set_viewport_size(size)
        for name, article in articles.items():
            page.evaluate(SHOW, article)
            if seen := page.evaluate(look):
                found[name, what] = seen
    page.set_viewport_size(DESK)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    return found | ({"refused": page.refused[:]} if page.refused else {})


def flawed(opened, names) -> dict[str, dict]:
    """What is wrong with these pages, by name; pages without a flaw are left out."""
    found = {name: flaws(opened(name), name) for name in sorted(names)}
    opened(PLAIN).set_viewport_size(DESK)
    return {name: wrong for name, wrong in found.items() if wrong}


def test_a_page_of_each_kind_opens_without_network_or_complaint_fits_a_phone_and_is_accessible(
        opened):
    assert flawed(opened, OF_A_KIND) == {}


@pytest.mark.nightly
def test_every_page_opens_without_network_or_complaint_and_fits_a_phone(opened, html):
    """Of similar pages, this opens some; the others differ from them only in their articles."""
    names = {name.removesuffix(".html") for name in pages(html)}
    alike = {name for name in names if name.startswith(ALIKE)}
    assert len(names) >= 8
    assert names >= OF_A_KIND | SOME
    assert flawed(opened, names - (alike - SOME) - OF_A_KIND) == {}


@pytest.mark.nightly
def test_the_articles_of_pages_that_are_alike_ask_for_nothing_and_fit_a_phone(opened, html):
    articles = {name: ARTICLE.search((html / name).read_text("utf-8"))[0] for name in pages(html)
                if name.startswith(ALIKE)}
    assert len(articles) == len(catalog.traps()) + 3 * len(catalog.written())
    page = opened(TRAP)
    assert flaws_of_articles(page, articles) == {}
    page.reload()


def test_an_article_with_a_planted_flaw_is_seen(opened):
    page = opened(PLAIN)
    planted = {"wide": "<article><div style='width: 900px'>9</div></article>",
               "cut": f"<article><div class=cell_input><pre>{'9' * 200}</pre></div></article>",
               "asks": "<article><img src='http://example.com/'></article>",
               "sound": "<article><p>All is well.</p></article>"}
    found = flaws_of_articles(page, planted)
    page.reload()
    page.refused.clear()
    assert set(found) == {("wide", "wide"), ("cut", "cut"), "refused"}


PLANTED = {
    "refused": "await fetch('http://example.com/').catch(() => null)",
    "problems": "await new Promise(done => setTimeout(() => { setTimeout(done);"
                " throw new Error('planted'); }))",
    "wide": "document.querySelector('article').append(Object.assign("
            "document.createElement('div'), {style: 'width: 900px; height: 9px'}))",
    "phone": "document.querySelector('article').insertAdjacentHTML('beforeend', '<aside style="
             "\"overflow: auto\">' + '9'.repeat(300) + '</aside>')",
    "ends": "document.querySelector('.prev-next-area').insertAdjacentHTML('beforeend', '<a style="
            "\"overflow: hidden\"><div style=\"min-width: 900px\">Next</div></a>')",
    "cut": "document.querySelector('article').insertAdjacentHTML('beforeend', '<div class="
           "cell_input><pre>' + '9'.repeat(200) + '</pre></div>')",
    "light": "document.querySelector('article').append(new Image())",
    "dark": "document.querySelector('article').append(Object.assign(document.createElement('p'), "
            "{innerText: 'pale', style: 'color: #222; background: #111'}))",
}


def flaws_when_planted(page, *planted: str) -> set[str]:
    """The flaws that `flaws` finds on a page after these are planted in it."""
    page.reload()
    for flaw in planted:
        page.evaluate(f"async () => {{ {PLANTED[flaw]} }}")
    seen = flaws(page, PLAIN)
    page.set_viewport_size(DESK)
    page.refused.clear()
    page.problems.clear()
    return {*seen}


def test_flaws_that_are_planted_together_are_all_seen(opened):
    assert flaws_when_planted(opened(PLAIN), *PLANTED) == PLANTED.keys()


@pytest.mark.nightly
@pytest.mark.parametrize("flaw", PLANTED)
def test_a_planted_flaw_is_seen(opened, flaw):
    assert flaw in flaws_when_planted(opened(PLAIN), flaw)


def test_formulas_stand_on_the_line_of_their_words_on_a_phone(opened):
    page = opened(LESSON)
    page.set_viewport_size(PHONE)
    styles = page.evaluate("""[...document.querySelectorAll('article p span.math')].map(
        e => getComputedStyle(e).display + ' ' + getComputedStyle(e).overflow)""")
    tall = page.evaluate("""Math.min(...[...document.querySelectorAll('article p math')].map(
        e => e.getBoundingClientRect().height))""")
    page.set_viewport_size(DESK)
    assert set(styles) == {"inline visible"}
    assert tall > 4  # drawn, not empty


def test_paper_is_white_also_in_the_dark(opened):
    page = opened(PLAIN)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    page.emulate_media(media="print")
    page.wait_for_function("document.documentElement.dataset.theme === 'light'")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(media="screen")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    page.emulate_media(color_scheme="light")
    assert paper in ("rgb(255, 255, 255)", "rgba(0, 0, 0, 0)")  # white, or the colour of the paper


# The axes, their labels and the drawing between them make at least ten elements.
UNDRAWN = """() => [...document.querySelectorAll('[data-explorer] .xp-canvas')]
    .filter(e => e.querySelectorAll('*').length < 10).length"""


def test_on_paper_an_explorer_is_drawn_that_waits_for_a_guess(browser, html):
    page = offline_page(browser, viewport=DESK)
    page.goto((html / f"{LESSON}.html").as_uri())
    page.wait_for_function(MOUNTED)
    classes = "document.documentElement.classList.contains('guess-first')"
    seen = [(page.evaluate(classes), page.evaluate(UNDRAWN))]
    for event in ("beforeprint", "afterprint"):
        page.evaluate("event => { dispatchEvent(new Event(event)); }", event)
        seen.append((page.evaluate(classes), page.evaluate(UNDRAWN)))
    page.close()
    [(before, undrawn), *printed] = seen
    assert before
    assert undrawn > 0
    assert printed == [(False, 0), (True, 0)]


def test_a_chosen_option_shows_on_paper_and_in_forced_colours(opened):
    page, looks = opened(LESSON), []
    chosen = page.locator(".xp-options input:checked + label").first
    other = page.locator(".xp-options input:not(:checked) + label").first
    look = "e => { const s = getComputedStyle(e); return s.backgroundColor + s.outlineStyle; }"
    for media in ({"forced_colors": "active"}, {"forced_colors": "none", "media": "print"}):
        page.emulate_media(**media)
        looks.append((chosen.evaluate(look), other.evaluate(look)))
    page.emulate_media(media="screen")
    assert all(one != another for one, another in looks), looks
    assert looks[1][0].endswith("solid")


FOCUSED = "e => e === document.activeElement"


def test_the_focus_stays_on_a_copy_button(opened):
    page = opened(LESSON)
    button = page.locator("#trap-01-1 .copybtn >> visible=true").first
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".copybtn.success")
    assert button.evaluate(FOCUSED)


def test_pressed_buttons_of_the_bar_keep_the_focus(opened):
    page = opened(LESSON)
    theme = page.evaluate("document.documentElement.dataset.mode")
    for name in (".primary-toggle", ".theme-switch-button >> visible=true"):
        button = page.locator(name)
        for _ in range(2 if "primary" in name else 3):  # once around
            button.focus()
            page.keyboard.press("Enter")
            assert button.evaluate(FOCUSED), name
    assert page.evaluate("document.documentElement.dataset.mode") == theme


def test_a_menu_opens_and_shuts_by_keyboard(opened):
    page = opened(TRAP)
    button = page.locator(".menu > summary").first
    button.focus()
    page.keyboard.press("Enter")
    entry = page.locator(".menu button").first
    assert entry.is_visible()
    entry.focus()
    page.keyboard.press("Escape")
    assert not entry.is_visible()
    assert button.evaluate(FOCUSED)
    button.click()
    page.mouse.click(640, 450)
    assert not entry.is_visible()


def test_escape_from_a_drawer_leads_back_to_its_button(opened):
    page = opened(LESSON)
    page.set_viewport_size(PHONE)
    for press in ("primary-toggle", "secondary-toggle", "search-button"):
        button = page.locator(f".{press} >> visible=true")
        for open_it in (button.click, lambda b=button: b.press("Enter")):
            open_it()
            page.wait_for_selector("dialog[open]")
            page.keyboard.press("Escape")
            page.wait_for_selector("dialog[open]", state="detached")
            assert button.evaluate(FOCUSED), press
    page.set_viewport_size(DESK)


MOST_STOPS = 600  # of the Tab key on a page; a trap page has about 200

# When a fold of the sidebar has the focus, the theme marks the arrow in it.
RINGS = """() => {
  const e = document.activeElement;
  if (e === document.body) return '';  // once around
  const shown = e.querySelector('.toctree-toggle') || e;
  const form = e.closest('form.bd-search');
  return [shown, form].some(x => x && (s => s.outlineStyle !== 'none' || s.boxShadow !== 'none')(
    getComputedStyle(x))) ? '' : e.outerHTML.slice(0, 100);
}"""


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_whatever_takes_the_focus_shows_it(opened, size):
    page = opened(TRAP)
    page.set_viewport_size(size)
    page.evaluate("document.activeElement.blur()")
    bare, seen = set(), set()
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        bare.add(page.evaluate(RINGS))
        html = page.evaluate("document.activeElement.outerHTML")
        if html.startswith("<body"):  # once around
            break
        seen.add(html)
    page.set_viewport_size(DESK)
    assert any("Download this page" in html for html in seen)
    assert any("primary-toggle" in html for html in seen)
    assert bare == {""}


# Short words in table cells that a line break splits.
SPLIT = """() => {
  const found = [], walk = document.createTreeWalker(document.querySelector('article'), 4);
  for (let text = walk.nextNode(); text; text = walk.nextNode()) {
    if (!text.parentElement.closest('td') || !text.parentElement.checkVisibility()) continue;
    for (const word of text.data.matchAll(/[^\\s-]+/g)) {
      if (word[0].length > 16) continue;
      const range = document.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1)
        found.push(word[0]);
    }
  }
  return found;
}"""


@pytest.mark.parametrize("name", ["accessibility", "symptoms", "guide_loss", "guide_scale",
                                  "watch"])
def test_no_short_word_in_a_table_is_cut(opened, name):
    page, cut = opened(name), {}
    for size in (DESK, PHONE):
        page.set_viewport_size(size)
        cut[size["width"]] = page.evaluate(SPLIT)
    page.set_viewport_size(DESK)
    assert cut == {DESK["width"]: [], PHONE["width"]: []}


@pytest.mark.parametrize("name", ["traps", "symptoms", "accessibility", "guide_loss", "watch"])
def test_on_a_phone_a_cell_says_its_column_and_keeps_off_the_edge(opened, name):
    page = opened(name)
    page.set_viewport_size(PHONE)
    cells = page.locator(".rows tbody tr").first.locator("td").evaluate_all(
        """all => all.map(e => [getComputedStyle(e, '::before').content,
                                 parseFloat(getComputedStyle(e).paddingLeft)])""")
    heads = page.locator(".rows thead").first.locator("th").all_text_contents()
    page.set_viewport_size(DESK)
    assert [said for said, _ in cells] == ["none", *(f'"{head}: "' for head in heads[1:])]
    assert all(padding >= 6 for _, padding in cells)


def test_on_a_phone_a_cell_without_content_takes_no_line(opened):
    page = opened("watch")
    empty = page.locator(".rows td.empty")
    page.set_viewport_size(PHONE)
    shown = empty.evaluate_all("all => all.map(e => [e.innerText.trim(), e.checkVisibility()])")
    page.set_viewport_size(DESK)
    assert shown
    assert all(found == ["", False] for found in shown)


def test_a_magnifier_covers_nothing_that_is_typed(opened):
    page = opened(PLAIN)
    page.keyboard.press("Control+k")
    field = page.locator("dialog[open] form.bd-search")
    right = field.locator("i").evaluate("e => e.getBoundingClientRect().right")
    text = field.locator("input").evaluate(
        "e => e.getBoundingClientRect().left + parseFloat(getComputedStyle(e).paddingLeft)")
    page.keyboard.press("Escape")
    assert right + 2 < text


def test_no_sign_is_made_of_a_font_that_is_not_there(opened, html):
    page = opened(PLAIN)
    # No reload: after one, Chromium may give a page from disk (never over HTTP) an older store.
    page.evaluate("localStorage.setItem('sphinx_highlight_terms', 'trap');"
                  "SphinxHighlight.highlightSearchWords()")
    link = page.locator(".highlight-link a")
    before = link.evaluate("e => getComputedStyle(e, '::before').content")
    page.reload()
    assert before == "none"
    rules = [f"{path.name}: {rule[:80]}" for path in (html / "_static").rglob("*.css")
             for rule in re.findall(r"[^{}]*::?(?:before|after)\s*\{[^{}]*\}",
                                    path.read_text("utf-8"))
             if re.search(r"Font.Awesome|--fa-|--pst-icon|\\f\d", rule)]
    assert rules == []


FAR = "decision_surface"  # its frames are in a separate file, and it is far down the page


def test_frames_that_lie_apart_come_when_the_reader_is_near(browser, html):
    page, asked = offline_page(browser, viewport=DESK), []
    page.on("request", lambda r: asked.append(r.url) if FAR in r.url else None)
    page.add_init_script(WHOLE_PAGE)
    page.goto((html / f"{LESSON}.html").as_uri())
    page.wait_for_function(MOUNTED)
    box = page.locator(f"[data-explorer={FAR}]")
    first, before = box.locator(".xp-say").inner_text(), len(asked)
    box.scroll_into_view_if_needed()
    page.wait_for_function(f"window.dlsysFrames?.{FAR}")
    box.locator("input[type=range]").first.press("Home")
    page.wait_for_function("([e, old]) => e.querySelector('.xp-say').innerText !== old",
                           arg=[box.element_handle(), first])
    page.close()
    assert (before, len(asked)) == (0, 1)
    assert "points on the right side" in first


def test_frames_that_do_not_come_are_told(browser, html):
    page = offline_page(browser, viewport=DESK)
    page.add_init_script(WHOLE_PAGE)
    page.route(f"**/{FAR}-*.js", lambda route: route.abort())
    page.goto((html / f"{LESSON}.html").as_uri())
    box = page.locator(f"[data-explorer={FAR}]")
    box.scroll_into_view_if_needed()
    said = box.locator(".xp-problem")
    said.wait_for()
    told = said.inner_text()
    page.close()
    assert told == "The other settings could not be loaded. Reload the page."


@pytest.mark.parametrize(("name", "least"), [(LESSON, 2)])
def test_explorers_answer_to_the_keyboard(opened, name, least):
    page = opened(name)
    assert page.locator(".xp-controls").count() >= least
    for explorer in page.locator("[data-explorer]").all():
        before = explorer.locator(".xp-say").inner_text()
        explorer.locator("input[type=range]").first.focus()
        page.keyboard.press("Home")
        page.wait_for_function("([e, old]) => e.querySelector('.xp-say').innerText !== old",
                               arg=[explorer.element_handle(), before])


def test_every_step_says_its_name_once_and_the_cause_names_the_fault(html):
    for trap in catalog.traps(1):
        section = soup(html / f"{LESSON}.html").find(id=f"trap-{trap.id.replace('.', '-')}")
        steps = [name.get_text() for name in section.select("h3.step-name")]
        assert steps == ["The code", "Guess", "Look", "Why", "Repair", "Your turn", "Keep"]
        assert section.select_one(".step-why .fault").get_text() == trap.name
        heading = section.h2.get_text(" ")
        assert heading.startswith(f"{trap.id} {trap.title}".replace("'", "\u2019"))
        assert bool(section.select("h2 .core")) == trap.core


def test_the_core_traps_are_marked_in_the_contents_and_lead_to_each_other(html):
    page, core = soup(html / f"{LESSON}.html"), [t.id for t in catalog.traps(1) if t.core]
    marked = [a["href"] for a in page.select(".bd-toc a") if a.select(".core")]
    assert marked == [f"#trap-{id.replace('.', '-')}" for id in core]
    assert [a["href"] for a in page.select(".step-next a")] == marked[1:]


def test_what_is_folded_is_one_block_that_says_what_it_holds(html):
    for folded in soup(html / "notebooks/05_normalization.html").select("details.more"):
        assert not folded.has_attr("open")
        assert re.fullmatch(r"More: .+( \(\d+ claims?\))?", folded.summary.get_text())


@pytest.mark.parametrize(("width", "beside"), [(1440, True), (1024, False), (390, False)])
def test_the_question_stands_beside_its_code_where_there_is_room(browser, html, width, beside):
    page = offline_page(browser, viewport={"width": width, "height": 900})
    page.goto(f"{(html / LESSON).as_uri()}.html#trap-01-1")
    code, asked = (page.locator(f"#trap-01-1 .step-{name}").bounding_box()
                   for name in ("break", "guess"))
    assert (asked["x"] > code["x"] + code["width"]) == beside
    assert (asked["y"] > code["y"] + code["height"]) != beside
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_no_rule_of_ours_asks_what_an_element_holds():
    assert ":has(" not in (book.BOOK / "_static/course.css").read_text("utf-8")


# The filter hue-rotate(180deg), by the matrix of the standard "Filter Effects".
HALF_TURN = ((-0.574, 1.43, 0.144), (0.426, 0.43, 0.144), (0.426, 1.43, -0.856))


def luminance(colour: str, brightness: float, inverted: bool = False) -> float:
    """Relative luminance of a colour #rrggbb after a filter of this brightness. WCAG 2.2.

    inverted: also after invert(1) and hue-rotate(180deg).
    """
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    if inverted:
        parts = [min(1, max(0, sum(k * (1 - c) for k, c in zip(row, parts, strict=True))))
                 for row in HALF_TURN]
    parts = [min(1, part * brightness) for part in parts]
    return sum(weight * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
               for weight, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


@pytest.mark.parametrize(("theme", "ground"), [("light", "#ffffff"), ("dark", "#14181e")])
def test_ink_and_labels_of_figures_can_be_read(opened, theme, ground):
    page = opened(LESSON)
    page.emulate_media(color_scheme=theme)
    page.wait_for_function(f"document.documentElement.dataset.theme === '{theme}'")
    filters = set(page.evaluate("""[...document.querySelectorAll('.cell_output img')].map(
        e => getComputedStyle(e)).map(s => s.backgroundColor + ' ' + s.filter)"""))
    page.emulate_media(color_scheme="light")
    turned = "invert(1) hue-rotate(180deg) "  # drawings on a dark page, whose boxes are pale
    assert len(filters) == (2 if theme == "dark" else 1)
    for found in filters:
        assert re.fullmatch(r"rgba\(0, 0, 0, 0\) brightness\([\d.]+\)", found.replace(turned, ""))
        brightness = float(found.rpartition("(")[2].rstrip(")"))
        for colour in (plots.INK, *plots.COLOURS):
            dark, light = sorted((luminance(colour, brightness, turned in found),
                                  luminance(ground, 1)))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (colour, found)


FIGURE = "article .image-reference >> visible=true"


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_shows_a_figure_whole_and_a_tap_or_a_key_enlarges_it(opened, width):
    page = opened(LESSON)
    page.set_viewport_size({"width": width, "height": 900})
    figure = page.locator(FIGURE).first
    seen = [figure.locator("img").bounding_box()["width"]]
    for act in (figure.click, lambda: figure.press("Enter"), figure.click):
        act()
        seen.append(figure.locator("img").bounding_box()["width"])
    here, over = page.url, page.evaluate(WIDE)
    page.locator(FIGURE).first.click()
    page.set_viewport_size(DESK)
    at_desk = figure.locator("img").bounding_box()["width"]
    assert seen[::2] == [seen[0]] * 2
    assert width - 32 < seen[0] <= width
    assert min(seen[1::2]) > 500
    assert (here, over) == (page.url, 0)
    assert at_desk > 500
    page.reload()


def test_drawings_are_told_from_plots_by_their_width():
    """On a dark page, course.css inverts the colours of drawings and of no other figure."""
    drawn, plotted = round(drawing_canvas.WIDTH * 2 * 110), round(6.6 * 2 * 110)
    assert drawn != plotted
    assert f'[width="{drawn}"]' in (book.BOOK / "_static/course.css").read_text("utf-8")


@pytest.mark.parametrize("width", mark_nightly([1280, 800, 390], lambda width: width == 390))
def test_what_stands_in_a_table_stays_inside_its_cell(browser, html, width):
    page = offline_page(browser, viewport={"width": width, "height": 900})
    for name in ("symptoms", "guide_loss", "guide_scale", "traps", "accessibility", "grading"):
        page.goto((html / f"{name}.html").as_uri())
        sticks_out = page.evaluate("""() => [...document.querySelectorAll("article td")].filter(
            (td) => td.checkVisibility() && [...td.querySelectorAll("*")].some((e) =>
                e.getBoundingClientRect().right > td.getBoundingClientRect().right + 1)
        ).map((td) => td.innerText.slice(0, 60))""")
        assert sticks_out == [], name
    page.close()
