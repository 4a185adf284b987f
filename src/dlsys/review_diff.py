"""`dlsys review-diff`: review small changes to a training repository, healthy and faulty.

You see a change and its description, may open every file and ask for one recorded run. You mark a
line, say how sure you are that the change is faulty, name the consequence and choose or type the
repair. Only then do you see what was right. Each answer is kept in ``my-work/.diffs.jsonl`` as soon
as you give it, so you can continue an interrupted review, with the run that was shown. Answers are
judged whenever a score is shown.
"""

import argparse
import random
import secrets
from collections.abc import Callable
from datetime import UTC, datetime

from dlsys.terminal import ask, bold, filled, new_table, paragraph, say, styled
from dlsys_diffs import reading, recorded, scoring
from dlsys_diffs.case_files import CHANGED, FORMS, HEALTHY, OMITTED, Case, cases
from dlsys_diffs.reading import NOTHING, AnswerError
from dlsys_diffs.scoring import Review
from dlsys_diffs.typed import BACK
from dlsys_helpers.errors import UserError
from dlsys_helpers.json_lines import Store

INTERRUPTED = 130
MOST_NUMBERS = 40
POINTS = 12  # of a curve, as it is printed
HEADINGS = {HEALTHY: "This change is healthy.", OMITTED: "The change is incomplete.",
            CHANGED: "A changed line is at fault."}
NOTHING_BAD = "Nothing bad: the change is as it should be."
STYLES = {"+": "green", "-": "red", "@": "bold", " ": ""}
RUNS = {
    "training": "the standard preset, from beginning to end",
    "resume": "an interrupted run and an uninterrupted one; a warm start from an old file",
    "accumulation": "one update at once and in four pieces; an overflow",
    "evaluation": "a model scored in batches of 64 and of 7, and what scoring changes",
    "tuning": "five updates with each setting that freezes something",
    "serving": "the exported file and the model that it was made from",
    "ranks": "two ranks compared with one",
    "data": "split, normalization, order and augmentation"}


ANSWERS = {"mark": str, "run": str, "confidence": range(101), "consequence": range(NOTHING, 3),
           "repair": range(NOTHING, BACK + 1)}


def _whole(entry: dict) -> bool:
    """Whether a stored entry is valid: a case with some answers, known texts, numbers in range.

    An entry with all answers is a review; one with fewer is a step of one, kept as it was given.
    order: the seed of the order in which options are shown.
    """
    given = {name: entry[name] for name in ANSWERS if name in entry}
    return (all(isinstance(entry.get(name), str) for name in ("id", "digest")) and bool(given)
            and type(entry.get("order", 0)) is int
            and all(_allowed(value, ANSWERS[name]) for name, value in given.items()))


def _allowed(value: object, what) -> bool:
    return isinstance(value, str) if what is str else type(value) is int and value in what


def _is_review(entry: dict) -> bool:
    return entry.keys() >= ANSWERS.keys()


STORE = Store(".diffs.jsonl", "Your review of changes", _whole)


def reviews() -> dict[str, Review]:
    """The first answer to each case as it is today, by id."""
    found: dict[str, Review] = {}
    for entry in filter(_is_review, STORE.entries()):
        case = cases().get(entry["id"])
        if case and entry["digest"] == case.digest and case.id not in found:
            found[case.id] = Review(case, entry["mark"], entry["confidence"],
                                    entry["consequence"], entry["repair"])
    return found


class Begun:
    """A review in progress: each answer is kept on disk at once, and in this process.

    order: the seed of the order of its options, which stays the same after an interruption.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.given, self.order = case, {}, secrets.randbits(32)
        for entry in STORE.entries():
            if (entry["id"], entry["digest"]) == (case.id, case.digest):
                new = {name: entry[name] for name in ANSWERS if name in entry}
                self.given = {} if _is_review(entry) else self.given | new
                self.order = (secrets.randbits(32) if _is_review(entry) else
                              entry.get("order", self.order))

    def keep(self, **answers) -> None:
        self.given |= answers
        done = self.given if _is_review(self.given) else answers
        STORE.append({"id": self.case.id, "digest": self.case.digest, "order": self.order, **done,
                      "time": datetime.now(UTC).isoformat(timespec="seconds")})


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
    todo = [case_of(args.case, form=args.form)] if args.case else unseen
    if not todo:
        print("You have reviewed all of these. How you did: dlsys review-diff --score")
        return 0
    try:
        for place, case in enumerate(todo):
            if place and not another():
                break
            review(case, repeated=case.id in done)
    except (KeyboardInterrupt, EOFError) as stop:
        print("\nStopped. What you have answered is kept." if STORE.path() else
              "\nStopped. Nothing is kept, because DLSYS_PROGRESS is off.")
        return INTERRUPTED if isinstance(stop, KeyboardInterrupt) else 0
    return 0


def number_of(case: Case) -> int:
    """The number by which reviewers know a change; its id may give the answer away."""
    return 1 + [*cases()].index(case.id)


def case_of(text: str, command: str = "review-diff", form: str | None = None) -> Case:
    """The change with this number, in the requested form, if any.

    command: what a refusal begins with.
    """
    every = [*cases().values()]
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:4]) <= len(every)):
        raise UserError(f"{command}: got {text[:40]!r}, expected the number of a change, 1 to "
                        f"{len(every)}. See: dlsys review-diff --list")
    case = every[int(text) - 1]
    if form not in (None, case.form):
        raise UserError(f"{command}: change {text} is in form {case.form}, and --form asks for "
                        f"form {form}. Leave --form out, or see: dlsys review-diff --form {form} "
                        "--list")
    return case


def another() -> bool:
    return input("\nEnter for the next change, q to stop > ").strip().lower() not in ("q", "quit")


# ---- one change

def review(case: Case, repeated: bool) -> None:
    """Show a change, ask for the answers that are missing, keep each, and tell what was right."""
    begun = Begun(case)
    show_change(case, repeated)
    show_begun(begun)
    if "mark" not in begun.given:
        begun.keep(mark=ask_mark(begun))
        say("")
    if "confidence" not in begun.given:
        begun.keep(confidence=ask_confidence(begun.given["mark"]))
    if sees_nothing(begun.given):
        begun.keep(**{"run": "", **begun.given, "consequence": NOTHING, "repair": NOTHING})
        return tell(reviewed(begun))
    if "consequence" not in begun.given:
        order = shuffled(case, len(case.consequences), begun.order)
        options("What would somebody notice? A number, or your own words.",
                [case.consequences[n] for n in order],
                NOTHING_BAD)
        begun.keep(consequence=asked("", lambda text: reading.consequence(text, case, order)))
    order = shuffled(case, len(case.repairs), begun.order + 1)
    options("Which edit, in any file, repairs it? A number, or the new lines.",
            [repair_shown(case, n) for n in order], "Leave it as it is.")
    answer = asked("", lambda text: reading.repair(text, case, order))
    begun.keep(**{"run": "", **begun.given, "repair": answer})
    tell(reviewed(begun))


def ask_confidence(mark: str) -> int:
    """The confidence; asks once more if somebody who marked no line calls the change faulty."""
    question = "How likely is it that this change is faulty, 0 to 100 %?"
    said = asked(question, reading.confidence)
    if mark or said <= scoring.ACCUSED:
        return said
    return asked(f"You marked no line, and {said} % says that the change is probably faulty. Enter "
                 f"{said} again if you mean that, or a number up to {scoring.ACCUSED} if you think "
                 "that it is healthy.", reading.confidence)


def asked(question: str, read: Callable[[str], int]) -> int:
    """Ask until the answer is valid, and return it. Raises EOFError for `q`, as at the mark."""
    def read_or_stop(text: str) -> int:
        if text.strip().lower() in ("q", "quit"):
            raise EOFError
        return read(text)
    return ask(question, read_or_stop, AnswerError)


def sees_nothing(given: dict) -> bool:
    """Whether these answers call a change healthy; then no consequence or repair is asked for."""
    return not given["mark"] and given["confidence"] <= scoring.ACCUSED


def reviewed(begun: Begun) -> Review:
    return Review(begun.case, *(begun.given[name] for name in (
        "mark", "confidence", "consequence", "repair")))


def show_begun(begun: Begun) -> None:
    """Show what was answered before an interruption, and the run that was shown."""
    given = begun.given
    if not given:
        return
    if run := given.get("run"):
        paragraph(f"You have begun this review and asked for the run {run}:")
        print_run(begun.case, run)
    if "mark" in given:
        sure = f", and you are {given['confidence']} % sure" if "confidence" in given else ""
        paragraph(f"You have begun this review. Your mark: {given['mark'] or 'none'}{sure}.")


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


def ask_mark(begun: Begun) -> str:
    """The mark; before it, files and one recorded run can be seen."""
    case = begun.case
    explain_marks()
    while True:
        said = input("mark > ").strip()
        word, _, rest = said.partition(" ")
        if word == "file":
            show_file(case, rest.strip())
        elif said in ("q", "quit"):
            raise EOFError
        elif said in ("?", "help"):
            explain_marks()
        elif said in ("runs", "run"):
            for name, what in RUNS.items():
                say(f"  run {name}: {what}")
        elif word in ("run", "runs"):
            show_run(begun, rest.strip())
        else:
            try:
                return reading.mark(said, case)
            except AnswerError as error:
                paragraph(str(error))


def explain_marks() -> None:
    paragraph("Mark the line at fault, such as `loop.py:40`, or the place where one is missing, "
              "in any file; `none` if nothing is wrong. The numbers are those of the files after "
              "the change. Before that you may read files (`file loop.py`) and ask for one "
              "recorded run (`runs` lists them); `q` stops.")


def show_file(case: Case, name: str) -> None:
    """A whole file after the change, with the numbers that a mark of a missing line uses."""
    if name not in case.after:
        paragraph(f"file: got {name[:40]!r}, expected one of {', '.join(case.after)}.")
        return
    for number, line in enumerate(case.after[name].splitlines(), 1):
        say(f"{number:>4}  {line}")


def show_run(begun: Begun, name: str) -> None:
    """Show a recorded run, and keep which one: there is one for each change."""
    asked = begun.given.get("run", "")
    if name not in RUNS:
        paragraph(f"run: got {name[:40]!r}, expected one of {', '.join(RUNS)}.")
    elif asked and asked != name:
        paragraph(f"run: you have asked for {asked}, and there is one run for each change.")
    else:
        if not asked:
            begun.keep(run=name)
        print_run(begun.case, name)


def print_run(case: Case, name: str) -> None:
    if stopped := recorded.stopped(case.id, name):
        paragraph(f"With the change, this run stops: {stopped}")
        return
    table = new_table(f"number, run {name}", "before", "after", "")
    for row in recorded.numbers(case.id, name)[:MOST_NUMBERS]:
        differs = row.before != row.after
        table.add_row(row.name, number(row.before), number(row.after),
                      "differs" if differs else "")
    say(table)
    for title, (before, after) in recorded.curves(case.id, name).items():
        say(f"{title}, before: {thinned(before)}")
        say(f"{title}, after:  {thinned(after) if after != before else 'the same'}")


def number(value: float | str) -> str:
    return recorded.shown(value)


def thinned(values: list) -> str:
    """A dozen points of a curve, evenly spaced."""
    step = max(1, (len(values) - 1) // (POINTS - 1))
    return " ".join(number(value) for value in values[::step])


def options(question: str, texts: list[str], nothing: str) -> None:
    say("")
    paragraph(question)
    for place, text in enumerate(texts, 1):
        if "\n" in text:  # code keeps its lines
            say(f"  {place}  {text}")
        else:
            say(filled(text, f"  {place}  ", "     "))
    say(f"  0  {nothing}")


def repair_shown(case: Case, place: int) -> str:
    return "\n     ".join(reading.repair_lines(case, place))


# ---- what was right

def tell(review: Review) -> None:
    """Show what the change was, and which of the answers were right."""
    case = review.case
    say("")
    say(bold(HEADINGS[case.kind]))
    if case.faulty:
        where = " or ".join(f"{file}, line {line}" for file, line in case.places)
        verdict(reading.is_place(review.mark, case), f"Place: {where}.",
                f"You marked {review.mark or 'none'}.")
        verdict(review.consequence == 0, f"What somebody notices: {case.consequences[0]}",
                f"You chose: {chosen_consequence(review)}")
        verdict(reading.is_repair(review.repair, case), f"Repair: {repair_shown(case, 0)}",
                f"You chose: {chosen_repair(review)}")
        if review.repair == BACK and case.kind == CHANGED:
            say("  You typed the old lines back, which also removes the fault.")
        paragraph(measured(case))
    else:
        verdict(review.confidence <= scoring.ACCUSED, f"You were {review.confidence} % sure that "
                                                      "it is faulty.")
        verdict(review.consequence == NOTHING, "There is nothing bad to notice.",
                f"You chose: {chosen_consequence(review)}")
        verdict(review.repair == NOTHING, "It needs no repair.",
                f"You chose: {chosen_repair(review)}")
    paragraph(f"Why: {case.why}")
    owner, _, item = case.source.partition("#")
    paragraph(f"Modelled on {owner}, number {item} of its issues and pull requests on GitHub.")


def measured(case: Case) -> str:
    """The number in its run that shows what the change does."""
    return recorded.measured(case.id, case.run, case.number)


def chosen_consequence(review: Review) -> str:
    return ("nothing bad." if review.consequence == NOTHING else
            review.case.consequences[review.consequence])


def chosen_repair(review: Review) -> str:
    if review.repair == BACK:
        return "the old lines, which undo what the change is for."
    return "leave it as it is." if review.repair == NOTHING else repair_shown(
        review.case, review.repair)


def verdict(right: bool, text: str, chosen: str = "") -> None:
    """Print what is right; after a cross, also what was said instead."""
    say(styled("✓" if right else "✗", "green" if right else "red"), within(text))
    if chosen and not right:
        say(f"  {within(chosen)}")


def within(text: str) -> str:
    """A sentence, wrapped and indented by two; code keeps its lines."""
    return text if "\n" in text else filled(text, "  ", "  ").strip()


# ---- lists and scores

def show_list(asked: list[Case]) -> int:
    done = reviews()
    table = new_table("change", "name, and what it says of itself", "form", "reviewed")
    for case in asked:
        table.add_row(str(number_of(case)), case.title, case.form, "yes" if case.id in done else "")
    say(table)
    print(f"You have reviewed {sum(case.id in done for case in asked)} of {len(asked)}.")
    return 0


def show_score() -> int:
    done = list(reviews().values())
    print(*scoring.shown(scoring.score(done)), sep="\n")
    parts = {form: [one for one in done if one.case.form == form] for form in FORMS}
    if all(parts.values()):
        for form, part in parts.items():
            print(f"\nForm {form}:", *scoring.shown(scoring.score(part)), sep="\n")
    old = len({entry["id"] for entry in STORE.entries() if _is_review(entry)}) - len(done)
    if old:
        print(f"{old} {'answer does' if old == 1 else 'answers do'} not count: what was "
              "reviewed has been edited since.")
    if not STORE.path():
        print("Answers are not kept: DLSYS_PROGRESS is off.")
    return 0
