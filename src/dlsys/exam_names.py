"""Which fault a learner's words name, by the index and the scores of the symptom finder.

Learners see no list of faults: they write a sentence, which has to name one fault more clearly
than all others. The finder only compares words, so a text cannot give it orders.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from dlsys import find
from dlsys_checks.exam import said
from dlsys_diffs.reading import SCORERS

MOST_WORDS, MOST_LETTERS = 30, 300  # of an answer: one fault, in a sentence
LEAST = 0.65  # the lowest score that names a fault
LEAST_KNOWN = 2  # known words that a text needs
# These words name no fault.
SIGNS = "loss accuracy model training learn, does not learn, well bad low high go down name fault"
AHEAD = 1.15  # the best score has to be this many times the second
ASIDE_WORDS, ASIDE = 3, 1.4  # a clause this short and scoring less names no fault
LIKELY = 0.5  # how much the finder's own likelihoods count compared with the words of the list

HEALTHY = "healthy"  # what to write if nothing is wrong
_IT = r"(?:it|this|all|everything|(?:the|this) (?:script|code|case|run|model|training))"
WELL = re.compile(rf"(?:{_IT} (?:is|looks|seems) )?(?:healthy|fine|ok|okay|correct)|"
                  r"(?:there is )?(?:nothing|no (?:fault|bug|error|problem))(?: is)?(?: wrong)?"
                  rf"(?: here| in it| (?:with|in) {_IT})?")  # a clause that says so, in other words
CLAUSES = re.compile(r"[,;:/\n]|\.\s|\b(?:or|and)\b", re.I)  # what may separate two faults
# A fault may involve a prompt or something ignored, but never orders to a scorer.
ADDRESSES = re.compile(rf"\b(?:{SCORERS}|(?:ignore|forget) (?:all|any|everything|the above|these|"
                       r"previous|what)|(?:reward|believe|trust) (?:me|this)|my answer|say:? that)"
                       r"\b")
ASK = "Write one sentence in English that says what the code does wrong and where."


class Heard(NamedTuple):
    """What was understood: a fault's number or "healthy"; else "" and the reason."""

    name: str
    why: str = ""


@functools.cache
def _index() -> find.Index:
    return find.index(said.rows())


def heard(text: object) -> Heard:
    """The fault that a text names. A text that names none, or several, costs no try."""
    if type(text) is not str or not text.strip():
        return Heard("", f"name: got {'nothing' if type(text) is str else type(text).__name__}. "
                     f"{ASK}")
    clauses = [part for part in map(_plain, CLAUSES.split(text)) if part]
    well = [bool(WELL.fullmatch(part)) for part in clauses]
    if clauses and all(well):
        return Heard(HEALTHY)
    if len(text) > MOST_LETTERS or len(text.split()) > MOST_WORDS:
        return Heard("", f"name: got {len(text.split())} words, {len(text)} characters; expected "
                     f"at most {MOST_WORDS} and {MOST_LETTERS}. Name one fault.")
    if ADDRESSES.search(text.lower()):
        return Heard("", "name: this addresses a judge, but words are only compared. "
                     f"{ASK}")
    if any(well):
        return Heard("", f'name: this says "{HEALTHY}" and something else. Say one of them.')
    known, best, ahead = _named(text)
    if not known:
        return Heard("", f"name: these words are too few, not English, or not known here. {ASK}")
    if not best:
        return Heard("", f"name: these words name no fault that is known here. {ASK}")
    others = {name for part in CLAUSES.split(text) for _, name, sure in [_named(part)]
              if sure and name not in ("", best) and not _aside(part)}
    if not ahead or others:
        return Heard("", "name: these words fit two or more faults. Say more exactly what is "
                     "wrong, and name only one.")
    return Heard(best)


def _plain(text: str) -> str:
    """A clause in lower case, without punctuation at its ends."""
    return re.sub(r"^\W+|\W+$", "", " ".join(text.lower().split()))


def _named(text: str) -> tuple[bool, str, bool]:
    """Whether enough words are known, the fault that fits best, and whether it is well ahead.

    The fault is "" if none fits well enough.
    """
    nears = find.asked_of(_index(), text).nears
    known = [(token, words) for token, words in find.tokens(text) if nears.get(token)]
    if (sum(len(words.split()) for _, words in known) < LEAST_KNOWN
            or {token for token, _ in known} <= _signs()):
        return False, "", False
    (best, first), (_, second), *_ = ranked(text)
    return True, best if first >= LEAST else "", first >= AHEAD * second


@functools.cache
def _signs() -> set[str]:
    return {token for token, _ in find.tokens(SIGNS)}


def _aside(part: str) -> bool:
    """Whether a clause says too little to name a second fault, such as "and are not restored"."""
    return len(part.split()) <= ASIDE_WORDS and ranked(part)[0][1] < ASIDE


@functools.lru_cache(4096)
def ranked(text: str) -> list[tuple[str, float]]:
    """Each fault with how well the words name it, best first."""
    asked = find.asked_of(_index(), text)
    shares = find.likely(asked.said)
    found = [(find.causes_of(one.row)[0], one.own) for one in find.scores(_index(), asked, {})]
    return sorted(((name, own + LIKELY * shares.get(name, 0)) for name, own in found),
                  key=lambda pair: -pair[1])
