"""A learner's search: what was asked with which hypothesis, what it cost, and what was named.

A search is read from its events, oldest first, so that an interrupted one goes on and two terminals
share one budget. An event that the rules do not allow where it stands counts as not made: a
probe that was made before, one that costs more than is left, and any probe after the cause was
given in own words, when the list of causes is shown.
"""

from collections.abc import Iterable
from typing import NamedTuple

from dlsys_helpers.errors import UserError
from dlsys_incidents.incident_files import BUDGET, DAYS, Incident

PROBE, WORDS, CAUSE, AGAIN = "probe", "words", "cause", "again"
LETTERS = 5  # of a hypothesis, at least
MOST = 600  # characters of one
SHOWN = 40  # characters of an answer that a message repeats


class AnswerError(UserError):
    """An answer cannot be read; the message says what came in and what was expected."""


class Look(NamedTuple):
    """A probe that was made. key: of its event."""

    probe: str
    hypothesis: str
    key: str


class Search(NamedTuple):
    """What somebody did in one incident. named: id of the cause, "" while it is open."""

    incident: Incident
    looks: tuple[Look, ...] = ()
    named: str = ""
    words: str = ""  # the cause in own words; no probe follows
    again: int = 0  # how often it was begun anew

    @property
    def spent(self) -> int:
        return sum(self.incident.probe(look.probe).hours for look in self.looks)

    @property
    def left(self) -> int:
        return BUDGET - self.spent

    @property
    def day(self) -> str:
        """The budget is a week."""
        return DAYS[min(len(DAYS) - 1, self.spent * len(DAYS) // BUDGET)]

    @property
    def begun(self) -> bool:
        return bool(self.looks or self.words)

    @property
    def found(self) -> bool:
        return self.named == self.incident.causes[0].id

    @property
    def affordable(self) -> bool:
        """Whether the budget pays for a probe that was not made yet."""
        made = {look.probe for look in self.looks}
        return any(probe.hours <= self.left for probe in self.incident.probes
                   if probe.id not in made)


def whole(entry: dict) -> bool:
    """Whether a stored event is one."""
    texts = ("id", "digest", "what", "name", "words", "key")
    return (all(isinstance(entry.get(part), str) for part in texts)
            and entry["what"] in (PROBE, WORDS, CAUSE, AGAIN))


def search_of(incident: Incident, events: Iterable[dict]) -> Search:
    """The search that these events describe."""
    search = Search(incident)
    for event in events:
        if event["id"] == incident.id and event["digest"] == incident.digest:
            search = _after(search, event)
    return search


def _after(search: Search, event: dict) -> Search:
    incident, name = search.incident, event["name"]
    if event["what"] == AGAIN:
        return Search(incident, again=search.again + 1)
    if search.named:
        return search
    if event["what"] == CAUSE:
        known = name in {cause.id for cause in incident.causes}
        return search._replace(named=name) if known and search.words else search
    if search.words:
        return search
    if event["what"] == WORDS:
        return search._replace(words=event["words"])
    known = {probe.id: probe.hours for probe in incident.probes}
    made = {look.probe for look in search.looks}
    if name not in known or name in made or known[name] > search.left:
        return search
    return search._replace(looks=(*search.looks, Look(name, event["words"], event["key"])))


# ---- what is read

def probe_of(text: str, incident: Incident) -> str:
    """The id of a probe by its number or name."""
    said = text.strip().lower()
    names = [probe.id for probe in incident.probes]
    if said in names:
        return said
    if said.isascii() and said.isdigit() and 1 <= int(said[:4]) <= len(names):
        return names[int(said[:4]) - 1]
    raise AnswerError(f"probe: got {_shown(said)}, expected the number or the name of a probe, 1 "
                      f"to {len(names)}, or `name` to name the cause.")


def sentence(text: str, what: str) -> str:
    """A sentence of the learner's own, in any language. It is kept, not judged."""
    said = " ".join(text.split())
    if sum(letter.isalpha() for letter in said) < LETTERS:
        raise AnswerError(f"{what}: got {_shown(said)}, expected a sentence of your own. Nobody "
                          "judges it; you read it again at the end.")
    if len(said) > MOST:
        raise AnswerError(f"{what}: got {len(said)} characters, expected one sentence of at most "
                          f"{MOST}.")
    return said


def cause_of(text: str, incident: Incident) -> str:
    """The id of a cause by its number in the list that is shown."""
    said = text.strip()
    count = len(incident.causes)
    if not (said.isascii() and said.isdigit() and 1 <= int(said[:4]) <= count):
        raise AnswerError(f"cause: got {_shown(said)}, expected a number, 1 to {count}.")
    return incident.listed[int(said[:4]) - 1].id


def _shown(text: str) -> str:
    return repr(text[:SHOWN]) if text else "nothing"
