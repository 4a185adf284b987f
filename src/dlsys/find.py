"""`dlsys find "loss stuck at 2.303"`: the rows of the book's symptom finder, in the terminal.

The rows are symptoms.json, which `make build` writes; the ranking is that of
book/vendor/finder/finder.js, word for word, and the tests ask both the same.
"""

import argparse
import json
import math
import os
import re
from pathlib import Path
from typing import NamedTuple

from dlsys.grading.text import visible
from dlsys_helpers import catalog
from dlsys_helpers.errors import UserError

ROWS = Path(__file__).with_name("symptoms.json")
MOST = 3  # rows that are printed
FITS = 0.5  # of what all asked words could score: below it no row is about this
IDLE = frozenset({
    "a", "am", "an", "and", "are", "as", "at", "be", "but", "by", "can", "do", "does", "for",
    "from", "get", "has", "have", "how", "i", "in", "is", "it", "its", "me", "my", "of", "on",
    "or", "so", "than", "that", "the", "there", "this", "to", "vs", "was", "what", "when",
    "which", "while", "why", "with", "you", "your", "pytorch", "torch"})
WORD = re.compile(r"[0-9]+(?:\.[0-9]+)?|[a-z][a-z0-9]*")


class Answer(NamedTuple):
    """Rows best first, whether the first one fits, and the asked words that no row has."""

    hits: list[dict]
    fits: bool
    missing: list[str]


def words(text: str) -> list[str]:
    """Words in lower case; numbers keep their point."""
    return [word for word in WORD.findall(text.lower()) if word not in IDLE]


def stem(word: str) -> str:
    """A word without its ending, with one spelling for -ise and -ize."""
    word = re.sub(r"is(?=ation|e|ing)", "iz", word, count=1)
    end = re.search(r"(ing|ed|es|s)$", word)
    return word[:end.start()] if end and end.start() >= 3 else word


def stems(text: str) -> list[str]:
    return [stem(word) for word in words(text)]


def alike(asked: str, word: str) -> float:
    """How much of an asked word another one is: all of it, or one begins with the other."""
    if asked == word:
        return 1
    goes_on = len(asked) >= 3 and word.startswith(asked)
    begins = len(word) >= 4 and asked.startswith(word) and len(asked) - len(word) <= 3
    return 0.8 if goes_on or begins else 0


def best(asked: str, found: list[str]) -> float:
    return max((alike(asked, word) for word in found), default=0)


def quotes(said: list[str], found: list[str]) -> bool:
    """Whether three words in a row stand in both, as where a whole message is asked for."""
    text = f" {' '.join(found)} "
    return any(f" {' '.join(said[i:i + 3])} " in text for i in range(len(said) - 2))


def rank(rows: list[dict], query: str) -> Answer:
    """How well each row answers: rare words count more, and most what one sees."""
    said = stems(query)
    read = [(row, stems(row["see"]), stems(row["rest"])) for row in rows]
    weights = {a: math.log(1 + len(rows) / (1 + sum(best(a, see) > 0 for _, see, _ in read)))
               for a in said}
    scored = []
    for row, see, rest in read:
        score = sum(weight * max(3 * best(a, see), best(a, rest)) for a, weight in weights.items())
        quoted = quotes(said, rest)
        if score:
            scored.append((score * (2 if quoted else 1), quoted, row))
    scored.sort(key=lambda one: -one[0])
    most, quoted = scored[0][:2] if scored else (0, False)
    missing = dict.fromkeys(word for word in words(query)
                            if not any(best(stem(word), rest) for *_, rest in read))
    return Answer([row for score, _, row in scored if score >= 0.4 * most],
                  most >= FITS * 3 * sum(weights.values()) or quoted, list(missing))


def says(rules: list[str]) -> str:
    """What the watch says of a fault, by the names of its rules."""
    *others, last = rules
    return "dlsys watch says " + (f"{', '.join(others)} or {last}" if others else last)


def rows() -> list[dict]:
    """The rows, each with its page in words and all that it is found by."""
    found = json.loads(ROWS.read_text("utf-8"))
    for row in found:
        if "trap" in row:
            row["page"] = f"trap {row['trap']}  {catalog.trap(row['trap']).name}"
        told = says(row["rules"]) if row.get("rules") else ""
        row["rest"] = " ".join((row["see"], row["test"], row["fix"], row["page"], told))
    return found


def lines(row: dict) -> list[str]:
    """A row as it is printed: the sign, the fault and its page, the test, the watch's rules."""
    sign, where = row["see"].partition(" Also: ")[0], row["page"]
    base = os.environ.get("DLSYS_BOOK", "").rstrip("/")
    if base and "trap" in row:
        where += f"  {base}/traps/{row['trap'].replace('.', '-')}.html"
    told = [says(row["rules"]) if row["rules"] else "dlsys watch has no rule for it"
            ] if "trap" in row else []
    return [sign, where, f"test: {row['test']}", *told]


def add_parser(commands) -> None:
    """Add `find` to the commands of `dlsys`."""
    parser = commands.add_parser("find", help="the traps that fit what you see, such as "
                                              '"loss stuck at 2.303"')
    parser.add_argument("words", nargs="+", help="what you see, or the message of an error")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns 1 where no row fits."""
    query = " ".join(args.words)
    if not words(query):
        raise UserError(f"find: got {query[:40]!r}, expected a word of what you see, or a number.")
    hits, fits, missing = rank(rows(), query)
    lacks = f" No row has: {', '.join(missing)}." if missing else ""
    if not fits:
        print(visible("Nothing fits" + (" well; these share a word or two." if hits else ".")
                      + lacks + " Try a word of the message, or a number."))
    for number, row in enumerate(hits[:MOST], 1):
        first, *others = lines(row)
        print(f"{number}. {first}", *(f"   {line}" for line in others), sep="\n")
    if fits and lacks:
        print(visible(lacks.strip()))
    return 0 if fits else 1
