"""The exam: `dlsys exam a` makes a sheet, and its notebook asks about the cases with `sit`.

A desk answers: the learner's own, or the instructor's, on a server. This module contains no part of
a case. In the grader's sandbox there is no desk, and a question only says so.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib import error, request

import dlsys_helpers
from dlsys import exam_checks
from dlsys.check_stub import CheckStub
from dlsys.exam_checks import SheetError
from dlsys.grading.text import clean, visible
from dlsys_helpers import paths, progress
from dlsys_helpers.catalog import Trap
from dlsys_helpers.errors import UserError

PORT = 8229
PATIENCE = 60.0  # seconds to wait for a desk's answer

# ---- in the notebook

class Case:
    """One script with a complaint; each look prints numbers, and you pay its price once."""

    def __init__(self, exam: Exam, place: int) -> None:
        """Raises SheetError for a place beyond 0 to 5; -1 is the second worked case."""
        if type(place) is not int or place not in range(-1, 6):
            raise SheetError(f"case: got {place!r:.20}, expected a whole number, 1 to 5.")
        self.exam, self.place = exam, place

    def complaint(self) -> None:
        """How the case begins. It is free."""
        self._ask("complaint")

    def look(self, look: str) -> None:
        """The numbers of a look, such as "clip"; the table at the top lists them."""
        self._ask("look", look)

    def swap(self, *names: str) -> None:
        """Whether the complaint goes away with these functions of the plain script."""
        self._ask("swap", " ".join(map(str, names)))

    def read(self, part: str) -> None:
        """The source of a part, such as "data"."""
        self._ask("read", part)

    def name(self, text: str) -> None:
        """Say in a sentence what is wrong, or "healthy"; two names count for a case."""
        self._ask("name", text)

    def receipt(self) -> None:
        """What you paid, and for what."""
        self._ask("receipt")

    def _ask(self, what: str, text: object = "") -> None:
        self.exam.show(self.place, what, text if type(text) is str else repr(text)[:400])


class Exam:
    """A sheet: its number, its ticket, and the address of the desk; "" is the learner's own."""

    def __init__(self, number: int, ticket: str, address: str) -> None:
        self.number, self.ticket, self.address = number, ticket, address

    def case(self, place: int) -> Case:
        """Case 1 to 5, or a worked one, 0 or -1. Raises SheetError for any other."""
        return Case(self, place)

    def complaints(self) -> None:
        """How all five cases begin."""
        for place in range(1, 6):
            self.show(place, "complaint")

    def debrief(self) -> None:
        """End the exam; print each case's fault, the number that shows it, and the trap to read.

        Running a notebook only to collect its answers does not end it.
        """
        if not isinstance(dlsys_helpers.check, CheckStub):
            self.show(1, "debrief")
            if not exam_checks.in_sandbox():
                _come_back(self.number, self.ticket)

    def show(self, place: int, what: str, text: str = "") -> None:
        """Print what the desk answers, or in one line why it does not."""
        try:
            print(self._answer(place, what, text))
        except UserError as why:
            print(why)

    def _answer(self, place: int, what: str, text: str) -> str:
        if exam_checks.in_sandbox():
            return f"{what}: no desk here."
        if self.address:
            told = sent(self.address, "ask", number=self.number, ticket=self.ticket, place=place,
                        what=what, text=text)
            _keep_missed(self.number, self.ticket, told.get("missed"))
            return visible(told.get("text", ""))
        return exam_checks.desk().ask(self.number, self.ticket, place, what, text)


def sit(number: int, ticket: str = "", address: str = "") -> Exam:
    """The exam sheet with this number, as the notebook's first cell opens it.

    Raises SheetError for a number that is no sheet's, and for a sheet of an earlier exam.
    """
    if not exam_checks.in_sandbox():
        from dlsys_checks.exam import sheet
        if type(number) is not int:
            raise SheetError(f"sit: got {number!r:.20}, expected the whole number of a sheet, as "
                             "in its first code cell.")
        sheet.known(number)
        ticket = ticket or sheet.OWN
    return Exam(number, ticket, address)


def _keep_missed(number: int, ticket: str, missed: object) -> None:
    """Note once in the learner's own record which faults a class's desk lists as missed."""
    from dlsys_checks.exam import ledger
    if type(missed) is not list or not all(type(id) is str for id in missed):
        return
    if not ledger.happened(ledger.STORE.entries(), number, ticket, 1).over:
        ledger.STORE.append({"sheet": number, "ticket": ticket, "case": 0, "missed": missed[:5],
                             "time": ledger.now()})


def _come_back(number: int, ticket: str) -> None:
    """Schedule the missed faults of a finished sheet for review, and print by when they come."""
    from dlsys import review
    from dlsys_checks.exam import ledger
    missed = [id for entry in ledger.STORE.entries()
              if (entry["sheet"], entry.get("ticket")) == (number, ticket)
              for id in entry.get("missed", ())]
    if day := review.come_back(missed, review.now()):
        print(f"The faults that you did not name come back until {day}: dlsys review")


def sent(address: str, path: str, **parts: object) -> dict[str, Any]:
    """What a class's desk answers. Raises SheetError, which says why it does not."""
    asked = request.Request(f"{address}{path}", json.dumps(parts).encode(),
                            {"Content-Type": "application/json"})
    try:
        with request.urlopen(asked, timeout=PATIENCE) as answer:
            told = json.loads(answer.read(200_000))
    except error.HTTPError as refused:
        with refused:
            raise SheetError(_why(refused)) from None
    except (OSError, HTTPException, ValueError) as fault:
        raise SheetError(f"exam: {address} does not answer ({getattr(fault, 'reason', fault)}). "
                         "Nothing was recorded. Is your instructor's exam running, and are you on "
                         "the same network?") from None
    return told if type(told) is dict else {}


def _why(refused: error.HTTPError) -> str:
    try:
        return visible(json.loads(refused.read(4000))["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"exam: the address answers {refused.code}, so it is not an exam. Check the address."


# ---- checks of the learner's own sheet

def check(id: str, fn: Callable[[], dict]) -> None:
    """Check a row of a sheet, as `dlsys_helpers.check` does an exercise.

    Raises CheckFailed unless the answer passes or somebody sees the card, BadCall for an unknown
    id and for the function of another case.
    """
    if isinstance(dlsys_helpers.check, CheckStub):  # this notebook is run for its answers
        dlsys_helpers.check(id, fn)
        return
    from dlsys_checks import checking
    from dlsys_checks.exam import sheet
    _refuse_bad_call(id, fn)
    verdict = exam_checks.run_check(id, fn, checking.drawn_seeds())
    progress.record(id, verdict.status)
    checking.tell(verdict, sheet.trap(id))


def _refuse_bad_call(id: Any, fn: Any) -> None:
    """Raise BadCall for an unknown id, and for the function of another case."""
    from dlsys_checks.checking import BadCall
    from dlsys_checks.exam import sheet
    if type(id) is not str or not sheet.is_row(id):
        raise BadCall(f"check: got {id!r:.40}, expected the id of a row in quotes, then your "
                      'function, such as check("80.3", case_1).')
    asked, given = sheet.trap(id).function, str(getattr(fn, "__name__", ""))
    if given != asked and re.fullmatch(r"case_\d", given):
        raise BadCall(f"check: got {given} for row {id}, expected {asked}. "
                      f'Write: check("{id}", {asked})')


# ---- dlsys exam

def add_parser(commands) -> None:
    """Add `exam` to the commands of `dlsys`."""
    parser = commands.add_parser(
        "exam", help="find planted faults; forms a and b are matched",
        epilog="A class takes it at its instructor's desk: dlsys exam serve keeps the key, and "
               "dlsys grade --exam FOLDER grades the sheets.")
    parser.add_argument("form", choices=("a", "b", "serve"),
                        help="a before the course, b after it, or the reverse; serve: run the "
                             "desk for a class")
    parser.add_argument("--new", action="store_true",
                        help="begin another pair of sheets, with different cases")
    parser.add_argument("--at", metavar="ADDRESS", help="the desk of your class")
    parser.add_argument("--name", default="", help="your name, for the desk of your class")
    parser.add_argument("--debrief", action="store_true",
                        help="end the exam and show the faults, the numbers that reveal them, and "
                             "what to read")
    parser.add_argument("--yes", action="store_true",
                        help="with --debrief: end the exam without asking")
    desk = parser.add_argument_group("dlsys exam serve")
    desk.add_argument("--out", type=Path, default=Path("exam"), metavar="FOLDER",
                      help="where the key and the record are; continues an exam that is there "
                           "(default: exam)")
    desk.add_argument("--host", default="", help="the address to listen on (default: all)")
    desk.add_argument("--port", type=int, default=PORT, help=f"default {PORT}")
    desk.add_argument("--over", action="store_true",
                      help="the exam is over: show only the debrief")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the sheet to my-work/ unless it is there, end one, or be a class's desk."""
    if args.form == "serve":
        if not exam_checks.has_desk():
            raise SheetError("exam serve: this copy of the course was handed out to a class. Serve "
                             "from the whole course.")
        print("Starting the desk, which can take a minute ...", flush=True)
        from dlsys import exam_served
        return exam_served.run(args)
    from dlsys_checks.exam import sheet
    form = args.form.upper()
    if args.debrief:
        return _debrief(form, args.yes)
    last, newest = _last_round(form), max(_last_round("A"), _last_round("B"))
    turn = max(newest, 0) if last < 0 else last
    if args.new:
        turn = newest if last < newest else newest + 1
    if turn >= sheet.ROUNDS:
        raise SheetError(f"exam: you have all {sheet.ROUNDS} pairs of sheets. To sit one again, "
                         "move your sheets and .exam-key away from my-work.")
    return _write(sheet.number_of(form, turn), args)


def _write(number: int, args: argparse.Namespace) -> int:
    """Make the sheet, unless it is there."""
    from dlsys import exam_sheet, work_folder
    from dlsys_checks.exam import sheet
    path, (form, turn) = _file(number), sheet.form_and_round(number)
    matched = _source(_file(sheet.number_of(sheet.FORMS.replace(form, ""), turn)))
    asked, ticket, address = args.at or sheet.desk_of(matched), sheet.OWN, ""
    if path.exists() and asked and not sheet.desk_of(_source(path)):
        _remove_unused(number)
    if path.exists():
        _tell_name(_source(path), args.name)
    else:
        ticket, address = _place(number, asked, sheet.opened(matched), args.name)
    text = json.dumps(exam_sheet.notebook(number, ticket, address), indent=1) + "\n"
    made = work_folder.keep(path, text.encode(), "the exam")
    print(f"{'Your exam is' if made else 'It already exists and is unchanged:'} "
          f"{paths.MY_WORK.name}/{path.name}. Open it in JupyterLab ({work_folder.open_lab()}).")
    if made and not address:
        print(f"Check all of it with: dlsys check exam-{form.lower()}")
    if made and not matched:
        other = sheet.FORMS.replace(form, "")
        new = " --new" if _last_round(other) >= 0 else ""
        print(f"The matched form: dlsys exam {other.lower()}{new}")
    if earlier := _earlier():
        print(f"{paths.MY_WORK.name}/{earlier[-1].name} {sheet.OLD}")
    return 0


def _remove_unused(number: int) -> None:
    """Remove the learner's own sheet if it is untouched; else raise SheetError.

    A sheet at a class's desk can then take its place.
    """
    from dlsys import exam_sheet
    from dlsys_checks.exam import ledger, sheet
    path = _file(number)
    plain = [cell["source"] for cell in exam_sheet.notebook(number)["cells"]]
    begun = any((entry["sheet"], entry.get("ticket")) == (number, sheet.OWN)
                for entry in ledger.STORE.entries())
    if begun or _sources(path) != plain:
        raise SheetError(f"exam: {paths.MY_WORK.name}/{path.name} is a sheet of your own that you "
                         "have begun. To sit this form at your class's desk, move that file away "
                         "and run this command again.")
    path.unlink()


def _sources(path: Path) -> list[str]:
    """The cells of a notebook; [] if it is not a notebook."""
    try:
        return ["".join(cell["source"]) for cell in json.loads(path.read_bytes())["cells"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _source(path: Path) -> str:
    """A sheet's code as text; "" if it is not there."""
    return "\n".join(_sources(path)) if path.exists() else ""


def is_at_desk(number: int) -> bool:
    """Whether the learner's sheet with this number is at a class's desk."""
    from dlsys_checks.exam import sheet
    return bool(sheet.desk_of(_source(_file(number))))


def _tell_name(source: str, name: str) -> None:
    """Give a class's desk a name for a sheet begun without one, and print the name it keeps."""
    from dlsys_checks.exam import sheet
    address, opened = sheet.desk_of(source), sheet.opened(source)
    if name and address:
        told = sent(address, "begin", number=opened[0], ticket=opened[1], name=name[:80])
        kept = clean(told.get("name", ""), 80)
        print(f"The desk has this sheet under the name {kept}." if kept == clean(name, 80) else
              f"The desk keeps the name with which this sheet was begun, {kept}. If it is wrong, "
              "tell your instructor.")


def _place(number: int, at: str, matched: tuple[int, str] | None, name: str) -> tuple[str, str]:
    """Ticket and address of a new sheet: those of the matched form, or new ones at a desk.

    at: the address of the desk, "" for the learner's own.
    """
    from dlsys.room.command import whole_address
    from dlsys_checks.exam import sheet
    if not at:
        if not exam_checks.has_desk():
            raise SheetError(exam_checks.NO_DESK)
        return sheet.OWN, ""
    try:
        address = whole_address(at)
    except UserError:
        raise SheetError(f"--at: got {at[:80]!r}, expected the address that your instructor "
                         "gave you, such as http://192.168.1.20:8229/") from None
    mine = matched[1] if matched and matched[1] != sheet.OWN else ""
    told = sent(address, "begin", number=number, ticket=mine, name=name[:80])
    if not sheet.TICKET.fullmatch(str(told.get("ticket"))):
        raise SheetError(f"exam: {address} answers, but is not an exam. Check the address.")
    return told["ticket"], address


def _debrief(form: str, sure: bool) -> int:
    """End the exam on the learner's last sheet of a form, after asking. Raises SheetError."""
    from dlsys_checks.exam import sheet
    turn = _last_round(form)
    if turn < 0:
        raise SheetError(f"exam: no sheet of form {form} in {paths.MY_WORK.name}. Make one with: "
                         f"dlsys exam {form.lower()}")
    number = sheet.number_of(form, turn)
    found = sheet.opened(_file(number).read_text("utf-8", "replace"))
    if found:
        raise SheetError("exam: this sheet belongs to your class's exam. When that is over, run "
                         "exam.debrief() in the sheet.")
    desk, open_ = exam_checks.desk(), _open(number)
    if open_ and not desk.happened(number, sheet.OWN, 1).over and not (sure or _ends(open_)):
        print("The exam goes on.")
        return 0
    print("The cases are measured again, which can take a minute.", flush=True)
    print(desk.ask(number, sheet.OWN, 1, "debrief"))
    _come_back(number, sheet.OWN)
    print(_points(number))
    return 0


def _open(number: int) -> list[Trap]:
    """The rows of a sheet that have earned no points so far."""
    from dlsys_checks.exam import sheet
    solved = progress.solved()
    return [row for row in sheet.traps(number) if row.id not in solved]


def _ends(open_: list[Trap]) -> bool:
    """Whether the learner wants to end an exam with these open rows. Raises SheetError."""
    points = sum(row.points for row in open_)
    print(f"The debrief ends the exam for good, and {points} points are still open.")
    try:
        return input("End it? y or n > ").strip().lower() in ("y", "yes")
    except EOFError:
        raise SheetError("debrief: got no answer, so the exam goes on. To end it without being "
                         "asked, add --yes.") from None


def _points(number: int) -> str:
    """The points of each case, and which rows are missing."""
    from dlsys_checks.exam import sheet
    missing = _open(number)
    lines = ["\nPoints"]
    for case in range(1, sheet.CASES + 1):
        rows = [row for row in sheet.traps(number) if sheet.place(row.id)[0] == case]
        lost = [row for row in rows if row in missing]
        points = sum(row.points for row in rows)
        lines.append(f"  case {case}: {points - sum(row.points for row in lost)} of {points}"
                     + "".join(f"{', ' if k else '. Not: '}{row.title.partition(': ')[2]}"
                               for k, row in enumerate(lost)))
    whole = sum(row.points for row in sheet.traps(number))
    return "\n".join([*lines, f"  {whole - sum(row.points for row in missing)} of {whole} in all, "
                      "as dlsys check counted them"])


def _file(number: int) -> Path:
    from dlsys_checks.exam import sheet
    return paths.MY_WORK / f"{sheet.stage(number).stem}.ipynb"


def _last_round(form: str) -> int:
    """The last round for which the learner has a sheet of this form; -1 for none."""
    from dlsys_checks.exam import sheet
    return max((turn for turn in range(sheet.ROUNDS)
                if _file(sheet.number_of(form, turn)).exists()), default=-1)


def _earlier() -> list[Path]:
    """The learner's sheets of the exam before this one."""
    from dlsys_checks.exam import sheet
    return [path for path in sorted(paths.MY_WORK.glob("[0-9][0-9]_exam_[ab].ipynb"))
            if sheet.is_earlier(int(path.name[:2]))]
