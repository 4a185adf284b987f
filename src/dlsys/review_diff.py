"""`dlsys review-diff`: review small changes to a training repository, healthy and faulty.

You see a change and its description, may open every file and ask for one recorded run. You mark a
line, say how sure you are that the change is faulty, name the consequence and choose or type the
repair. Only then are you told. Answers are kept in ``my-work/.diffs.jsonl`` as they were given;
what is right is decided anew whenever a score is shown.
"""

import argparse
import random
import secrets
from datetime import UTC, datetime

from dlsys.terminal import ask, bold, new_table, paragraph, say, styled
from dlsys_diffs import reading, recorded, scoring
from dlsys_diffs.case_files import CHANGED, FORMS, HEALTHY, OMITTED, Case, cases
from dlsys_diffs.reading import NOTHING, AnswerError
from dlsys_diffs.scoring import Review
from dlsys_helpers.errors import UserError
from dlsys_helpers.json_lines import Store

INTERRUPTED = 130
MOST_NUMBERS = 40
POINTS = 12  # of a curve, as it is printed
HEADINGS = {HEALTHY: "This change is healthy.", OMITTED: "A line is missing.",
            CHANGED: "A changed line is at fault."}
NOTHING_BAD = "Nothing bad: the change is as it should be."
STYLES = {"+": "green", "-": "red", "@": "bold", " ": ""}
RUNS = {
    "training": "the standard preset from beginning to end",
    "resume": "an interrupted run next to one that was not; a warm start from an old file",
    "accumulation": "one update at once and in four pieces; an overflow",
    "evaluation": "a model scored in batches of 64 and of 7, and what scoring changes",
    "tuning": "five updates with each setting that freezes something",
    "serving": "the exported file next to the model that it was made of",
    "ranks": "two ranks next to one",
    "data": "split, normalization, order and augmentation"}


def _whole(entry: dict) -> bool:
    """Whether a stored answer is one: known texts, and numbers in their ranges."""
    numbers = {"confidence": range(101), "consequence": range(NOTHING, 3),
               "repair": range(NOTHING, 3)}
    return (all(isinstance(entry.get(name), str) for name in ("id", "digest", "mark", "run"))
            and all(type(entry.get(name)) is int and entry[name] in allowed
                    for name, allowed in numbers.items()))


STORE = Store(".diffs.jsonl", "Your review of changes", _whole)


def reviews() -> dict[str, Review]:
    """The first answer to each case as it is today, by id."""
    found: dict[str, Review] = {}
    for entry in STORE.entries():
        case = cases().get(entry["id"])
        if case and entry["digest"] == case.digest and case.id not in found:
            found[case.id] = Review(case, entry["mark"], entry["confidence"],
                                    entry["consequence"], entry["repair"])
    return found


def add_parser(commands) -> None:
    """Add `review-diff` to the commands of `dlsys`."""
    parser = commands.add_parser("review-diff", help="review changes to a training repository: "
                                                     "healthy, or with a silent fault?")
    parser.add_argument("case", nargs="?", help="the number of a change (default: the next one)")
    parser.add_argument("--form", choices=FORMS, help="only half of the changes: a before the "
                                                      "course, b after it; they are matched")
    parser.add_argument("--list", action="store_true",
                        help="list all changes, and which you have reviewed")
    parser.add_argument("--score", action="store_true", help="show how you did so far, by form")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.score:
        return show_score()
    asked = [case for case in cases().values() if args.form in (None, case.form)]
    if args.list:
        return show_list(asked)
    done = reviews()
    unseen = [case for case in asked if case.id not in done]
    todo = [case_of(args.case)] if args.case else unseen
    if not todo:
        print("All of these are reviewed. How you did: dlsys review-diff --score")
        return 0
    try:
        for place, case in enumerate(todo):
            if place and not another():
                break
            review(case, repeated=case.id in done)
    except (KeyboardInterrupt, EOFError) as stop:
        print("\nStopped. What you had answered is kept." if STORE.path() else "\nStopped.")
        return INTERRUPTED if isinstance(stop, KeyboardInterrupt) else 0
    return 0


def number_of(case: Case) -> int:
    """By which a reviewer knows a change; its id may say what it is."""
    return 1 + [*cases()].index(case.id)


def case_of(text: str, command: str = "review-diff") -> Case:
    """The change with this number. command: what a refusal begins with."""
    every = [*cases().values()]
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:4]) <= len(every)):
        raise UserError(f"{command}: got {text[:40]!r}, expected the number of a change, 1 to "
                        f"{len(every)}. See: dlsys review-diff --list")
    return every[int(text) - 1]


def another() -> bool:
    return input("\nEnter for the next change, q to stop > ").strip().lower() not in ("q", "quit")


# ---- one change

def review(case: Case, repeated: bool) -> None:
    """Show a change, ask for all answers, keep them, and tell what was right."""
    show_change(case, repeated)
    mark, asked_run = ask_mark(case)
    say("")
    confidence = ask("How sure are you that this change is faulty, 0 to 100?", reading.confidence,
                     AnswerError)
    seed = secrets.randbits(32)
    order = shuffled(case, len(case.consequences), seed)
    options("What does somebody see of it? A number, or your own words.",
            [case.consequences[n] for n in order], NOTHING_BAD)
    consequence = ask("", lambda text: reading.consequence(text, case, order), AnswerError)
    order = shuffled(case, len(case.repairs), seed + 1)
    options("Which edit of the changed files repairs it? A number, or the new lines.",
            ["\n     ".join(reading.repair_lines(case, n)) for n in order], "Leave it as it is.")
    repair = ask("", lambda text: reading.repair(text, case, order), AnswerError)
    STORE.append({"id": case.id, "digest": case.digest, "mark": mark, "confidence": confidence,
                  "consequence": consequence, "repair": repair, "run": asked_run,
                  "time": datetime.now(UTC).isoformat(timespec="seconds")})
    tell(Review(case, mark, confidence, consequence, repair))


def shuffled(case: Case, count: int, seed: int) -> list[int]:
    """The places of a case's options in an order that a seed draws."""
    return random.Random(f"{case.id} {seed}").sample(range(count), count)


def show_change(case: Case, repeated: bool) -> None:
    say("")
    say(bold(f"Change {number_of(case)}: {case.title}"))
    paragraph(case.text)
    say("")
    for line in case.diff:
        say(styled(reading.numbered(line), STYLES[line.sign]))
    say("")
    if repeated:
        paragraph("You have reviewed this change before; only your first answer counts.")


def ask_mark(case: Case) -> tuple[str, str]:
    """The mark, and the run that was asked for, if any."""
    asked = ""
    paragraph("Mark the line at fault, such as `loop.py:40`, or the place where a line is missing, "
              "in any file; `none` for neither. Numbers are those of the files after the change. "
              "First you may read a file (`file loop.py`) and ask for one recorded run (`runs` "
              "lists them); `q` stops.")
    while True:
        said = input("mark > ").strip()
        word, _, rest = said.partition(" ")
        if word == "file":
            show_file(case, rest.strip())
        elif said in ("q", "quit"):
            raise EOFError
        elif said in ("runs", "run"):
            for name, what in RUNS.items():
                say(f"  run {name}: {what}")
        elif word == "run":
            asked = show_run(case, rest.strip(), asked)
        else:
            try:
                return reading.mark(said, case), asked
            except AnswerError as error:
                paragraph(str(error))


def show_file(case: Case, name: str) -> None:
    """A whole file after the change, with the numbers that a mark of a missing line uses."""
    if name not in case.after:
        paragraph(f"file: got {name[:40]!r}, expected one of {', '.join(case.after)}.")
        return
    for number, line in enumerate(case.after[name].splitlines(), 1):
        say(f"{number:>4}  {line}")


def show_run(case: Case, name: str, asked: str) -> str:
    """Show a recorded run; returns the one that was asked for. There is one for each change."""
    if name not in RUNS:
        paragraph(f"run: got {name[:40]!r}, expected one of {', '.join(RUNS)}.")
    elif asked and asked != name:
        paragraph(f"run: you have asked for {asked}, and there is one run for each change.")
    else:
        print_run(case, name)
        return name
    return asked


def print_run(case: Case, name: str) -> None:
    if stopped := recorded.stopped(case.id, name):
        paragraph(f"With the change, this run stops: {stopped}")
        return
    table = new_table(f"{name}", "before", "after", "")
    for row in recorded.numbers(case.id, name)[:MOST_NUMBERS]:
        differs = row.before != row.after
        table.add_row(row.name, number(row.before), number(row.after), "differs" if differs else "")
    say(table)
    for title, (before, after) in recorded.curves(case.id, name).items():
        say(f"{title}, before: {thinned(before)}")
        say(f"{title}, after:  {thinned(after) if after != before else 'the same'}")


def number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def thinned(values: list) -> str:
    """A dozen points of a curve, evenly spaced."""
    step = max(1, (len(values) - 1) // (POINTS - 1))
    return " ".join(number(value) for value in values[::step])


def options(question: str, texts: list[str], nothing: str) -> None:
    say("")
    paragraph(question)
    for place, text in enumerate(texts, 1):
        say(f"  {place}  {text}")
    say(f"  0  {nothing}")


# ---- what was right

def tell(review: Review) -> None:
    """What the change was, and which of the answers were right."""
    case = review.case
    say("")
    say(bold(HEADINGS[case.kind]))
    if case.faulty:
        where = " or ".join(f"{file}, line {line}" for file, line in case.places)
        verdict(reading.is_place(review.mark, case), f"Place: {where}.")
        verdict(review.consequence == 0, f"What one sees: {case.consequences[0]}")
        verdict(review.repair == 0, "Repair: " + "\n     ".join(reading.repair_lines(case, 0)))
        paragraph(measured(case))
    else:
        verdict(review.confidence <= scoring.ACCUSED, f"You were {review.confidence} % sure that "
                                                      "it is faulty.")
        verdict(review.repair == NOTHING, "It needs no repair.")
    paragraph(f"Why: {case.why}")
    owner, _, item = case.source.partition("#")
    paragraph(f"Modelled on {owner}, number {item} of its issues and pull requests on GitHub.")


def measured(case: Case) -> str:
    """The number of its run that shows what the change does."""
    row = next(row for row in recorded.numbers(case.id, case.run) if row.name == case.number)
    return (f"Measured, run {case.run}: {row.name} is {number(row.before)} without the change and "
            f"{number(row.after)} with it.")


def verdict(right: bool, text: str) -> None:
    say(styled("✓" if right else "✗", "green" if right else "red"), text)


# ---- lists and scores

def show_list(asked: list[Case]) -> int:
    done = reviews()
    table = new_table("change", "name, and what it says of itself", "form", "reviewed")
    for case in asked:
        table.add_row(str(number_of(case)), case.title, case.form, "yes" if case.id in done else "")
    say(table)
    print(f"{sum(case.id in done for case in asked)} of {len(asked)} reviewed.")
    return 0


def show_score() -> int:
    done = list(reviews().values())
    print(*scoring.shown(scoring.score(done)), sep="\n")
    parts = {form: [one for one in done if one.case.form == form] for form in FORMS}
    if all(parts.values()):
        for form, part in parts.items():
            print(f"\nForm {form}:", *scoring.shown(scoring.score(part)), sep="\n")
    old = len({entry["id"] for entry in STORE.entries()}) - len(done)
    if old:
        print(f"{old} answers are to changes that are different today, and do not count.")
    if not STORE.path():
        print("Answers are not kept: DLSYS_PROGRESS is off.")
    return 0
