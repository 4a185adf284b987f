"""Which hint of a worksheet belongs to a mistake: the one that speaks of the same things."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"[a-z_]{3,}")
_ENDING = re.compile(r"(?:ies|es|s)$")
# Words of every message and of ordinary sentences; they say nothing about a mistake.
_COMMON = frozenset(_WORD.findall(
    "all and any are but case each every expected for from get got has have its not one other that "
    "than the them then this was what which with you your"))


def nearest(hints: Sequence[str], *said: str) -> int:
    """The index of the hint that shares most with what was said; 0 where none shares a word.

    A word counts the less, the more of the hints hold it.
    """
    words = set().union(*map(_words, said)) if said else set()
    of_hints = [_words(hint) for hint in hints]
    holds = Counter(word for one in of_hints for word in one)
    scores = [sum(1 / holds[word] for word in one & words) for one in of_hints]
    return scores.index(max(scores))


def _words(text: str) -> set[str]:
    return {_ENDING.sub("", word) for word in _WORD.findall(text.lower())} - _COMMON
