"""Finish the built pages: drop style rules that no page uses, write files for search engines.

Templates and events make the pages themselves, see book_theme.py. This module does what Sphinx
cannot: the theme ships each style sheet as one file with rules for everything that it could show,
and its scripts with their maps, and no option leaves any of it out.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import tinycss2

WORD = re.compile(r"[A-Za-z_][\w-]*")
CLASS = re.compile(r"\.(-?[A-Za-z_][\w-]*)")
ICON_FONT = re.compile(r"Font ?Awesome|--fa-font|--pst-icon-|--pst-breadcrumb-divider")
# No page loads these: icons as a script and as fonts, bootstrap, maps for developers of the theme.
UNUSED = ("_static/scripts/fontawesome.js*", "_static/scripts/bootstrap.js*",
          "_static/vendor/fontawesome", "_static/**/*.map", "_static/*-macros.html",
          "_sources/**/*.md")
STYLES = ("styles/pydata-sphinx-theme.css", "styles/sphinx-book-theme.css", "sphinx-design.min.css",
          "mystnb.*.css", "basic.css")


def finish(html: Path, address: str) -> None:
    """Finish the pages under `html`; `address` is the public one, ending in a slash, or empty."""
    for file in {file for pattern in UNUSED for file in html.glob(pattern)}:
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    slim(html)
    write_robots(html, address)
    write_indexes(html)


# ---- style sheets

def slim(html: Path) -> None:
    """Remove from the theme's style sheets what no page uses."""
    used = words(html)
    for file in {file for name in STYLES for file in (html / "_static").glob(name)}:
        rules = tinycss2.parse_stylesheet(file.read_text("utf-8"), skip_comments=True,
                                          skip_whitespace=True)
        kept = used_rules(rules, used)
        file.write_text("".join(tinycss2.serialize([rule]) for rule in kept), "utf-8")


def words(html: Path) -> set[str]:
    """Every word in pages and scripts, and so every class that an element can have."""
    return {word for kind in ("*.html", "*.js") for file in html.rglob(kind)
            if file.name != "searchindex.js" for word in WORD.findall(file.read_text("utf-8"))}


def used_rules(rules: Iterable, used: set[str]) -> Iterator:
    """The rules of a style sheet that may match an element, including those inside @media."""
    for rule in rules:
        if rule.type == "qualified-rule":
            if may_match(tinycss2.serialize(rule.prelude), used) and not is_icon(rule):
                yield rule
        elif rule.type == "at-rule" and rule.lower_at_keyword in {"media", "supports"}:
            inner = tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)
            if left := [*used_rules(inner, used)]:
                rule.content = left
                yield rule
        elif rule.type != "at-rule" or not ICON_FONT.search(tinycss2.serialize([rule])):
            yield rule


def may_match(selectors: str, used: set[str]) -> bool:
    """Whether one of the selectors names only classes that pages use."""
    return any(used.issuperset(CLASS.findall(one)) for one in selectors.split(","))


def is_icon(rule: tinycss2.ast.QualifiedRule) -> bool:
    """Whether a rule draws an icon next to text, which is an empty box without the icon font."""
    return bool(re.search(r":(?:before|after)", tinycss2.serialize(rule.prelude))
                and ICON_FONT.search(tinycss2.serialize(rule.content)))


# ---- robots

def write_robots(html: Path, address: str) -> None:
    """Write robots.txt and, if there is a public address, a site map, which needs one."""
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


# ---- folders

INDEX = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<meta http-equiv="refresh" content="0; url={page}">
<title>{name}</title>
</head>
<body><main><h1>{name}</h1><p>This folder has a page: <a href="{page}">{page}</a>.</p></main></body>
</html>
"""


def write_indexes(html: Path) -> None:
    """Redirect each folder of pages to the page with its name, else to the first page.

    Otherwise a reader who shortens an address gets the server's list of the folder's files.
    """
    for folder in {page.parent for page in html.rglob("*.html")} - {html}:
        parts = folder.relative_to(html).parts
        if parts[0].startswith("_") or (folder / "index.html").exists():
            continue
        up, own = "../" * len(parts), html / f"{'/'.join(parts)}.html"
        page = f"../{own.name}" if own.exists() else f"{up}index.html"
        (folder / "index.html").write_text(INDEX.format(name=parts[-1], page=page), "utf-8")
