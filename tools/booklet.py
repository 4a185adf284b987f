"""A page of the book as a booklet, a PDF with page numbers in its contents: ``make booklet``.

    python -m tools.booklet 08           book/_build/booklets/08_transformers.pdf
    python -m tools.booklet 08 --code    with the code that the page folds

Build the book first. Chromium prints the page twice, because only the PDF says on which sheet a
heading is: the second print gets the page numbers from the first.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from playwright.sync_api import Page

from dlsys_helpers.errors import UserError
from dlsys_helpers.stages import stage
from tools import chromium
from tools.book import BOOK

HTML, OUT = BOOK / "_build" / "html", BOOK / "_build" / "booklets"
READY = """async (code) => {
  const pictures = [...document.images];
  for (const picture of pictures) picture.loading = "eager";
  document.documentElement.classList.toggle("print-code", code);
  await Promise.all(pictures.map((picture) => picture.decode()));
}"""
NUMBER = """(pages) => document.querySelectorAll("#jb-print-toc a").forEach((link) => {
  link.dataset.page = pages[decodeURIComponent(link.hash.slice(1))] ?? "";
})"""


def print_booklet(tab: Page, page: Path, out: Path, code: bool = False) -> int:
    """Print a built page into the file `out`; returns its number of sheets.

    code: also the code that the page folds.
    """
    tab.goto(page.as_uri())
    tab.evaluate(READY, code)
    tab.evaluate(NUMBER, places(tab.pdf(format="A4")))
    made = tab.pdf(format="A4", outline=True, tagged=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(made)
    return len(sheets(made))


def sheets(pdf: bytes) -> list[int]:
    """The page objects of a PDF from Chromium, in order."""
    nodes = {int(number): [int(kid) for kid in kids.split()[::3]] for number, kids in re.findall(
        rb"(\d+) 0 obj\s*<<[^>]*?/Type /Pages[^>]*?/Kids \[([^\]]*)\]", pdf)}
    below = {kid for kids in nodes.values() for kid in kids}
    [root] = nodes.keys() - below

    def leaves(number: int) -> list[int]:
        return [leaf for kid in nodes[number] for leaf in leaves(kid)] if number in nodes else [
            number]
    return leaves(root)


def places(pdf: bytes) -> dict[str, int]:
    """The sheet, counted from 1, of each anchor that the PDF links to."""
    order = {number: place for place, number in enumerate(sheets(pdf), 1)}
    found = re.findall(rb"/(\S+) \[(\d+) 0 R /XYZ", pdf)
    return {unescaped(name): order[int(number)] for name, number in found if int(number) in order}


def unescaped(name: bytes) -> str:
    """Decode a name in a PDF: #2E is a full stop."""
    return re.sub(rb"#([0-9A-Fa-f]{2})", lambda m: bytes([int(m[1], 16)]), name).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description="A stage as a booklet of the built book.")
    parser.add_argument("stage", type=int, help="its number")
    parser.add_argument("--code", action="store_true", help="with the code that the page folds")
    args = parser.parse_args()
    try:
        name = stage(args.stage).stem
        page = HTML / "notebooks" / f"{name}.html"
        if not page.is_file():
            raise UserError(f"{page.name}: missing in the built book. Run: make book")
        with chromium.opened() as browser:
            count = print_booklet(browser.new_page(), page, OUT / f"{name}.pdf", args.code)
        print(f"{OUT / name}.pdf, {count} pages")
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
