"""How many bytes a page of the built book needs to open, with everything it loads at once."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from bs4 import BeautifulSoup

from dlsys_helpers.errors import UserError
from tools.book import BOOK

HTML = BOOK / "_build" / "html"
AT_ONCE = "script[src], img[src]:not([loading=lazy]), link[rel=stylesheet], link[rel=icon]"
KINDS = {"notebooks": "stages, whole lessons", "traps": "traps"}  # by folder
AIMS_KB = {"notebooks": 200, "traps": 80}


def rows() -> list[list]:
    """Kind of page, how many, lightest, middle and heaviest in kB, and aim.

    Raises UserError if the book is not built.
    """
    if not (HTML / "index.html").is_file():
        raise UserError("index.html: missing in the built book. Run: make book")
    return [[KINDS[folder], len(found), found[0], found[len(found) // 2], found[-1],
             AIMS_KB[folder]]
            for folder in KINDS
            for found in [sorted(weight(page) / 1e3 for page in (HTML / folder).glob("*.html")
                                 if not leads_on(page))]]


def leads_on(page: Path) -> bool:
    """Whether a page only sends its reader to another one, as the index of a folder does."""
    return '<meta http-equiv="refresh"' in page.read_text("utf-8")


def weight(page: Path) -> int:
    """Bytes of a page to open, each file gzipped."""
    return sum(map(zipped, opened(page, BeautifulSoup(page.read_text("utf-8"), "html.parser"))))


def opened(page: Path, tree: BeautifulSoup) -> set[Path]:
    """The files that a page needs to open: itself, scripts, style sheets, pictures at once."""
    asked = [tag.get("src") or tag.get("href") for tag in tree.select(AT_ONCE)]
    return {page, *((page.parent / urlsplit(ref).path).resolve() for ref in asked
                    if not ref.startswith("data:"))}


@cache
def zipped(path: Path) -> int:
    return len(gzip.compress(path.read_bytes(), 9, mtime=0))
