"""A room that reviews changes: what is asked, answered and, once a change is closed, shown.

The class marks a line or nothing, says how sure it is and names a consequence, as in
`dlsys review-diff`, whose readers and scores these are. Closing a change shows what was right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

from dlsys import review_diff
from dlsys.room.results import LETTERS
from dlsys.room.rounds import OPEN, REST, REVEALED, Room, Round
from dlsys_diffs import reading, recorded, scoring
from dlsys_diffs.case_files import FORMS, Case, Line
from dlsys_diffs.reading import NOTHING, AnswerError
from dlsys_diffs.scoring import Review

SCORE = "score"
DRAWS = {f"draw_{form}": form for form in FORMS}
GO_ON = ("ask", *DRAWS, "score")
STEPS = {REST: GO_ON, OPEN: ("close", "run", "rest"), REVEALED: (*GO_ON, "rest"),
         SCORE: ("ask", *DRAWS, "rest")}
AUTHORS = {"agent": "a coding agent", "careful": "a careful colleague", "newcomer": "a newcomer",
           "terse": "a colleague of few words"}


class Marked(NamedTuple):
    """An answer. consequence: its number, 0 for nothing bad; mark: "" for nothing."""

    mark: str
    confidence: int
    consequence: int


@dataclass
class ChangeRound(Round):
    """A change in the room. seed: draws the order of its consequences; run: the one shown."""

    seed: int = 0
    run: str = ""


class ReviewRoom(Room):
    """A room whose items are changes, shown by number, because an id may give the answer away.

    planned: numbers of the changes that come first, in this order.
    """

    STEPS: ClassVar = STEPS
    LEADS_TO: ClassVar = {"close": REVEALED, "rest": REST}

    def __init__(self, cases: Sequence[Case], planned: Sequence[str] = ()) -> None:
        super().__init__(cases)
        self.planned = planned
        self.is_scored = False

    def __post_init__(self) -> None:
        self.by_id = {str(number): case for number, case in enumerate(self.items, 1)}

    @property
    def phase(self) -> str:
        return SCORE if self.is_scored else super().phase

    def steps(self) -> tuple[str, ...]:
        asked = self.now and self.phase == OPEN and self.rounds[self.now]
        return tuple(name for name in super().steps()
                     if not (name == "run" and asked and asked.run)
                     and (name not in DRAWS or self.unasked(DRAWS[name])))

    def unasked(self, form: str) -> list[str]:
        """The changes of a form that have not been asked."""
        return [id for id, case in self.by_id.items()
                if case.form == form and id not in self.rounds]

    def next(self) -> str:
        """The first planned change that has not been asked, else the next by number."""
        return next((id for id in self.planned if id not in self.rounds), None) or super().next()

    def go(self, trap: str) -> int | None:
        """An answer counts only while its change is shown."""
        return super().go(trap) if trap in self.rounds else None

    def order(self, trap: str) -> list[int]:
        """The places of a change's consequences in the order that everyone sees."""
        case = self.by_id[trap]
        return review_diff.shuffled(case, len(case.consequences), self.rounds[trap].seed)

    # ---- events

    def _apply_ask(self, event: dict) -> None:
        if event["digest"] != self.by_id[event["trap"]].digest:
            raise KeyError(f"change {event['trap']}")
        self.rounds.setdefault(event["trap"], ChangeRound(event["trap"], seed=event["seed"]))
        self.is_scored = False
        super()._apply_ask(event)

    def _go_on(self, step: str) -> None:
        self.is_scored = False
        super()._go_on(step)

    def _apply_score(self, _: dict) -> None:
        self.now, self.is_scored = None, True

    def _refuse_ask(self, event: dict) -> str:
        if event["trap"] not in self.by_id:
            return f"ask: got change {event['trap'][:40]!r}, expected 1 to {len(self.by_id)}."
        return self._refuse_step(event)

    def _refuse_run(self, event: dict) -> str:
        if why := self._refuse_step(event):
            return why
        names = ", ".join(review_diff.RUNS)
        return "" if event["run"] in review_diff.RUNS else (
            f"run: got {event['run'][:40]!r}, expected one of {names}.")

    def _apply_run(self, event: dict) -> None:
        self.rounds[self.now].run = event["run"]

    def _refuse_answer(self, event: dict) -> str:
        if event["trap"] not in self.by_id:
            return "answer: got no change of this room."
        if self.go(event["trap"]) is None:
            return "answer: this change is closed."
        try:
            self._read(event)
        except AnswerError as error:
            return str(error)
        return ""

    def _apply_answer(self, event: dict) -> None:
        self.answers.setdefault((event["trap"], 1), {})[event["who"]] = self._read(event)

    def _read(self, event: dict) -> Marked:
        """An answer as it was typed. Raises AnswerError."""
        case, order = self.by_id[event["trap"]], self.order(event["trap"])
        mark, confidence = reading.mark(event["mark"], case), reading.confidence(
            event["confidence"])
        place = reading.consequence(event["consequence"], case, order)
        return Marked(mark, confidence, 0 if place == NOTHING else order.index(place) + 1)

    # ---- what it comes to

    def reviewed(self) -> list[str]:
        """The changes that were closed, in the order in which they were asked."""
        return [id for id, asked in self.rounds.items() if asked.phase == REVEALED]

    def reviews(self, trap: str, who: str | None = None) -> dict[str, Review]:
        """The answers to a change as scores take them, by participant; of one, where named."""
        case, places = self.by_id[trap], [NOTHING, *self.order(trap)]
        given = self.answers.get((trap, 1), {})
        if who is not None:
            given = {who: given[who]} if who in given else {}
        return {name: Review(case, said.mark, said.confidence, places[said.consequence], NOTHING)
                for name, said in given.items()}


def is_right(review: Review) -> bool:
    """Whether the mark is right: on the fault, or on nothing if nothing is wrong."""
    return reading.is_place(review.mark, review.case) if review.case.faulty else not review.mark


def is_named(review: Review) -> bool:
    """Whether the consequence is the right one."""
    return review.consequence == consequence(review.case)


def consequence(case: Case) -> int:
    return 0 if case.faulty else NOTHING


# ---- what is shown while a change is open

def change_view(room: ReviewRoom, trap: str) -> dict[str, Any]:
    """A change without anything that gives away what it is."""
    case = room.by_id[trap]
    return {"title": case.title, "text": case.text, "author": AUTHORS[case.author],
            "lines": lines(case.diff), "nothing": review_diff.NOTHING_BAD,
            "consequences": [case.consequences[place] for place in room.order(trap)],
            "run": run_view(case, room.rounds[trap].run)}


def lines(found: Sequence[Line]) -> list[list]:
    return [[line.sign, line.text, line.file, line.at] for line in found]


def run_view(case: Case, name: str) -> dict[str, Any] | None:
    """A recorded run before and after a change; None without a name."""
    if not name:
        return None
    stopped = recorded.stopped(case.id, name)
    rows = [] if stopped else recorded.numbers(case.id, name)[:review_diff.MOST_NUMBERS]
    return {"name": name, "what": review_diff.RUNS[name], "stopped": stopped, "rows": [
        [row.name, review_diff.number(row.before), review_diff.number(row.after),
         row.before != row.after] for row in rows]}


# ---- what is shown once it is closed

def outcome(room: ReviewRoom, trap: str) -> dict[str, Any]:
    """What was right, and what the room had answered."""
    case, found = room.by_id[trap], [*room.reviews(trap).values()]
    said = Counter(one.consequence for one in found)
    options = [(place, case.consequences[place]) for place in room.order(trap)]
    row = row_of(room, trap)
    return {"heading": review_diff.HEADINGS[case.kind], "faulty": case.faulty,
            "measured": review_diff.measured(case), "why": case.why, "source": case.source,
            "places": [f"{file}:{line}" for file, line in case.places],
            "near": reading.near(case), "counts": [len(found)], "tick": "right",
            "marks": Counter(one.mark for one in found), "right": row["marked_right"],
            "accused": row["accused"],
            "sure": [row["confidence_right"], row["confidence_wrong"]],
            "repair": lines(reading.repair_diff(case, 0)) if case.faulty else [],
            "choices": [{"letter": letter, "text": text, "bars": [{"sure": said[place]}],
                         "right": place == consequence(case)}
                        for letter, (place, text) in zip(
                            LETTERS, [*options, (NOTHING, review_diff.NOTHING_BAD)],
                            strict=True)]}


def score(room: ReviewRoom, who: str | None = None) -> dict[str, Any]:
    """The room's score over the answers of all, or of one, to the changes that were closed."""
    found = [review for trap in room.reviewed() for review in room.reviews(trap, who).values()]
    scored = scoring.score(found, draws=0)
    return {"answers": len(found), "auroc": scored.auroc, "placed": scored.placed,
            "named": scored.named, "accused": scored.accused,
            "changes": len({review.case.id for review in found})}


# ---- what is left of it

COLUMNS = ("change", "title", "form", "kind", "answers", "marked_right", "named_right",
           "confidence_right", "confidence_wrong", "accused", "auroc")


def rows(room: ReviewRoom) -> list[dict[str, Any]]:
    """A row for each closed change, by column."""
    return [row_of(room, trap) for trap in room.reviewed()]


def row_of(room: ReviewRoom, trap: str) -> dict[str, Any]:
    case, found = room.by_id[trap], [*room.reviews(trap).values()]
    right = [one.confidence for one in found if is_right(one)]
    wrong = [one.confidence for one in found if not is_right(one)]
    row = {"change": trap, "title": case.title, "form": case.form, "kind": case.kind,
           "answers": len(found), "marked_right": len(right),
           "named_right": sum(map(is_named, found)),
           "confidence_right": mean(right), "confidence_wrong": mean(wrong),
           "accused": None if case.faulty else scoring.score(found, draws=0).accused.right,
           "auroc": None}
    return {column: row[column] for column in COLUMNS}


def mean(confidences: list[int]) -> float | None:
    return round(fmean(confidences), 1) if confidences else None


def named(room: ReviewRoom) -> Iterator[tuple]:
    """Answers of those who gave a name, if the presenter asked for one."""
    for trap in room.reviewed():
        for who, one in room.reviews(trap).items():
            if who in room.names:
                yield (room.names[who], who, trap, one.mark, is_right(one), is_named(one),
                       one.confidence)
