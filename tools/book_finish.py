"""Post-process the built pages: remove unused scripts and fonts, add accessible names."""

from __future__ import annotations

import re
import shutil
from html import unescape
from pathlib import Path
from xml.sax.saxutils import quoteattr

from dlsys_helpers.errors import UserError

# The theme's icons come as a script of 1.5 MB or fonts of 0.3 MB. These are the ones it shows, as
# lines on a field of 16 by 16.
ICONS = {
    "angle-left": "M10 3 5 8l5 5", "angle-right": "M6 3l5 5-5 5",
    "arrow-up": "M8 14V3M3.5 7.5 8 3l4.5 4.5", "bars": "M2 4h12M2 8h12M2 12h12",
    "chevron-down": "M3 6l5 5 5-5",
    "circle-half-stroke": "M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0zM8 2v12M10 3v10M12 4.5v7",
    "download": "M8 2v8M4.5 7 8 10.5 11.5 7M2 14h12",
    "expand": "M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4", "file": "M4 1.5h5L12.5 5v9.5H4z",
    "file-pdf": "M4 6V2h8v4M4 12H2V6h12v6h-2M4 10h8v4H4z",
    "github": "M6 3 1.5 8 6 13M10 3l4.5 5-4.5 5",
    "list": "M2 4h1M6 4h8M2 8h1M6 8h8M2 12h1M6 12h8",
    "magnifying-glass": "M11 7a4 4 0 1 1-8 0 4 4 0 0 1 8 0zM10 10l4 4",
    "moon": "M13 9.5A5.5 5.5 0 1 1 6.5 3 4.5 4.5 0 0 0 13 9.5z",
    "rocket": "M4 2.5v11l9-5.5z",
    "sun": "M11 8a3 3 0 1 1-6 0 3 3 0 0 1 6 0zM8 1v2M8 13v2M1 8h2M13 8h2M3 3l1.4 1.4"
           "M11.6 11.6 13 13M13 3l-1.4 1.4M4.4 11.6 3 13",
}
ICON = re.compile(r'<(i|span) class="([^"]*\bfa[bs]?\b[^"]*|[^"]*\bfa-solid\b[^"]*)"([^>]*)></\1>')
ICON_RULES = re.compile(
    r"@keyframes fa-[^{]*\{(?:[^{}]*\{[^{}]*\})*\}"
    r"|@font-face\{[^}]*Font ?Awesome[^}]*\}"
    r"|(?<=[{}])(?:\.fa[a-z]?[-.:\w]*,?)+\{[^{}]*\}"
    # Signs before and after text: without the fonts they are empty boxes.
    r"|(?<=[{}])[^{}]*:(?:before|after)\{[^{}]*"
    r"(?:--pst-icon-|--pst-breadcrumb-divider|--fa-font|Font.Awesome)[^{}]*\}")
THEME_STYLES = ("_static/styles/pydata-sphinx-theme.css", "_static/styles/sphinx-book-theme.css")


def script(name: str) -> re.Pattern:
    """The element that loads a script or a style sheet of this name."""
    return re.compile(rf'<(?:script|link)\b[^>]*/?{re.escape(name)}[?"][^>]*>(?:</script>)?\n?')


# What every page loads, and the words in a page that show that it is of use there.
IDLE = {"scripts/fontawesome.js": (), "design-tabs.js": ("sd-tab-set",),
        "sphinx-design.min.css": ('class="sd-',), "searchtools.js": ('id="search-results"',),
        "language_data.js": ('id="search-results"',), "searchindex.js": ('id="search-results"',),
        "../explorers/explorer.js": ("data-explorer",),
        "../explorers/explorer.css": ("data-explorer", "data-guess", "data-model")}


def drop_idle(text: str) -> str:
    """Remove the scripts and style sheets that a page does not use."""
    body = text.partition("<body")[2]
    for name, signs in IDLE.items():
        if not any(sign in body for sign in signs):
            text = script(name).sub("", text)
    return text


def icon(found: re.Match) -> str:
    """An icon of the theme as a small drawing. Raises UserError for one without a drawing."""
    classes = found[2].split()
    name = next((c[3:] for c in classes if c[3:] in ICONS and c.startswith("fa-")), None)
    if name is None:
        raise UserError(f"icon {found[2]!r}: got no drawing, expected one of {', '.join(ICONS)}. "
                        "Draw it in ICONS, tools/book_finish.py.")
    return (f'<svg class="icon {found[2]}"{found[3]} viewBox="0 0 16 16" aria-hidden="true">'
            f'<path d="{ICONS[name]}"/></svg>')


def name_folds(text: str) -> str:
    """Name the sidebar's collapse buttons by their page; a folded cell by its summary line."""
    text = re.sub(r'(<a class="[^"]*reference internal"[^>]*>([^<]*)</a>)<details( open="open")?>'
                  r"<summary>", lambda m: f"{m[1]}<details{m[3] or ''}><summary aria-label="
                  f"{quoteattr('Pages of ' + m[2])}>", text)
    return text.replace('<summary aria-label="Toggle hidden content">', "<summary>")


def name_sidebar(text: str) -> str:
    """Make the sidebar an ARIA landmark; drop the contents button of a page without contents."""
    text = text.replace('<div id="pst-primary-sidebar"',
                        '<div id="pst-primary-sidebar" role="region" aria-label="Site"')
    if 'id="pst-secondary-sidebar"' not in text:
        text = re.sub(r'<button class="sidebar-toggle secondary-toggle.*?</button>', "", text,
                      flags=re.DOTALL)
    return text


# A class for what the style sheet could find only by asking what each element holds.
PARTS = {r'(class="sidebar-primary-item)(?=">\s*<a class="[^"]*\blogo\b)': r"\1 holds-logo",
         r'(class="sidebar-primary-item)(?=">\s*<button class="[^"]*search)': r"\1 holds-search",
         r'(class="bd-article)(?=">(?:(?!</article>).)*class="lead")': r"\1 start"}


def name_parts(text: str) -> str:
    for what, name in PARTS.items():
        text = re.sub(what, name, text, flags=re.DOTALL)
    return text


def say_title_once(text: str) -> str:
    return re.sub(r"<title>(.+?) &#8212; \1</title>", r"<title>\1</title>", text)


def drop_sources(text: str) -> str:
    """A page that was written by hand offers no download of its Markdown."""
    return re.sub(r'<li><a href="[^"]*_sources/[^"]*\.md".*?</li>', "", text, flags=re.DOTALL)


def show_code(text: str) -> str:
    """What stands in backticks in the note of a measurement, as code."""
    return re.sub(r'<p class="dlsys-gpu-note">.*?</p>', lambda note: re.sub(
        r"`([^`]+)`", r"<code>\1</code>", note[0]), text, flags=re.DOTALL)


def hold_together(text: str) -> str:
    """Forbid a line break between a formula and the punctuation behind it."""
    return re.sub(r'(<math(?:(?!<math).)*?</math>)</span>([,.;:)?]+)',
                  r'<span class="whole">\1\2</span></span>', text, flags=re.DOTALL)


ROWS = re.compile(r'<div class="(?:[\w-]+ )*rows docutils">.*?</table>', re.DOTALL)


def label_cells(text: str) -> str:
    """In a table whose rows stand one below the other on a phone, each cell names its column."""
    return ROWS.sub(lambda table: labelled(table[0]), text)


def labelled(table: str) -> str:
    heads = [unescape(re.sub("<[^>]*>", "", head))
             for head in re.findall(r"<th\b.*?</th>", table, re.DOTALL)]

    def row(found: re.Match) -> str:
        columns = iter(heads)
        return re.sub("<td>", lambda _: f"<td data-label={quoteattr(next(columns))}>", found[0])

    return re.sub(r"<tr\b.*?</tr>", row, table, flags=re.DOTALL)


STEPS = (drop_idle, lambda text: ICON.sub(icon, text), name_folds, name_sidebar, name_parts,
         say_title_once, drop_sources, show_code, hold_together, label_cells)


def finish(html: Path, address: str) -> None:
    """Finish all pages under `html`; `address` is the public one, ending in a slash, or empty."""
    for page in html.rglob("*.html"):
        text = page.read_text("utf-8")
        for step in STEPS:
            text = step(text)
        page.write_text(text, "utf-8")
    slim(html)
    for source in (html / "_sources").glob("**/*.md"):
        source.unlink()
    guide_robots(html, address)


def slim(html: Path) -> None:
    """Take the icons' script, fonts and rules out of the theme."""
    for name in THEME_STYLES:
        style = html / name
        style.write_text(ICON_RULES.sub("", style.read_text("utf-8")), "utf-8")
    (html / "_static" / "scripts" / "fontawesome.js").unlink()
    shutil.rmtree(html / "_static" / "vendor" / "fontawesome")


LOST = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots"
content="noindex"><title>No such page: Deep Learning Systems</title>{base}<style>
:root {{ color-scheme: light dark }} body {{ max-width: 34rem; margin: 15vh auto; padding: 0 1rem;
font: 1.05rem/1.6 system-ui, sans-serif }}</style><main><h1>No page has this address</h1>
<p>It may have moved. Traps keep their numbers for ever: the <a href="traps.html">trap index</a>
lists them, the <a href="symptoms.html">symptom finder</a> starts from what you see, and the
<a href="index.html">start page</a> leads to every stage.</p></main></html>
"""


def guide_robots(html: Path, address: str) -> None:
    """404.html and robots.txt; with a public address also a site map, which must hold addresses."""
    base = f"<base href={quoteattr(address)}>" if address else ""
    (html / "404.html").write_text(LOST.format(base=base), "utf-8")
    robots = "User-agent: *\nAllow: /\n"
    if address:
        robots += f"Sitemap: {address}sitemap.xml\n"
        pages = sorted(str(p.relative_to(html)) for p in html.rglob("*.html")
                       if p.name not in {"404.html", "genindex.html", "search.html"}
                       and "_static" not in p.parts)
        places = "".join(f"<url><loc>{address}{page}</loc></url>\n" for page in pages)
        (html / "sitemap.xml").write_text(
            '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns='
            f'"http://www.sitemaps.org/schemas/sitemap/0.9">\n{places}</urlset>\n', "utf-8")
    (html / "robots.txt").write_text(robots, "utf-8")
