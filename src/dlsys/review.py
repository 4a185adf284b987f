"""`dlsys review`: a trap comes back 2, 7 and 21 days after a mistake or a solved exercise.

The schedule is a fold over one ordered file, ``my-work/.reviews.jsonl``: what was taken in from
progress and guesses, and every answer. The order of its lines decides how far a trap has come,
never a clock; the days decide only when it is due. So a clock that is set back, or a second
window, neither loses an answer nor asks for it twice.
"""

import argparse
import random
import secrets
import shutil
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from dlsys import placed, trap_names
from dlsys_checks import questions
from dlsys_checks.exam import ledger
from dlsys_checks.questions import AnswerError, Question
from dlsys_helpers import catalog, paths, progress
from dlsys_helpers.catalog import Trap
from dlsys_helpers.errors import UserError
from dlsys_helpers.json_lines import Store
from dlsys_helpers.stages import NUMBERS, SPAN

INTERVALS = (2, 7, 21)  # days after the event, after the first right answer, after the second
MISTAKE, SOLVED, RIGHT, WRONG, PRACTISED, SEEN = (
    "mistake", "solved", "right", "wrong", "practised", "seen")
KINDS = {MISTAKE, SOLVED, RIGHT, WRONG, PRACTISED, SEEN}
INTERRUPTED = 130


class ReviewError(UserError):
    """There is nothing to review for this request; the message says what to do."""


# ---- the store

def _time(entry: dict, otherwise: datetime | None = None) -> datetime:
    """When an entry was written. Raises ValueError if there is neither a time nor a substitute."""
    try:
        when = datetime.fromisoformat(entry["time"])
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
    except (KeyError, TypeError, ValueError, OverflowError):
        if otherwise is None:
            raise ValueError("time: expected an ISO date") from None
        return otherwise


def _whole(entry: dict) -> bool:
    try:
        _time(entry)
    except ValueError:
        return False
    return (isinstance(entry.get("id"), str) and entry.get("kind") in [*KINDS]
            and type(entry.get("n")) is int)


STORE = Store(".reviews.jsonl", "Your review", _whole)


def _entry(id: str, kind: str, n: int, when: datetime) -> dict:
    return {"id": id, "kind": kind, "n": n, "time": when.isoformat(timespec="seconds")}


# ---- the schedule

@dataclass(frozen=True)
class State:
    """The progress of one trap: `step` right answers in a row, the last of them on `days`.

    No day: it has not started. Several days: the clock was set back, and any of them may be right.
    """

    step: int = 0
    days: tuple[date, ...] = ()
    mistakes: int = 0  # taken in from guesses and progress
    asked: int = 0

    def due(self, today: date) -> date | None:
        """The day on which to ask; None when it has not started or is done."""
        if not self.days or self.step >= len(INTERVALS):
            return None
        past = [day for day in self.days if day <= today]
        return max(past, default=today) + timedelta(INTERVALS[self.step])

    def after(self, entry: dict) -> "State":
        """The state after one more line of the store."""
        n, start = entry["n"], (_time(entry).date(),)
        match entry["kind"]:
            case "mistake" if n > self.mistakes:
                known = replace(self, mistakes=n)
                moved_on = self.step > 0 or not self.days
                return replace(known, step=0, days=start) if moved_on else known
            case "solved" if not self.days:
                return replace(self, days=start)
            case "right":
                counts = self.days and n == self.step  # else another window has answered already
                moved = {"step": n + 1, "days": start} if counts else {}
                return replace(self, asked=self.asked + 1, **moved)
            case "wrong":
                return replace(self, asked=self.asked + 1, step=0, days=start)
            case "practised":
                return replace(self, asked=self.asked + 1)
            case "seen" if n == self.step and self.days:
                return replace(self, days=self.days + start)
        return self


NEW = State()


@dataclass
class Facts:
    """What progress, guesses and exams say of a trap; times oldest first."""

    mistakes: list[datetime] = field(default_factory=list)
    solved: list[datetime] = field(default_factory=list)
    rank: int = 2  # 0: sure of a wrong guess, 1: a named mistake or a missed fault, 2: the rest


def _facts(now: datetime) -> dict[str, Facts]:
    """The facts about each trap. A time in the future counts as now: the clock was wrong then."""
    found: dict[str, Facts] = {}
    for guess in progress.GUESSES.entries():
        if guess.get("right") is False:  # None: nothing was measured yet
            fact = found.setdefault(guess["id"], Facts())
            fact.mistakes.append(min(_time(guess, now), now))
            fact.rank = min(fact.rank, 0 if guess["sure"] else 2)
    for answer in placed.wrong():
        fact = found.setdefault(answer["id"], Facts())
        fact.mistakes.append(min(_time(answer, now), now))
        fact.rank = min(fact.rank, 0 if answer["sure"] else 2)
    for fault in ledger.missed():
        fact = found.setdefault(fault["id"], Facts())
        fact.mistakes.append(min(_time(fault, now), now))
        fact.rank = min(fact.rank, 1)
    for verdict in progress.entries():
        fact, when = found.setdefault(verdict["id"], Facts()), min(_time(verdict, now), now)
        if verdict["status"] == "pass":
            fact.solved.append(when)
        elif verdict.get("misconception"):
            fact.mistakes.append(when)
            fact.rank = min(fact.rank, 1)
    return found


def _new_entries(id: str, state: State, fact: Facts, now: datetime) -> Iterator[dict]:
    """The entries to append: what happened to a trap since the store was last written."""
    if len(fact.mistakes) > state.mistakes:
        yield _entry(id, MISTAKE, len(fact.mistakes), sorted(fact.mistakes)[state.mistakes])
    elif fact.solved and not state.days:
        yield _entry(id, SOLVED, 0, fact.solved[0])
    if state.days and min(state.days) > now.date():
        yield _entry(id, SEEN, state.step, now)  # the clock was set back: count from here


def _states(now: datetime) -> tuple[dict[str, State], dict[str, Facts]]:
    """The state of each trap, after taking in what is new; and the facts behind it."""
    states: dict[str, State] = {}
    facts = _facts(now)
    for entry in STORE.entries():
        states[entry["id"]] = states.get(entry["id"], NEW).after(entry)
    news = [entry for id in {**states, **facts}
            for entry in _new_entries(id, states.get(id, NEW), facts.get(id, Facts()), now)]
    STORE.append(*news)
    for entry in news:
        states[entry["id"]] = states.get(entry["id"], NEW).after(entry)
    return states, facts


def answers() -> dict[str, bool]:
    """Whether the last answer about each trap was right, practice included; no entry: unasked."""
    return {entry["id"]: entry["kind"] != WRONG for entry in STORE.entries()
            if entry["kind"] in (RIGHT, WRONG, PRACTISED)}


# ---- what to ask

class Item(NamedTuple):
    """A trap to ask about now, and whether an answer moves it to the next interval."""

    trap: Trap
    state: State
    due: bool


def due(now: datetime) -> list[Item]:
    """What to ask now: confident wrong guesses, then named mistakes, then the rest.

    Within each, what has waited longest comes first.
    """
    states, facts = _states(now)
    ready = [(facts.get(item.trap.id, Facts()).rank, day, item.trap.id, item)
             for day, item in _planned(states, now) if item.due]
    return [item for *_, item in sorted(ready, key=lambda row: row[:3])]


def upcoming(now: datetime) -> tuple[date, Trap] | None:
    """The day on which something is due next, and the trap; None when nothing is planned."""
    planned = _planned(_states(now)[0], now)
    return min(((day, item.trap) for day, item in planned), default=None,
               key=lambda row: (row[0], row[1].id))


def _planned(states: dict[str, State], now: datetime) -> list[tuple[date, Item]]:
    found = []
    for trap in catalog.traps():
        state = states.get(trap.id, NEW)
        day = state.due(now.date())
        if day and questions.exist(int(trap.id[:2])):
            found.append((day, Item(trap, state, day <= now.date())))
    return found


def come_back(ids: Collection[str], now: datetime) -> date | None:
    """The day by which all of these traps that are planned have come back; None if none is."""
    return max((day for day, item in _planned(_states(now)[0], now) if item.trap.id in ids),
               default=None)


def practice(number: int, now: datetime) -> list[Item]:
    """One question for each trap of a stage that was opened, due or not.

    A trap was opened once it was guessed or its exercise tried. If none of the stage was, as
    when somebody reads on the website, one question for each of its traps. Raises ReviewError if
    the stage has no questions.
    """
    traps = catalog.traps(number) if questions.exist(number) else []
    if not traps:
        ready = ", ".join(str(one.number) for one in practised_stages())
        raise ReviewError(f"stage {number}: no questions yet, expected one of {ready}.")
    states, _ = _states(now)
    opened = _opened()
    known = [trap for trap in traps if trap.id in opened] or traps
    found = [(trap, states.get(trap.id, NEW)) for trap in known]
    today = now.date()
    return [Item(trap, state, (state.due(today) or date.max) <= today) for trap, state in found]


def practised_stages() -> list:
    """The stages that have questions, in order."""
    return [one for one in catalog.written() if questions.exist(one.number)]


def draw(item: Item) -> Question:
    """The trap's next question in turn, with fresh constants. Imports torch.

    Raises ReviewError when its stage has questions but this trap has none.
    """
    found = questions.about(item.trap.id)
    if not found:
        raise ReviewError(f"trap {item.trap.id}: no question yet. See: dlsys review --help")
    return found[item.state.asked % len(found)](random.Random(secrets.randbelow(2**31)))


def record(item: Item, right: bool, now: datetime) -> None:
    """Keep an answer. Never raises OSError. A right one counts when the trap was due."""
    kind = WRONG if not right else RIGHT if item.due else PRACTISED
    STORE.append(_entry(item.trap.id, kind, item.state.step, now))


def nothing_due(now: datetime) -> str:
    """What to say when nothing is due: when the next question is, or how to get one."""
    coming = upcoming(now)
    if coming:
        day, trap = coming
        left = (day - now.date()).days
        return (f"Nothing is due. Next: trap {trap.id}, {_name(trap)}, on {day} "
                f"({left} day{'s' * (left != 1)}).")
    kept = "" if STORE.path() else " Reviews are not kept: DLSYS_PROGRESS is off."
    return ("Nothing is planned yet: a wrong guess, a mistake with a name or a solved exercise "
            f"comes back after {INTERVALS[0]} days.{kept} To practise now: dlsys review --all 01")


def _opened() -> set[str]:
    """The traps that were guessed, or whose exercise was tried."""
    return {entry["id"] for store in (progress.GUESSES, progress) for entry in store.entries()}


def _name(trap: Trap) -> str:
    return trap_names.shown_name(trap, trap.id in _opened())


def verdict(item: Item, question: Question, right: bool) -> list[str]:
    """What to say after an answer: right or wrong, the computed value, why; what to read again."""
    trap = item.trap
    number = int(trap.id[:2])
    lesson = f"{paths.MY_WORK.name}/{paths.lesson_copy(number).name} (dlsys start {number})"
    told = [f"{'✓ Right' if right else '✗ Wrong'}. Computed: {question.shown}.", question.why]
    return told if right else [*told, f"Read again: trap {trap.id}, {_name(trap)}, in {lesson}"]


def now() -> datetime:
    """The time in UTC: the day of a review does not change when you travel."""
    return datetime.now(UTC)


# ---- dlsys review

def add_parser(commands) -> None:
    """Add `review` to the commands of `dlsys`."""
    parser = commands.add_parser("review", help="answer short questions about what you learned")
    parser.add_argument("--all", metavar="STAGE", dest="stage", type=_stage_number,
                        help=f"practise a stage ({SPAN}) now, without waiting")
    parser.set_defaults(run=run)


def _stage_number(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number not in NUMBERS:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a stage, {SPAN}")
    return number


def run(args: argparse.Namespace) -> int:
    """Ask what is due, or a stage's questions; returns 0, or 130 after Ctrl-C."""
    start = now()
    items = due(start) if args.stage is None else practice(args.stage, start)
    if not items:
        print(nothing_due(start))
        return 0
    answers: list[bool] = []
    try:
        _ask_all(items, answers)
    except (KeyboardInterrupt, EOFError) as stop:
        print("\nStopped." + (" Your answers are kept." if answers and STORE.path() else ""))
        return INTERRUPTED if isinstance(stop, KeyboardInterrupt) else 0
    print(f"{sum(answers)} of {len(answers)} right." + ("" if STORE.path() else
          " Reviews are not kept: DLSYS_PROGRESS is off."))
    return 0


def _ask_all(items: list[Item], answers: list[bool]) -> None:
    print("Ctrl-C stops, and your answers are kept." if STORE.path() else "Ctrl-C stops.")
    for place, item in enumerate(items, 1):
        question = draw(item)
        show(question, f"{place} of {len(items)} · stage {int(item.trap.id[:2])}")
        right = question.right(_read(question))
        record(item, right, now())
        answers.append(right)
        say_wrapped(*verdict(item, question, right))


def show(question: Question, head: str) -> None:
    """Print a question under a heading, and its options with their letters."""
    say_wrapped(f"\n{head}", question.text)
    for letter, option in zip(question.letters, question.options, strict=True):
        print(f"  {letter}  {option}")


def _read(question: Question) -> float:
    """Ask until the answer is valid, and return it."""
    print(question.typed_form)
    while True:
        try:
            return question.read_typed(input("> "))
        except AnswerError as error:
            print(error)


def say_wrapped(*lines: str) -> None:
    """Print lines, each wrapped to the terminal."""
    width = min(88, shutil.get_terminal_size().columns)
    for line in lines:
        print("\n".join(textwrap.fill(part, width) for part in line.split("\n")))
