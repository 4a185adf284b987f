"""The symptom finder: what people see, the test, the fix and the traps, as page and search data.

The rows come from book/symptoms.yml, the guides' tables of signs and the lessons' keep cells, the
rules for reading words from book/finder.yml, and the ways in which people describe each cause from
book/finder_said.yml. `dlsys find` ranks by src/dlsys/symptoms.json, which stores all of them. A
copy next to the pages is for book/assets/finder/finder.js, which ranks the same way on this page
and on the page of search results:

    .venv/bin/python -m tools.book_finder
"""

from __future__ import annotations

import functools
import html
import json
import math
import re
from typing import NamedTuple
from urllib.parse import quote_plus

import nbformat
import yaml

from dlsys import assignments, find
from dlsys_helpers import catalog
from dlsys_helpers.catalog import sentence_case
from dlsys_helpers.paths import NOTEBOOKS, ROOT
from dlsys_watch.rules import all_rules
from tools import book_gallery, book_pages, book_traps, book_units, finder_record, finder_words

BOOK = ROOT / "book"
OTHERS = "More signs"  # the group of traps that symptoms.yml does not name
SHOWN = 6  # how many of a row's other words the page shows; the finder knows them all
TRAP = re.compile(r"\d\d\.\d+")
COMMA = re.compile(r", (?![^(]*\))")  # but not within parentheses
SIGNS = re.compile(r"^## Signs of .*?\n\n((?:\|.*\n)+)", re.MULTILINE)
BAR = re.compile(r"(?<!\\)\|")
LINK = re.compile(r"\[((?:\\.|[^\]\\])*)\]\(([^)]*)\)")
ANCHOR = re.compile(r'<a href="([^"]*)">([^<]*)</a>')
BOLD = re.compile(r"\*\*([^*`]+)\*\*")
MARKUP = re.compile(r"</?[a-z][^>]*>|\\(?=[^a-zA-Z0-9])")
BOX = """<p class="finder" hidden><label for="finder">What do you see?</label>
<input id="finder" type="search" autocomplete="off" placeholder="loss stuck at 0.693">
<span class="finder-said" role="status"></span>
<a class="finder-pages" href="search.html" hidden>Search all pages for these words</a></p>
<div class="finder-taught" hidden><p></p><ul></ul></div>
<div class="finder-causes" hidden><p></p><ol></ol></div>
<div class="finder-search" hidden><p></p><ul></ul>
<a href="method.html">The whole method, with a log</a>, and
<a href="incidents.html">incidents to practise it on</a></div>
<div class="finder-found" hidden></div>
<script defer src="finder/rows.js"></script>
<script defer src="finder/finder.js"></script>"""


class Row(NamedTuple):
    """One line of the finder; texts are Markdown."""

    see: str
    also: list[str]
    test: str
    fix: str
    causes: list[str]  # trap numbers, or sentences for causes that no trap shows
    page: str = ""  # where a row without causes links to


def page(lessons: book_pages.Lessons) -> str:
    parts = ["# Symptom finder", "Start from what you see in your own run.",
             book_pages.raw(BOX),
             "Each row gives the test that tells its causes apart, the fix, and the pages that "
             "show the fault on a small example, the most frequent cause first. A row from a "
             "guide links to this guide for the test, and a cause that no trap shows is "
             "marked. If [`dlsys watch`](watch.md) can see the fault in a run, the row also "
             "names "
             "its rule. Above the rows the finder says how sure it is of a cause: very likely, "
             "likely or possible. If none of its causes fits, the finder says how to search "
             "without it. The finder also names the sections that teach what you ask for, "
             "from the list of [what you can learn here](concepts.md). The finder understands "
             "English only. In a terminal, `dlsys find` searches the same rows and gives the "
             "same answers."]
    for group, rows in groups(lessons).items():
        table = book_pages.table(("What you see", "The test", "The fix", "Where"),
                                 [cells(row) for row in rows])
        parts += [f"## {group}", f":::{{div}} symptoms rows\n{table}\n:::"]
    parts += ["## How often it is right", measured()]
    return "\n\n".join(parts) + "\n"


def measured() -> str:
    """How the finder does on phrases from people who asked, see tests/test_find.py."""
    got = finder_record.RECORD.entries()
    unseen, later, newest = got["unseen"], got["later"], got["newest"]
    every = unseen["with"] + unseen["without"] + unseen["rows"]
    sentences = [
        "The finder's confidence comes from a curve fitted to phrases from public threads.",
        f"Then {every} further phrases, from other repositories, were tried once.",
        f"The cause of {unseen['with']} of these phrases is a trap. For {unseen['shown']} of them, "
        f"the right trap is among the three causes shown, and for {unseen['found']} phrases the "
        "finder gives this trap as its answer instead of saying that none of its causes fits.",
        f"The cause of {unseen['rows']} phrases is in a row without a trap, and the finder shows "
        f"this cause for {unseen['told']}.",
        f"The cause of the other {unseen['without']} phrases is in no row. For "
        f"{unseen['nothing']} of them, the finder says that none of its causes fits, and for "
        f"{unseen['hedged'] - unseen['nothing']} more it calls no cause more than possible.",
        f"In all, {unseen['mistaken']} of the {every} phrases get a likely or very likely answer "
        "without the right cause.",
        f"The newest set has {newest['with'] + newest['without'] + newest['rows']} phrases, from "
        "repositories that nothing else of the finder names, and was tried once after the last "
        f"fit. The finder shows the right trap for {newest['shown']} of {newest['with']} phrases, "
        f"says for {newest['nothing']} of the {newest['without']} phrases whose cause is in no row "
        f"that none of its causes fits, and gives {newest['mistaken']} of all a likely or very "
        "likely answer without the right cause.",
        f"The hardest set has {later['with'] + later['without'] + later['rows']} phrases. Many of "
        "them show the sign of a cause that a lesson teaches, but have a different cause. For "
        f"{later['nothing']} of the {later['without']} phrases whose cause is in no row, the "
        "finder says that none of its causes fits, and for "
        f"{later['hedged'] - later['nothing']} more it calls no cause more than possible; "
        f"{later['mistaken']} phrases of the whole set get a likely or very likely answer "
        "without the right cause. So believe an answer only after you have run its test."]
    return " ".join(sentences)


def cells(row: Row) -> tuple[str, str, str, str]:
    also = f" Also: {', '.join(row.also[:SHOWN])}" if row.also else ""
    return f"**{row.see}**{also}", row.test, row.fix, places(row)


def places(row: Row) -> str:
    """The links of a row; several causes are numbered, the most frequent first."""
    found = [cause_place(cause) for cause in row.causes] or [row.page]
    if len(found) == 1:
        return found[0]
    return "<br>".join(f"{place}. {text}" for place, text in enumerate(found, 1))


def cause_place(cause: str) -> str:
    if not TRAP.fullmatch(cause):
        return f"{book_pages.plain(cause)}; {find.NO_TRAP}"
    place = f"[{cause} {book_pages.plain(catalog.trap(cause).name)}]({book_traps.name(cause)}.md)"
    if rules := rules_of(cause):
        place += f"; {find.watch_says([f'`{rule}`' for rule in rules])}"
    return place + book_gallery.link(cause)


def groups(lessons: book_pages.Lessons) -> dict[str, list[Row]]:
    """All rows by group, in the order of symptoms.yml."""
    told = yaml.safe_load((BOOK / "symptoms.yml").read_text("utf-8"))
    found = {group: [row_from_entry(entry, lessons) for entry in entries]
             for group, entries in told["groups"].items()}
    for guide, group in told["guides"].items():
        found[group] += signs(guide)
    named = {cause for rows in found.values() for row in rows for cause in row.causes}
    rest = [t for number in lessons for t in assignments.by_number(number) if t.id not in named]
    if rest:
        found[OTHERS] = [row_with_causes({"see": t.symptom, "trap": t.id}, lessons) for t in rest]
    return found


def row_from_entry(entry: dict, lessons: book_pages.Lessons) -> Row:
    """A row of symptoms.yml, which has causes, a part of a lesson, or neither."""
    if "trap" in entry or "causes" in entry:
        return row_with_causes(entry, lessons)
    place = book_pages.part_of(entry["lesson"], entry["part"], f"Lesson {entry['lesson']}: ") if (
        "part" in entry) else "No trap shows it"
    return Row(book_pages.plain(entry["see"]), other_words(entry), entry["test"], entry["fix"], [],
               place)


def other_words(entry: dict) -> list[str]:
    return [book_pages.plain(one) for one in COMMA.split(entry["also"])] if "also" in entry else []


def row_with_causes(entry: dict, lessons: book_pages.Lessons) -> Row:
    """A row with causes; the keep cell of its first trap supplies a missing test or fix."""
    causes = [entry["trap"]] if "trap" in entry else entry["causes"]
    first = next((cause for cause in causes if TRAP.fullmatch(cause)), None)
    keep = book_traps.keep_parts(lessons[int(first[:2])], first) if first else {}
    test = entry.get("test") or sentence_case(keep["In your own code"])
    fix = entry.get("fix") or sentence_case(keep["Keep"])
    return Row(book_pages.plain(entry["see"]), other_words(entry), test, fix, causes)


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
    return [Row(see, [], "See the guide", look, [], f"[{title}]({guide}.md)") for see, look in rows]


def plain_text(cell: str) -> str:
    """A text without its Markdown, except that code keeps its backticks and a link its text."""
    words = BOLD.sub(r"\1", LINK.sub(r"\1", cell))
    return " ".join(html.unescape(MARKUP.sub("", words)).split())


def rules() -> dict:
    """The rules of book/finder.yml ready for look-up: words as stems, levels as numbers."""
    told = yaml.safe_load((BOOK / "finder.yml").read_text("utf-8"))
    stem = functools.partial(find.stem, endings=told["endings"])
    same = {" ".join(map(stem, find.WORD.findall(one))): group[0]
            for group in told["same"] for one in group}
    kept = {name: told[name] for name in ("endings", "weights", "gate", "sure", "ends", "search")}
    levels, like = told["levels"], [[*map(stem, group.split())] for group in told["like"]]
    return {**kept, "near": levels["near"],
            "like": [" ".join(dict.fromkeys(same.get(word, word) for word in group))
                     for group in like],
            "idle": sorted({stem(word) for word in told["idle"].split()}), "same": same,
            "longest": max(len(words.split()) for words in same),
            "levels": [["guessing", round(math.log(n), 4)] for n in levels["guessing"]] + [
                ["second", round(math.log(math.e + n - 1) - 1, 4)] for n in levels["second"]]}


def stored_row(row: Row) -> dict:
    """A row for `dlsys find`, which takes the names of traps from the catalog."""
    causes = [{"trap": cause, "rules": list(rules_of(cause))} if TRAP.fullmatch(cause) else
              {"says": plain_text(cause)} for cause in row.causes]
    page = {"page": plain_text(row.page)} if row.page else {}
    return {"see": plain_text(row.see), "also": [plain_text(one) for one in row.also],
            "test": plain_text(row.test), "fix": plain_text(row.fix), "causes": causes, **page}


def stored_rows(lessons: book_pages.Lessons) -> list[dict]:
    """All rows as they are stored, in page order."""
    return [stored_row(row) for group in groups(lessons).values() for row in group]


def rows_file(lessons: book_pages.Lessons) -> str:
    """The rules, the word weights and the rows as JSON, one row per line."""
    rows = stored_rows(lessons)
    said = json.dumps(finder_words.weights(rows, find.stored()["said"]), separators=(",", ":"))
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return (f'{{"rules": {json.dumps(rules(), ensure_ascii=False)},\n"said": {said},\n'
            f'"rows": [\n{lines}\n]}}\n')


def link_of(row: Row) -> tuple[str, str]:
    """Title and address of the page of a row's first trap, or of its other page.

    A row without such a page links to itself on the finder's page.
    """
    for cause in row.causes:
        if TRAP.fullmatch(cause):
            return f"{cause} {catalog.trap(cause).name}", f"{book_traps.name(cause)}.html"
    if found := LINK.search(row.page):
        return found[1], found[2].replace(".md", ".html")
    if found := ANCHOR.search(row.page):
        return found[2], found[1]
    return "Symptom finder", f"symptoms.html?q={quote_plus(plain_text(row.see))}"


def script(lessons: book_pages.Lessons) -> str:
    """The data that the pages' script ranks by: the rules, the word weights, and for each row its
    words, the indices of its causes, its title and its address."""
    stored, rows = stored_rows(lessons), []
    said = dict(finder_words.weights(stored, find.stored()["said"]))
    place = {cause: at for at, cause in enumerate(said["causes"])}
    said["causes"] = [
        (find.cause_line(cause), f"{book_traps.name(cause)}.html" if TRAP.fullmatch(cause) else "",
         find.watch_line(cause)) for cause in said["causes"]]
    for row, own in zip((row for group in groups(lessons).values() for row in group), stored,
                        strict=True):
        title, address = link_of(row)
        rows.append({**find.words_of(own), "title": title, "page": address,
                     "causes": [place[cause] for cause in find.causes_of(own)]})
    told = {"rules": rules(), "said": {**said, "none": place[find.NONE]}, "rows": rows,
            "texts": texts(), "taught": book_units.told()}
    return f"window.FINDER = {json.dumps(told, separators=(',', ':'))};\n"


def texts() -> dict:
    """The texts that the page shares with the terminal."""
    return {"markup": find.MARKUP.pattern, "headings": find.HEADINGS, "unsure": find.UNSURE,
            "none": find.NONE_OF_OURS, "english": find.ENGLISH, "search": find.SEARCH,
            "long": find.long_text()}


def built_lessons() -> book_pages.Lessons:
    """The built lessons, by number."""
    return {s.number: nbformat.read(NOTEBOOKS / f"{s.stem}.ipynb", as_version=4)
            for s in catalog.written()}


def update() -> None:
    find.stored()["rules"] = rules()  # reading the phrases needs them
    find.STORED.write_text(rows_file(built_lessons()), "utf-8")


if __name__ == "__main__":
    update()
