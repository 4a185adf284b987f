"""The sentences of a lesson or a page that most deserve a second look, worst first.

    .venv/bin/python -m tools.sentences lessons/03_losses.py     --first 40 shows 40 of them
    .venv/bin/python -m tools.sentences                          how many there are, by file

An aid for editors: it refuses nothing, and a sentence on the list can be fine.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dlsys_helpers import paths
from tools import lessons

FIRST, LONG, COLONS = 20, 30, 2   # sentences shown; what counts as many words and colons

# Words that are often wrong, and the usual replacements.
WORDS = {
    r"whoever|who guesses": "name the actor",
    r"that of|those of|the one of": "repeat the noun",
    r"reads? (?:the|all|nearly|most|as many)\b.*?\bdigits?|readers?": "classifier, gets right",
    r"shares?": "fraction, accuracy", r"deviations?(?<!standard deviation)": "standard deviation",
    r"dice|thrown": "random", r"pays|paid": "has a loss of", r"behind": "after",
    r"beside": "next to, compared with", r"stands?|lies": "is", r"gives": "returns",
    r"hands|handed": "passes", r"mends?": "fixes", r"another": "a different", r"anew": "again",
    r"once more": "again", r"goes on|go on": "continues", r"but for": "except for",
    r"alike": "equal, both", r"take[ns]? .{1,20} for": "treats as"}
WRONG = [(re.compile(rf"\b(?:{words})\b", re.I), right) for words, right in WORDS.items()]
TOO = re.compile(r", too\b")
PRONOUN = re.compile(r"(?:It|They|Both|Neither)\b|(?:This|That|These|Those) (?:is|are|was|were|has"
                     r"|have|does|do|can|will)\b(?! why)")
VERBS = """add agree answer ask average become begin behave belong call change check choose clip
    come compare compute contain copy cost count cover cut decide depend differ divide do drop end
    expect explain fail fall fit fix follow get give go grow hold ignore keep know lead learn leave
    let load log look lose make match matter mean measure miss move multiply need output overflow
    pass pay print put raise reach read remain repeat replace
    report return rise round run save say scale see send
    set show start stay stop store sum take tell test think train try turn use want wait work
    write"""
VERB = re.compile(
    r"\b(?:am|is|are|was|were|be|been|has|have|had|did|can|could|will|would|may|might|must"
    r"|should|made|took|kept|ran|saw|said|wrote|found|lost|fell|rose|grew|became|began|left|sent|does"
    rf"|goes|(?:{'|'.join(VERBS.split())})s?|\w+ed)\b", re.I)
ACTOR = re.compile(r"\b(?:you|your|we)\b|(?:^|[.:;] +)(?:Use|Build|Compare|Count|Check|Log|Print"
                   r"|Put|Measure|Keep|Give|Set|Run|Load|Save|Test|Divide|Multiply|Pass|Choose|Train"
                   r"|Look|Ask|Clip|Scale|Write|Read|Call|Treat|Make|Never|Always|Do|Don't|Weight"
                   r"|Take|Try|Leave|Fix|Start|Name|Replace|Evaluate|Normalize|Decide)\b", re.I)
NO_PROSE = re.compile(r"```.*?```|\$\$.*?\$\$|<!--.*?-->|<[^>\n]+>|^ *[|:>#][^\n]*$", re.S | re.M)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
END = re.compile(r"(?<=[.!?])[*\"')]* +(?=[A-Z`*\"'(])")


class Look(NamedTuple):
    """A sentence, and why it deserves a look."""

    where: str
    sentence: str
    why: list[str]


def cells(path: Path) -> Iterator[tuple[str, str, str]]:
    """(place, role, Markdown) of the text cells of a lesson, or of a whole page."""
    if path.suffix == ".py":
        for number, cell in enumerate(lessons.Source(path).cells, 1):
            if cell.cell_type == "markdown":
                data = cell.metadata
                yield (f"cell {number} {data.get('trap', '')} {data.get('role', '')}".strip(),
                       data.get("role", ""), cell.source)
    else:
        yield path.name, "", path.read_text("utf-8")


def paragraphs(markdown: str) -> list[str]:
    """The paragraphs and list items of a text, each on one line, without markup."""
    text = LINK.sub(r"\1", NO_PROSE.sub("", markdown))
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
    found = (re.sub(r"^(?:[-*]|\d+\.) ", "", " ".join(part.split())) for part in parts)
    return [part.replace("**", "") for part in found if len(part) > 2]


def reasons(sentence: str, first: bool = False) -> list[str]:
    """Why a sentence deserves a look. first: whether it begins a paragraph."""
    plain = re.sub(r"`[^`]*`", "x", sentence)
    found = [f"{match[0].lower()!r}: {right}" for pattern, right in WRONG
             if (match := pattern.search(plain))]
    if TOO.search(plain):
        found.append("', too': also")
    if (words := len(plain.split())) > LONG:
        found.append(f"{words} words")
    if plain.count(": ") >= COLONS:
        found.append(f"{plain.count(': ')} colons")
    if first and PRONOUN.match(plain):
        found.append("a pronoun begins the paragraph")
    if words > 3 and plain.endswith(".") and not VERB.search(plain):
        found.append("no verb in sight")
    return found


def _without_label(markdown: str) -> str:
    """The text of a Keep, without the label that begins it."""
    return " ".join(paragraphs(markdown)).removeprefix("Keep:").lstrip()


def looks(path: Path) -> list[Look]:
    """The sentences of a file that deserve a look, those with the most reasons first."""
    found = []
    for where, role, markdown in cells(path):
        for paragraph in paragraphs(markdown):
            parts = END.split(paragraph)
            found += [Look(where, part, why) for place, part in enumerate(parts)
                      if (why := reasons(part, first=place == 0))]
        if role == "keep" and not ACTOR.search(_without_label(markdown)):
            found.append(Look(where, paragraphs(markdown)[0], ["a Keep without an actor"]))
    return sorted(found, key=lambda look: -len(look.why))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="lessons or pages (default: count all)")
    parser.add_argument("--first", type=int, default=FIRST, metavar="N",
                        help=f"how many to show of each file (default {FIRST})")
    asked = parser.parse_args(argv)
    for path in asked.files:
        if not path.is_file():
            parser.error(f"got {path}, expected the file of a lesson or a page")
        found = looks(path)
        print(f"{path}: {len(found)} sentences")
        for look in found[:asked.first]:
            print(f"\n{look.where}: {'; '.join(look.why)}\n  {look.sentence}")
    if not asked.files:
        for path in [*paths.lessons(), *sorted((paths.ROOT / "book").glob("*.md"))]:
            print(f"{len(looks(path)):5} {path.relative_to(paths.ROOT)}")


if __name__ == "__main__":
    main()
