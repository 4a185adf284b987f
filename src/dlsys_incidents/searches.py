"""A learner's search: the probes with their hypotheses, their cost, and the cause named.

A search is read from its events, oldest first, so an interrupted one can be continued and two
terminals share one budget. An event that breaks the rules does not count: a probe that was run
before, one that costs more than is left, and any probe after the learner has given the cause in
their own words, because then the list of causes is shown.

A search earns points for the right cause, and most of them for evidence, see `Search.points`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from dlsys_helpers.errors import UserError
from dlsys_incidents.incident_files import BUDGET, DAYS, Cause, Incident

PROBE, WORDS, CAUSE, AGAIN = "probe", "words", "cause", "again"
LETTERS = 5  # a hypothesis needs at least these
MOST = 600  # characters in a hypothesis
SHOWN = 40  # characters of an answer that a message repeats
POINTS, GUESSED = 100, 20  # for a whole search; for the right cause without any evidence
ENOUGH = 0.5  # with this evidence, a cause counts as found
DEAR = 2  # a search that costs this many times an expert's price earns half


class AnswerError(UserError):
    """An answer cannot be read; the message says what came in and what was expected."""


class Look(NamedTuple):
    """A probe that was run. key: of its event."""

    probe: str
    hypothesis: str
    key: str


class Search(NamedTuple):
    """What a learner did in one incident. named: id of the cause, "" while it is open."""

    incident: Incident
    looks: tuple[Look, ...] = ()
    named: str = ""
    words: str = ""  # the cause in the learner's words; no probe may follow
    again: int = 0  # how often the learner started over

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
    def made(self) -> set[str]:
        return {look.probe for look in self.looks}

    @property
    def right(self) -> bool:
        return self.named == self.incident.causes[0].id

    @property
    def shown(self) -> bool:
        """Whether a probe of this search shows the cause itself."""
        return bool(self.made & {*self.incident.causes[0].shown_by})

    @property
    def excluded(self) -> list[Cause]:
        """The wrong causes that the probes of this search rule out."""
        return [cause for cause in self.incident.causes[1:] if self.made & cause.ruled_out_by]

    @property
    def evidence(self) -> float:
        """Half for a probe that shows the cause, half for the share of others ruled out."""
        return self.shown / 2 + len(self.excluded) / (len(self.incident.causes) - 1) / 2

    @property
    def found(self) -> bool:
        return self.right and self.evidence >= ENOUGH

    @property
    def counted(self) -> int:
        """The hours that cost points: those of all probes that do more than confirm.

        A probe only confirms if it shows a cause that an earlier one already showed. It still
        counts if an expert runs it, because the expert's hours include it.
        """
        hours, shown = 0, False
        experts = {step.probe for step in self.incident.expert}
        for look in self.looks:
            shows = look.probe in self.incident.causes[0].shown_by
            if not (shows and shown) or look.probe in experts:
                hours += self.incident.probe(look.probe).hours
            shown |= shows
        return hours

    @property
    def price(self) -> float:
        """The share of the points kept: 1 up to an expert's hours, 0.5 from twice as many."""
        over = self.counted / self.incident.expert_hours - 1
        return 1 - min(max(over / (DEAR - 1), 0), 1) / 2

    @property
    def points(self) -> int:
        """GUESSED for the right cause, the rest by evidence, all times `price`."""
        if not self.right:
            return 0
        return round((GUESSED + (POINTS - GUESSED) * self.evidence) * self.price)

    @property
    def affordable(self) -> bool:
        """Whether the budget covers a probe that was not run yet."""
        return any(probe.hours <= self.left for probe in self.incident.probes
                   if probe.id not in self.made)


def whole(entry: dict) -> bool:
    """Whether a stored event has the form of an event."""
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
    if name not in known or name in search.made or known[name] > search.left:
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
    """A sentence of the learner's own, in any language. It is stored, not judged."""
    said = " ".join(text.split())
    if sum(letter.isalpha() for letter in said) < LETTERS:
        raise AnswerError(f"{what}: got {_shown(said)}, expected a sentence of your own. It is "
                          "not judged; you will read it again at the end.")
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
