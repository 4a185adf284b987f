"""`dlsys placement`: twelve to fifteen questions, and the traps of the core path that you need.

The model is in placement_model.py. Guesses, solved exercises and named mistakes count as answers,
so the plan moves on with what you do. Answers are kept in ``my-work/.placement.jsonl``, one line
each; whatever was wrong or skipped comes back in `dlsys review`.
"""

import argparse
import itertools
import random
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from dlsys import placed, review
from dlsys.placement_model import (
    LEAST,
    MOST,
    NEEDS,
    SKIP,
    Course,
    Doubt,
    Seen,
    answered,
    belief,
    course,
    next_item,
    skipped,
    to_take,
)
from dlsys.terminal import bold, say
from dlsys_checks import questions
from dlsys_checks.questions import AnswerError, Question
from dlsys_helpers import catalog, progress, stages
from dlsys_helpers.catalog import Trap

TODAY = 60  # minutes
UNKNOWN, QUIT = "?", "q"
# Questions, by position, that can be computed without having seen the trap.
LEFT_OUT = {"09.11": (2,), "10.5": (3,)}
INTERRUPTED = 130


# ---- what is known about this learner

def evidence(rows: list[dict]) -> list[Seen]:
    """What the learner's files say: exercises, guesses, and these answers of a placement."""
    found = {}
    for id, guess in progress.guesses().items():
        if guess["right"] is not None:
            found[id] = (Seen(id, 0.8, 0.35, "your guess was right") if guess["right"]
                         else Seen(id, 0.2, 0.65, "your guess was wrong"))
    solved = progress.solved()
    for entry in progress.entries():
        id = entry["id"]
        if id in solved:
            found[id] = Seen(id, 0.95, 0.02, "you solved its exercise")
        elif entry.get("misconception"):
            found[id] = Seen(id, 0.15, 0.7, f"your last mistake: {entry['misconception']}")
    return [*found.values(), *(_of(row) for row in rows if row["id"] not in solved)]


def _of(row: dict) -> Seen:
    if row["skipped"]:
        return skipped(row["id"])
    return answered(row["id"], row["right"], row["sure"], row["options"] or None)


def kept() -> list[dict]:
    """The answers and ends that were kept, except for rows of traps that do not exist."""
    known = {placed.END, *(trap.id for trap in catalog.traps())}
    return [row for row in placed.STORE.entries() if row["id"] in known]


def last() -> list[dict]:
    """The answers of the last placement, in their order."""
    rows = kept()
    return [row for row in rows if row["run"] == rows[-1]["run"] and row["id"] != placed.END]


def finished() -> bool:
    """Whether the last placement was answered to its end."""
    rows = kept()
    return bool(rows) and rows[-1]["id"] == placed.END


def run_number() -> int:
    rows = kept()
    return rows[-1]["run"] if rows else 0


# ---- the plan

class Step(NamedTuple):
    """A trap in a plan: what it takes, how likely it is known, and why we think so."""

    trap: Trap
    minutes: int
    known: float
    why: str


class Plan(NamedTuple):
    """The core path divided into what to take, wrong answers first, and what to skip."""

    take: tuple[Step, ...]
    skip: tuple[Step, ...]

    def today(self, minutes: int) -> list[Step]:
        """The first steps that fit, but at least one."""
        found, spent = list(self.take[:1]), sum(step.minutes for step in self.take[:1])
        for step in self.take[1:]:
            spent += step.minutes
            if spent > minutes:
                break
            found.append(step)
        return found


def planned(of: Course, doubt: Doubt) -> Plan:
    steps = [Step(catalog.trap(id), minutes, float(known), why(of, doubt, id, known >= SKIP))
             for id, minutes, known in zip(of.ids, of.minutes, doubt.known, strict=True)]
    return Plan(tuple(steps[n] for n in to_take(of, doubt)),
                tuple(step for step in steps if step.known >= SKIP))


def why(of: Course, doubt: Doubt, id: str, skip: bool) -> str:
    """The reason: evidence on the trap, else on its stage or on what that builds on."""
    if own := doubt.seen.get(id):
        agrees = (own.known > own.unknown) == skip
        return own.words if agrees else f"{own.words}, but your other answers speak against it"
    stage = int(id[:2])
    for among, words in (((stage,), "of this stage"), (NEEDS[stage], "of what it builds on")):
        found = [one for other, one in doubt.seen.items() if other in of.ids
                 and int(other[:2]) in among and (one.known > one.unknown) == skip]
        if found:
            return f"{'known' if skip else 'not known'} {words}: {', '.join(o.id for o in found)}"
    return f"your answers to other stages {'suggest it' if skip else 'leave it open'}"


def current() -> Plan | None:
    """The plan of a learner who has finished a placement; None for others."""
    if not (finished() and course().ids):
        return None
    return planned(course(), belief(course(), evidence(last())))


def next_trap() -> Trap | None:
    """The first trap of the plan that is not solved; None without a plan or with nothing left."""
    plan_, solved = current(), progress.solved()
    return next((step.trap for step in plan_.take if step.trap.id not in solved), None
                ) if plan_ else None


# ---- dlsys placement

def add_parser(commands) -> None:
    """Add `placement` to the commands of `dlsys`."""
    parser = commands.add_parser("placement", help="twelve to fifteen questions, and which traps "
                                                   "to take and to skip")
    parser.add_argument("--again", action="store_true", help="start again from the first question")
    parser.add_argument("--minutes", type=_minutes, default=TODAY, metavar="N",
                        help=f"for today (default {TODAY})")
    parser.set_defaults(run=run)


def _minutes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 10 <= int(text[:5]) <= 600):
        raise argparse.ArgumentTypeError(f"got {text[:20]!r}, expected minutes, 10 to 600")
    return int(text)


def run(args: argparse.Namespace) -> int:
    if not placed.STORE.path():
        print("Placement keeps its answers, and DLSYS_PROGRESS is off. Unset it first.")
        return 2
    if not course().ids:
        print("Placement asks about the core path, and no lesson is here. See: dlsys doctor")
        return 2
    number = run_number() + (args.again or not run_number())
    if args.again or not finished():
        try:
            ask_all(number)
        except (KeyboardInterrupt, EOFError) as stop:
            print("\nStopped. Your answers are kept; dlsys placement goes on from here.")
            return INTERRUPTED if isinstance(stop, KeyboardInterrupt) else 0
    tell(current(), args.minutes)
    return 0


def ask_all(number: int) -> None:
    rows = last() if number == run_number() else []
    review.say_wrapped(f"{LEAST} to {MOST} questions from the whole course. `{UNKNOWN}` says that "
                       f"you do not know, which is worth more than luck; `{QUIT}` stops, and "
                       "your answers are kept.")
    if rows:
        print(f"{len(rows)} answered so far.")
    while id := next_item(course(), belief(course(), evidence(rows)), len(rows)):
        rows.append(ask(id, len(rows) + 1, number))
    placed.end(number)


def ask(id: str, place: int, number: int) -> dict:
    """Ask one question and keep the answer."""
    made = [one for place, one in enumerate(questions.about(id))
            if place not in LEFT_OUT.get(id, ())]
    question = made[secrets.randbelow(len(made))](random.Random(secrets.randbelow(2**31)))
    review.show(question, f"{place} · stage {int(id[:2])}")
    value = _read(question)
    sure = value is not None and _sure()
    while sure is None:
        value = _read(question)
        sure = value is not None and _sure()
    right = value is not None and question.right(value)
    return placed.record(id, run=number, right=right, sure=sure, skipped=value is None,
                         options=len(question.options),
                         told="" if right else _debrief(question, value))


def _debrief(question: Question, value: float | None) -> str:
    """What to say at the end about a wrong or a skipped answer."""
    said = "" if value is None else f" You: {question.shown_answer(value)}."
    return f"{question.text}{said} Computed: {question.shown}. {question.why}"


def _read(question: Question) -> float | None:
    """Ask until the answer is valid; returns None for "I do not know"."""
    print(f"{question.typed_form} Or {UNKNOWN}.")
    while True:
        said = input("> ").strip()
        if said == UNKNOWN:
            return None
        if said.lower() == QUIT:
            raise EOFError
        try:
            return question.read_typed(said)
        except AnswerError as error:
            print(error)


def _sure() -> bool | None:
    """Whether the learner is sure; None for an answer that was mistyped."""
    while (said := input("Are you sure? y or n, or b to change your answer > ").strip().lower()
           ) not in ("y", "yes", "n", "no", "b"):
        if said == QUIT:
            raise EOFError
        print(f"sure: got {said[:20]!r}, expected y, n or b.")
    return None if said == "b" else said[0] == "y"


def tell(found: Plan, minutes: int) -> None:
    rows = last()
    right = sum(row["right"] for row in rows)
    print(f"\n{right} of {len(rows)} right.")
    if not found.take:
        print(f"Your answers show no gap on the core path, but {len(rows)} questions cannot cover "
              "all of it. To go on: dlsys exam a")
        return
    today = found.today(minutes)
    spent = sum(step.minutes for step in today)
    say(bold(f"Today, {spent} minutes"))
    for step in today:
        review.say_wrapped(f"  {step.trap.id} {step.trap.title}, {step.minutes} minutes: "
                           f"{step.why}")
    if spent > minutes:
        review.say_wrapped(f"  No trap that you need first fits into {minutes} minutes. You can "
                           "take this one in two parts: stop after its repair.")
    later = sorted(found.take[len(today):], key=lambda step: course().ids.index(step.trap.id))
    if later:
        say(bold(f"After that, {len(later)} more traps, {time_of(later)}, in this order"))
        _by_stage(later)
    if found.skip:
        say(bold(f"Skip, since you probably know it, {time_of(found.skip)}"))
        _by_stage(found.skip)
    open_ = [row["id"] for row in rows if row["right"]
             and row["id"] in {step.trap.id for step in later}]
    if open_:
        review.say_wrapped("Right, but your other answers leave it open whether you know it, so it "
                           f"stays in the plan: {', '.join(open_)}.")
    _wrong(rows)
    print(f"To begin: dlsys start {int(today[0].trap.id[:2])}, trap {today[0].trap.id}")


def time_of(steps: Sequence[Step]) -> str:
    """The time in hours, or in minutes below two hours."""
    minutes = sum(step.minutes for step in steps)
    return f"{minutes} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"


def _by_stage(steps: Sequence[Step]) -> None:
    """Print a line for each stage: its name, its traps, and in brackets the reason for each."""
    for stage, ours in itertools.groupby(steps, lambda step: int(step.trap.id[:2])):
        reasons: dict[str, list[str]] = {}
        for step in ours:
            reasons.setdefault(step.why, []).append(step.trap.id)
        review.say_wrapped(f"  {stage} {stages.stage(stage).title}: " + "; ".join(
            f"{', '.join(ids)} ({why})" for why, ids in reasons.items()))


def _wrong(rows: Sequence[dict]) -> None:
    """Print what was wrong or skipped, with the right answers."""
    if back := [row for row in rows if not row["right"]]:
        say(bold("Wrong or skipped. These come back in dlsys review"))
        for row in back:
            review.say_wrapped(f"  {row['id']} {row.get('told', '')}".rstrip())
