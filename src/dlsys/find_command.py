"""`dlsys find`: what a word means, where it is taught, and the causes that fit a symptom."""

import argparse
import os
from urllib.parse import quote_plus

from dlsys import find, glossary, units
from dlsys.grading.text import visible
from dlsys_helpers.errors import UserError

ASKED = 200  # characters of the question that go into an address


def add_parser(commands) -> None:
    """Add `find` to the commands of `dlsys`."""
    parser = commands.add_parser("find", help="the traps that fit what you see, such as "
                                              '"loss stuck at 2.303", or where something is '
                                              'taught: "weight decay"')
    parser.add_argument("words", nargs="+", help="what you see, an error message, or a technical "
                                                 "term")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run `dlsys find`; returns 1 if no term, no unit of the course and no cause fits.

    In that case, it also prints the nearest units, which may be meant.
    """
    query = " ".join(args.words)
    if not find.plain(query):
        raise UserError(f"find: got {query[:40]!r}, expected words for what you see, in English, "
                        "or a number.")
    taught = [*glossary.lines(query), *units.lines(units.rank(query))]
    print(*taught, sep="\n", end="\n" * bool(taught))
    answer = find.rank(find.index(find.rows()), query)
    perhaps = units.lines(units.nearest(query, answer), units.PERHAPS)
    if taught and not answer.fits:
        print(*perhaps, sep="\n", end="\n" * bool(perhaps))
        return 0
    show(answer, query, perhaps)
    return 0 if answer.fits else 1


def show(answer: find.Answer, query: str, perhaps: list[str]) -> None:
    """Print the causes by how sure the finder is, their signs, or how to search without them.

    perhaps: the lines about units that may be meant.
    """
    beside = [*(visible(note) for note in find.notes(answer)), *perhaps]
    if not answer.fits:
        print(find.NONE_OF_OURS, *beside, sep="\n")
        show_search(query)
    if answer.causes:
        lines = (f"- {find.with_watch(find.cause_line(cause), cause)}" for cause in answer.causes)
        print(find.HEADINGS[answer.sure], *lines, sep="\n")
    if not answer.fits:
        return
    print("Signs:")
    for place, row in enumerate(answer.hits[:find.MOST], 1):
        first, *others = find.printed_row(row)
        print(f"{place}. {first}", *(f"   {line}" for line in others), sep="\n")
    print(*beside, sep="\n", end="\n" * bool(beside))
    if answer.sure == find.UNSURE:
        show_search(query)


def show_search(query: str) -> None:
    """Print how to look for a cause that the finder does not know."""
    print(find.SEARCH, *(f"- {step}" for step in find.search()), sep="\n")
    print("To practise such a search: dlsys incident")
    if base := os.environ.get("DLSYS_BOOK", "").rstrip("/"):
        print(f"The whole method: {base}/method.html")
        print(f"All pages: {base}/search.html?q={quote_plus(query[:ASKED])}")
