"""What happens in a room: rounds, answers, verdicts. All of it follows from the events in order.

A round asks one trap's question, is closed, may show its counts, may ask again, and ends with what
was measured. `Room.refuse` judges an event before it is kept, `Room.apply` takes it in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from dlsys.room.questions import Item
from dlsys.trap_names import shown_name

REST, OPEN, CLOSED, SHOWN, REVEALED, EXERCISE = (
    "rest", "open", "closed", "shown", "revealed", "exercise")
# What the presenter may do next, the usual step first.
STEPS = {REST: ("ask",), OPEN: ("close",), CLOSED: ("show", "again", "reveal", "reopen", "rest"),
         SHOWN: ("again", "reveal", "rest"), REVEALED: ("exercise", "ask", "rest"),
         EXERCISE: ("ask", "rest")}
BACK = (REST, OPEN, CLOSED, SHOWN)  # from here the presenter may return to an exercise
LEADS_TO = {"close": CLOSED, "reopen": OPEN, "show": SHOWN, "again": OPEN, "reveal": REVEALED,
            "rest": REST}
STATUSES = ("pass", "todo", "wrong", "error")
LARGEST = 1e15  # the largest guess


class Answer(NamedTuple):
    guess: str | float
    sure: bool


class Tried(NamedTuple):
    """A participant's last verdict on an exercise; passed: at any time. Without a try, a stub."""

    status: str
    mistake: str
    tries: int
    passed: bool


@dataclass
class Round:
    """The question of a trap in the room: its round so far (`go`), and its phase."""

    trap: str
    go: int = 1
    phase: str = OPEN


@dataclass
class Room:
    """All that was asked and answered. `now` is a trap's id, or None; `until` ends an exercise.

    left: an exercise and its end, while the presenter may come back to it.
    """

    STEPS: ClassVar = STEPS
    LEADS_TO: ClassVar = LEADS_TO

    items: Sequence[Item]
    rounds: dict[str, Round] = field(default_factory=dict)
    answers: dict[tuple[str, int], dict[str, Answer]] = field(default_factory=dict)
    verdicts: dict[str, dict[str, Tried]] = field(default_factory=dict)
    hints: dict[str, dict[str, int]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    now: str | None = None
    until: float | None = None
    left: tuple[str, float] | None = None

    def __post_init__(self) -> None:
        self.by_id = {item.trap.id: item for item in self.items}

    @property
    def phase(self) -> str:
        if self.now is None:
            return REST
        return EXERCISE if self.until else self.rounds[self.now].phase

    @property
    def item(self) -> Item | None:
        return self.by_id[self.now] if self.now else None

    def steps(self) -> tuple[str, ...]:
        """What the presenter may do, the usual next step first."""
        steps = self.STEPS[self.phase]
        if self.phase == SHOWN and self.rounds[self.now].go > 1:
            steps = ("reveal", "again", "rest")
        return (*steps, "back") if self.left and self.phase in BACK else steps

    def shown_name(self, trap: str) -> str:
        """What a trap is called: its situation, until the room has seen its answer."""
        asked = self.rounds.get(trap)
        return shown_name(self.by_id[trap].trap, asked is not None and asked.phase == REVEALED)

    def next(self) -> str:
        """The trap that is asked next: the first after this one that has not been asked."""
        ids = list(self.by_id)
        later = ids[ids.index(self.now) + 1:] if self.now else []
        return next((id for id in [*later, *ids] if id not in self.rounds), self.now or ids[0])

    # ---- events

    def refuse(self, event: dict[str, Any]) -> str:
        """Why an event cannot be taken in now; "" for one that can."""
        if event["kind"] == "name":
            return ""
        return getattr(self, f"_refuse_{event['kind']}", self._refuse_step)(event)

    def apply(self, event: dict[str, Any]) -> None:
        """Take in an event that was not refused."""
        if event["kind"] in self.LEADS_TO:
            self._go_on(event["kind"])
        else:
            getattr(self, f"_apply_{event['kind']}")(event)

    def _go_on(self, step: str) -> None:
        if step == "rest":
            self._leave()
            self.now = self.until = None
            return
        current = self.rounds[self.now]
        current.phase = self.LEADS_TO[step]
        current.go += step == "again"
        if step == "reveal":
            self.left = None

    def _leave(self) -> None:
        """Remember the exercise that is left, if it is one."""
        if self.until:
            self.left = (self.now, self.until)

    def _refuse_step(self, event: dict) -> str:
        if event["kind"] not in self.steps():
            return f"{event['kind']}: not now, expected one of {', '.join(self.steps())}."
        if event["kind"] in ("ask", "exercise") and event.get("trap") not in self.by_id:
            return f"{event['kind']}: got no trap of this room."
        return ""

    def _apply_ask(self, event: dict) -> None:
        """Ask a trap; one that was asked before goes on in the phase in which it was left."""
        self._leave()
        self.now, self.until = event["trap"], None
        self.rounds.setdefault(self.now, Round(self.now))

    def _apply_exercise(self, event: dict) -> None:
        self.now, self.until, self.left = event["trap"], event["until"], None

    def _apply_back(self, _: dict) -> None:
        """Go on with the exercise that was left; a question that is still open was not asked.

        Answers that it got by then count for its first round, as those given ahead do.
        """
        asked = self.rounds.get(self.now) if self.now else None
        if asked and (asked.phase, asked.go) == (OPEN, 1):
            del self.rounds[self.now]
        (self.now, self.until), self.left = self.left, None

    def _refuse_answer(self, event: dict) -> str:
        item = self.by_id.get(event["trap"])
        if item is None:
            return "answer: got no question of this room."
        if not _fits(item, event["guess"]) or not isinstance(event["sure"], bool):
            return "answer: got none of its choices, or no number."
        go = self.go(event["trap"])
        if event["go"] != go:
            return "answer: this round is closed."
        return ""

    def go(self, trap: str) -> int | None:
        """The round, 1 or 2, for which an answer counts now; None while it takes none.

        A guess before the question is asked (the lesson was run ahead) counts for round 1.
        """
        asked = self.rounds.get(trap)
        if asked is None:
            return 1
        return asked.go if trap == self.now and self.phase == OPEN else None

    def _apply_answer(self, event: dict) -> None:
        """One answer for a participant and round: until it is closed, the last one."""
        self.answers.setdefault((event["trap"], event["go"]), {})[event["who"]] = Answer(
            event["guess"], event["sure"])

    def _refuse_verdict(self, event: dict) -> str:
        known = event["trap"] in self.by_id and event["status"] in STATUSES
        return "" if known else "verdict: got no exercise of this room, or no status."

    def _apply_verdict(self, event: dict) -> None:
        """A name that the exercise does not know counts as none; a stub is no try."""
        mine = self.verdicts.setdefault(event["trap"], {})
        before = mine.get(event["who"], Tried("", "", 0, False))
        if event["status"] == "todo" and before.tries:
            return
        known = self.by_id[event["trap"]].ask(event["mistake"]) is not None
        mistake = event["mistake"] if known else ""
        mine[event["who"]] = Tried(event["status"], mistake,
                                   before.tries + (event["status"] != "todo"),
                                   before.passed or event["status"] == "pass")

    def _refuse_hint(self, event: dict) -> str:
        item = self.by_id.get(event["trap"])
        most = len(item.trap.hints) if item and self.until and event["trap"] == self.now else 0
        ok = type(event["number"]) is int and 1 <= event["number"] <= most
        return "" if ok else "hint: got none of this exercise."

    def _apply_hint(self, event: dict) -> None:
        mine = self.hints.setdefault(event["trap"], {})
        mine[event["who"]] = max(mine.get(event["who"], 0), event["number"])

    def _apply_name(self, event: dict) -> None:
        self.names[event["who"]] = event["name"]

    def _refuse_same(self, _: dict) -> str:
        return ""

    def _apply_same(self, event: dict) -> None:
        """Merge two devices into one participant; the second's answers fill the first's gaps."""
        for said in (*self.answers.values(), *self.verdicts.values(), *self.hints.values(),
                     self.names):
            if event["who"] in said:
                said.setdefault(event["as"], said.pop(event["who"]))


def _fits(item: Item, guess: object) -> bool:
    """Whether an answer is one of the choices, or a number that can be drawn."""
    if item.asked.choices:
        return guess in item.asked.choices
    return type(guess) in (int, float) and abs(guess) <= LARGEST  # False for NaN
