"""The score of a tool or an agent. No language model takes part in it.

An answer is {"confidence": 0.0 to 1.0 that there is a fault, "cause": one cause, "place":
"a.py:7"}. The cause begins with the id of a trap, or has up to forty words, which count as the
first cause that `dlsys find` reads in them. An unreadable part counts as missing: confidence 0.5,
no cause, no place.

- AUROC of the confidence, as in review mode: guessing gives 0.5, whatever the share of faults.
- named, placed: of the faulty cases, how many got the right cause, and a line at the fault.
- solved: faulty cases with a confidence above one half, the right cause and, in forms that have
  lines, the right place; only half counts where probes cost more than the budget.
- accused: healthy cases with a confidence above one half.
- net: share solved minus share accused. Always "healthy" gives 0; always "fault" at most 0.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from dlsys import find
from dlsys_diffs.scoring import Count, auroc, interval
from dlsys_helpers import catalog

BUDGET = 10  # of the 26 for all probes: enough for the loss and three others
ACCUSED, UNSAID = 0.5, 0.5
WORDS = 40
ID = r"\d\d\.\d{1,2}\b(?!\.\d)"
BETWEEN = r"(?:\s*[,;/&]\s*|\s+(?:or\s+|and\s+)?)"
IDS = re.compile(  # alone at the beginning; other numbers are measurements
    rf"\W*(?:(?:trap|cause|id|either)\W+)?({ID}(?:{BETWEEN}{ID})*)\s*(?:[:.,;()-]|$)",
    re.IGNORECASE)
NOTHING = ("", "none", "no", "healthy", "n/a")
PLACE = re.compile(r"(?:\./)?([\w][\w./-]*\.py):([1-9][0-9]{0,4})")
SHOWN = 60  # characters of an unreadable part in a message


class Held(NamedTuple):
    """The right answer to a case. causes: ids, any of which counts; if empty, no cause is scored.
    places: file and line, none in forms without lines. near: how many lines off a place may be.
    """

    form: str
    faulty: bool
    causes: tuple[str, ...] = ()
    places: tuple[tuple[str, int], ...] = ()
    near: int = 1


class Answer(NamedTuple):
    """An answer as it is scored. paid: the price of the probes. unread: for each unreadable part,
    what was got and what was expected.
    """

    confidence: float = UNSAID
    cause: str = ""
    place: str = ""
    paid: int = 0
    unread: tuple[str, ...] = ()


class Score(NamedTuple):
    """The score of the answers to the cases of a form."""

    cases: int
    auroc: float | None
    interval: tuple[float, float] | None
    named: Count
    placed: Count
    accused: Count
    solved: float
    net: float
    paid: float
    unread: int


# ---- reading

def read(said: Any, paid: int = 0) -> Answer:
    """An answer as it is scored, read from anything that an adapter may return."""
    if not isinstance(said, dict):
        return Answer(paid=paid, unread=(f"answer: got {_short(said)}, expected one JSON object in "
                                         "one line",))
    parts = {name: reader(said.get(name)) for name, (reader, _) in PARTS.items()}
    unread = tuple(f"{name}: got {_short(said.get(name))}, expected {PARTS[name][1]}"
                   for name, value in parts.items() if value is None)
    return Answer(**{name: value for name, value in parts.items() if value is not None},
                  paid=paid, unread=unread)


def _short(said: Any) -> str:
    """A value in a message: its type, and its beginning without control characters."""
    text = f"{said!r:.{SHOWN}}" if isinstance(said, (str, int, float)) else ""
    return f"{type(said).__name__} {text}".strip()


def _confidence(said: Any) -> float | None:
    if type(said) not in (int, float) or not 0 <= said <= 1:
        return None
    return float(said)


def _place(said: Any) -> str | None:
    """One file and line; a list or a range is not a place."""
    if said in (None, ""):
        return ""
    found = isinstance(said, str) and PLACE.fullmatch(said)
    return f"{found[1]}:{found[2]}" if found else None


@functools.cache
def causes() -> dict[str, str]:
    """Every cause that can be named: the ids of the traps, with their faults."""
    return {trap.id: trap.fault for trap in catalog.traps()}


@functools.cache
def index() -> find.Index:
    return find.index(find.rows())


def cause(said: Any) -> str | None:
    """The one cause named, "" for none, None if there are several or too many words."""
    if said is None:
        return ""
    if not isinstance(said, str) or len(said.split()) > WORDS:
        return None
    if said.strip().lower() in NOTHING:
        return ""
    if begins := IDS.match(said):
        named = set(re.findall(ID, begins[1]))
        return named.pop() if len(named) == 1 and named <= causes().keys() else None
    found = find.rank(index(), said)
    return found.causes[0] if found.fits and found.causes else ""


PARTS = {"confidence": (_confidence, "a number from 0 to 1"),
         "cause": (cause, f"one cause: the id of a trap such as 02.1, or at most {WORDS} words"),
         "place": (_place, "one file and line, such as loop.py:40")}


# ---- judging

def is_named(answer: Answer, held: Held) -> bool:
    return answer.cause != "" and answer.cause in held.causes


def is_placed(answer: Answer, held: Held) -> bool:
    """Whether the place is at the fault: its line, or as near as the case allows."""
    if not answer.place:
        return False
    file, line = PLACE.fullmatch(answer.place).groups()
    return any(file == there and abs(int(line) - at) <= held.near for there, at in held.places)


def solved(answer: Answer, held: Held) -> float:
    """1 for a faulty case that is found, named and placed; 0.5 if it exceeds the budget."""
    right = (answer.confidence > ACCUSED and (not held.causes or is_named(answer, held))
             and (not held.places or is_placed(answer, held)))
    return right * (1.0 if answer.paid <= BUDGET else 0.5)


def score(pairs: Iterable[tuple[Answer, Held]]) -> Score:
    """The score over some cases, each with its answer."""
    pairs = list(pairs)
    faulty, healthy = ([pair for pair in pairs if pair[1].faulty is kind] for kind in (True, False))
    sure = [[answer.confidence for answer, _ in part] for part in (faulty, healthy)]
    accused = Count(sum(a.confidence > ACCUSED for a, _ in healthy), len(healthy))
    share = sum(solved(*pair) for pair in faulty) / max(1, len(faulty))
    return Score(
        len(pairs), auroc(*sure), interval(*sure),
        Count(sum(is_named(*pair) for pair in faulty), sum(bool(h.causes) for _, h in faulty)),
        Count(sum(is_placed(*pair) for pair in faulty), sum(bool(h.places) for _, h in faulty)),
        accused, share, share - accused.right / max(1, accused.of),
        sum(a.paid for a, _ in pairs) / max(1, len(pairs)), sum(bool(a.unread) for a, _ in pairs))
