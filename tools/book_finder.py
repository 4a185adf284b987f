"""The symptom finder: what people see, the test, the fix and the trap, as page and search data.

The rows come from book/symptoms.yml, the guides' tables of signs and the lessons' keep cells; the
ranking is done by book/vendor/finder/finder.js, on this page and above the results of the search,
and by `dlsys find`, which reads the rows from src/dlsys/symptoms.json:

    .venv/bin/python -m tools.book_finder
"""

from __future__ import annotations

import functools
import html
import json
import re
from typing import NamedTuple
from urllib.parse import quote_plus

import nbformat
import yaml
from bs4 import BeautifulSoup
from docutils.nodes import make_id

from dlsys import find
from dlsys_helpers import catalog
from dlsys_helpers.catalog import sentence_case
from dlsys_helpers.paths import NOTEBOOKS, ROOT
from dlsys_helpers.stages import stage
from dlsys_watch.rules import all_rules
from tools import book_gallery, book_pages, book_traps

BOOK = ROOT / "book"
OTHERS = "More signs"  # the group of traps that symptoms.yml does not name
SIGNS = re.compile(r"^## Signs of .*?\n\n((?:\|.*\n)+)", re.MULTILINE)
BAR = re.compile(r"(?<!\\)\|")
LINK = re.compile(r"\[((?:\\.|[^\]\\])*)\]\([^)]*\)")
BOLD = re.compile(r"\*\*([^*`]+)\*\*")
MARKUP = re.compile(r"</?[a-z][^>]*>|\\(?=[^a-zA-Z0-9])")
BOX = """<p class="finder" hidden><label for="finder">What do you see?</label>
<input id="finder" type="search" autocomplete="off" placeholder="loss stuck at 0.693">
<span class="finder-said" role="status"></span></p>
<div class="finder-found" hidden></div>
<script defer src="finder/finder.js"></script>"""


class Row(NamedTuple):
    """One line of the finder; cells are Markdown."""

    see: str
    test: str
    fix: str
    page: str
    trap: str = ""


def page(lessons: book_pages.Lessons) -> str:
    parts = ["# Symptom finder",
             "Start from what you see in your own code. Most lines have the test that tells the "
             "causes apart, the fix, and the page that shows it on a small example. Lines of a "
             "guide leave the test to it, and what no trap or lesson shows says so. Where "
             "[`dlsys watch`](watch.md) sees the fault in a run, its rule stands beside the page. "
             "In a terminal, `dlsys find` asks the same rows.",
             book_pages.raw(BOX)]
    for group, rows in groups(lessons).items():
        table = book_pages.table(("What you see", "The test", "The fix", "Where"),
                                 [row[:4] for row in rows])
        parts += [f"## {group}", f":::{{div}} symptoms rows\n{table}\n:::"]
    return "\n\n".join(parts) + "\n"


def groups(lessons: book_pages.Lessons) -> dict[str, list[Row]]:
    """All rows by group, in the order of symptoms.yml."""
    told = yaml.safe_load((BOOK / "symptoms.yml").read_text("utf-8"))
    found = {group: [written(entry, lessons) for entry in entries]
             for group, entries in told["groups"].items()}
    for guide, group in told["guides"].items():
        found[group] += signs(guide)
    named = {entry.get("trap") for entries in told["groups"].values() for entry in entries}
    rest = [t for number in lessons for t in catalog.traps(number) if t.id not in named]
    if rest:
        found[OTHERS] = [of_trap(book_pages.plain(t.symptom), t.id, lessons) for t in rest]
    return found


def written(entry: dict, lessons: book_pages.Lessons) -> Row:
    """A row of symptoms.yml: with a trap, with a part of a lesson, or with neither."""
    see = f"**{book_pages.plain(entry['see'])}**"
    if entry.get("also"):
        see += f" Also: {book_pages.plain(entry['also'])}"
    if "trap" in entry:
        return of_trap(see, entry["trap"], lessons)
    place = part_of(entry["lesson"], entry["part"]) if "part" in entry else "No trap shows it"
    return Row(see, entry["test"], entry["fix"], place)


def part_of(lesson: int, heading: str) -> str:
    """A link to a part of a lesson by its heading; the link test checks that it exists."""
    return (f'<a href="notebooks/{stage(lesson).stem}.html#{make_id(heading)}">Lesson {lesson}: '
            f"{heading.removeprefix('Further: ')}</a>")


def of_trap(see: str, trap: str, lessons: book_pages.Lessons) -> Row:
    """A row whose test and fix are those of the trap's keep cell."""
    keep = book_traps.kept(lessons[int(trap[:2])], trap)
    place = f"[{trap} {book_pages.plain(catalog.trap(trap).name)}]({book_traps.name(trap)}.md)"
    if rules := rules_of(trap):
        place += f"; {find.says([f'`{rule}`' for rule in rules])}"
    place += book_gallery.link(trap)
    return Row(see, sentence_case(keep["In your own code"]), sentence_case(keep["Keep"]), place,
               trap)


@functools.cache
def rules_of(trap: str) -> tuple[str, ...]:
    """The watch's rules for a trap, sound ones first."""
    found = [rule for rule in all_rules() if rule.trap == trap]
    return tuple(rule.id for rule in sorted(found, key=lambda rule: not rule.sound))


def signs(guide: str) -> list[Row]:
    """The rows of a guide's table "Signs of a wrong ..."; its second column is the fix.

    Raises ValueError when the guide has no such table.
    """
    text = (BOOK / f"{guide}.md").read_text("utf-8")
    found = SIGNS.search(text)
    if not found:
        raise ValueError(f"book/{guide}.md: no table under '## Signs of ...', which symptoms.yml "
                         "names. Write it, or drop the guide there.")
    title = text.partition("\n")[0].removeprefix("# ")
    rows = [[cell.strip() for cell in BAR.split(line)[1:-1]] for line in found[1].splitlines()[2:]]
    return [Row(see, "See the guide", look, f"[{title}]({guide}.md)") for see, look in rows]


def search_rows(page: BeautifulSoup) -> list[dict[str, str]]:
    """The rows of the built page for the search: what one sees, all words, title, address.

    A row that no page covers leads to itself on the finder's page.
    """
    rows = []
    for row in page.select("article div.symptoms tbody tr"):
        see, *_, place = row.find_all("td")
        link = place.find("a")
        title, address = (link.get_text(strip=True), link["href"]) if link else (
            "Symptom finder", f"symptoms.html?q={quote_plus(see.strong.get_text())}")
        rows.append({"see": see.get_text(" ", strip=True), "title": title,
                     "rest": row.get_text(" ", strip=True), "page": address})
    return rows


def plain_text(cell: str) -> str:
    """A cell's words without its Markdown: code keeps its back-ticks, a link its text."""
    words = BOLD.sub(r"\1", LINK.sub(r"\1", cell))
    return " ".join(html.unescape(MARKUP.sub("", words)).split())


def rows_file(lessons: book_pages.Lessons) -> str:
    """All rows for `dlsys find`, as JSON; it takes the names of traps from the catalog."""
    rows = []
    for row in (row for group in groups(lessons).values() for row in group):
        see, test, fix, place = map(plain_text, row[:4])
        where = {"trap": row.trap, "rules": list(rules_of(row.trap))} if row.trap else {
            "page": place}
        rows.append({"see": see, "test": test, "fix": fix, **where})
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def built() -> book_pages.Lessons:
    """The lessons as they were built, by number."""
    return {s.number: nbformat.read(NOTEBOOKS / f"{s.stem}.ipynb", as_version=4)
            for s in catalog.written()}


def update() -> None:
    find.ROWS.write_text(rows_file(built()), "utf-8")


if __name__ == "__main__":
    update()
