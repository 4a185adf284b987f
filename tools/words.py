"""Hold lessons to the glossary: no technical term before its explanation.

A term counts as explained from the section that the glossary names as its place, in this and all
later stages; the top of a lesson may name what it will explain. `listed` puts earlier uses into the
list at the top of the lesson, with the clause. On the website `linked` links the first use in a
lesson to the glossary.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterator, Sequence

from docutils.nodes import make_id
from nbformat import NotebookNode

from dlsys import glossary
from dlsys.glossary import Term

# The visible steps: those whose text counts, and those whose unfolded code counts.
TEXT = {"hook", "concept", "situation", "look", "why", "repair", "keep", "gpu", "summary"}
CODE = {"concept", "break", "look", "why", "repair"}
# Parts that are not words of the text, or that must not be linked.
CLOSED = re.compile(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]+\$|!?\[[^]]*\]\([^)]*\)|<a .*?</a>|"
                    r"\{\w+\}`[^`]*`|<[^>]+>|^#.*?$|^:::.*?$|\bhttps?://\S+|\*\*Source:\*\*.*",
                    re.S | re.M)
SPAN = re.compile(r"`[^`\n]+`")


def facts(cell: NotebookNode) -> dict:
    """Role and trap of a cell in a lesson's source or in a built notebook."""
    return cell.metadata.get("dlsys", cell.metadata)


@functools.cache
def pattern(term: Term) -> re.Pattern:
    """A pattern for the term in any spelling; lower-case words may begin a sentence."""
    if term.is_call:
        return re.compile("|".join(rf"(?<![\w.]){re.escape(one)}(?!\w)" if one[0].isalpha() else
                                   rf"{re.escape(one)}(?!\w)" for one in term.spellings))
    words = [re.escape(one).replace(r"\ ", r"[\s*]+") for one in term.spellings]
    words = [f"(?i:{word[0]}){word[1:]}" if word[0].islower() else word for word in words]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(words)})s?(?![\w-])")


@functools.lru_cache(4096)
def open_text(source: str) -> str:
    """The Markdown with spaces, of the same length, for all that is not text."""
    return CLOSED.sub(lambda closed: closed[0] if re.fullmatch(r"`[\w.]+(\([^`]*\))?`", closed[0])
                      else " " * len(closed[0]), source)


def places(cell: NotebookNode, term: Term) -> Iterator[tuple[int, int]]:
    """Where a cell's text names a term; a link may replace these parts."""
    if not term.is_call:
        yield from (found.span() for found in pattern(term).finditer(open_text(cell.source)))
        return
    for span in SPAN.finditer(cell.source):
        if pattern(term).search(span[0].strip("`")):
            yield span.span()


def uses(cell: NotebookNode, term: Term) -> bool:
    """Whether the open text or code of a cell uses a term."""
    role, tags = facts(cell).get("role"), facts(cell).get("tags", []) or cell.metadata.get("tags")
    if cell.cell_type == "markdown":
        return role in TEXT and any(places(cell, term))
    return bool(term.is_call and role in CODE and "plumbing" not in (tags or [])
                and pattern(term).search(cell.source))


def sections(cells: Sequence[NotebookNode], number: int) -> list[str]:
    """The place of each cell, in the glossary's notation."""
    found, heading = [], ""
    for cell in cells:
        trap = facts(cell).get("trap")
        heads = re.findall(r"^###? (.+)$", cell.source, re.M)
        if heads and not trap and cell.cell_type == "markdown":
            heading = f"lesson {number:02}: {heads[-1]}"
        found.append(f"trap {trap}" if trap else heading)
    return found


def ahead(cells: Sequence[NotebookNode], number: int) -> list[Term]:
    """The terms that a lesson uses before their explanation, in the order of their use."""
    found, here = [], sections(cells, number)
    for term in glossary.terms():
        if 0 < term.stage < number:
            continue
        first = next((at for at, cell in enumerate(cells) if uses(cell, term)
                      and not (term.stage == number and facts(cell).get("role") == "hook")), None)
        if first is not None and (term.where not in here or first < here.index(term.where)):
            found.append((first, term))
    return [term for _, term in sorted(found, key=lambda one: one[0])]


def lost(cells: Sequence[NotebookNode], number: int) -> list[str]:
    """The errors in what the glossary says about this lesson."""
    here, wrong = sections(cells, number), []
    for term in (one for one in glossary.terms() if one.stage == number):
        inside = [cell for cell, place in zip(cells, here, strict=True)
                  if term.listed or place == term.where]
        named = re.search(rf"(?i){re.escape(term.spellings[0])}", term.where)
        if not (inside and named) and not any(uses(cell, term) for cell in inside):
            wrong.append(f"glossary.csv explains {term.name} in {term.where!r}, which "
                         f"{'does not name it' if inside else 'is not there'}.")
    return wrong


def listed(cells: Sequence[NotebookNode], number: int) -> str:
    """The list at the top of a lesson of terms used before their explanation; "" for none."""
    rows = [f"- {term.name if term.is_call else f'**{term.name}**'}: {term.clause}{later(term)}"
            for term in ahead(cells, number)]
    if not rows:
        return ""
    return "\n".join(["<details><summary>Words and calls that come up before a lesson explains "
                      f"them ({len(rows)})</summary>\n", *rows, "\n</details>"])


def later(term: Term) -> str:
    """A sentence on which stage teaches a term of the list."""
    known = term.home and not term.home.page
    return f" *Stage {term.home.heading[0]} teaches it.*" if known else ""


def anchor(term: Term) -> str:
    return f"{'call' if term.is_call else 'word'}-{make_id(term.spellings[0])}"


def linked(cells: Sequence[NotebookNode], number: int) -> None:
    """Link a lesson's first use of each term that it does not explain to the glossary."""
    here = sections(cells, number)
    for term in glossary.terms():
        at, cell = next(((at, cell) for at, cell in enumerate(cells)
                         if cell.cell_type == "markdown" and uses(cell, term)), (0, None))
        if cell is None or (term.where in here and at >= here.index(term.where)):
            continue
        start, end = next(places(cell, term))
        start, end = next((code.span() for code in SPAN.finditer(cell.source)
                           if code.start() <= start < code.end()), (start, end))
        cell.source = (f'{cell.source[:start]}<a class="word" href="../glossary.html#'
                       f'{html.escape(anchor(term))}">{cell.source[start:end]}</a>'
                       f"{cell.source[end:]}")
