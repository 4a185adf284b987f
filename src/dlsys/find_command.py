"""`dlsys find`: what a word means, where it is taught, and the causes that fit a symptom."""

import argparse
import os
from urllib.parse import quote_plus

from dlsys import find, glossary, units
from dlsys.grading.text import visible
from dlsys_helpers.errors import UserError


def add_parser(commands) -> None:
    """Add `find` to the commands of `dlsys`."""
    parser = commands.add_parser("find", help="the traps that fit what you see, such as "
                                              '"loss stuck at 2.303", or where something is '
                                              'taught: "weight decay"')
    parser.add_argument("words", nargs="+", help="what you see, the message of an error, or a word "
                                                 "of the field")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns 1 where neither a word, a unit that the course teaches nor a sign fits."""
    query = " ".join(args.words)
    if not find.plain(query):
        raise UserError(f"find: got {query[:40]!r}, expected a word of what you see, or a number.")
    taught = [*glossary.lines(query), *units.lines(units.rank(query))]
    print(*taught, sep="\n", end="\n" * bool(taught))
    answer = find.rank(find.index(find.rows()), query)
    if taught and not answer.fits:
        return 0
    show(answer, query)
    return 0 if answer.fits else 1


def show(answer: find.Answer, query: str) -> None:
    """Print the likeliest causes and the signs, and which asked words no sign has."""
    lacks = f" No row has: {', '.join(answer.missing)}." if answer.missing else ""
    if not answer.fits:
        print(visible("Nothing fits" + (" well; these share a word or two." if answer.hits else ".")
                      + lacks + " Try a word of the message, or a number."))
        if base := os.environ.get("DLSYS_BOOK", "").rstrip("/"):
            print(f"All pages: {base}/search.html?q={quote_plus(query)}")
    if answer.hits:
        lines = (f"- {find.cause_line(cause)}" for cause in answer.causes)
        print(find.LIKELY if answer.fits else find.NEAREST, *lines, "Signs:", sep="\n")
    for place, row in enumerate(answer.hits[:find.MOST], 1):
        first, *others = find.printed_row(row)
        print(f"{place}. {first}", *(f"   {line}" for line in others), sep="\n")
    if answer.fits and lacks:
        print(visible(lacks.strip()))
