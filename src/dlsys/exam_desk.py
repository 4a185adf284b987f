"""The desk of an exam: it keeps the key, answers questions about sheets, and records the price.

A learner's own desk keeps its key in my-work/. A class's desk is the instructor's, behind a server:
then a learner's machine has neither the key nor any part of a case.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dlsys import exam_names
from dlsys.grading.text import clean
from dlsys_checks.exam import debrief, draws, faults, laws, ledger, numbers, sheet
from dlsys_checks.exam.draws import Drawn
from dlsys_checks.exam.ledger import Happened
from dlsys_helpers.errors import UserError
from dlsys_helpers.json_lines import Store
from dlsys_helpers.verdicts import Verdict

KEY, RECORD = "exam.key", "record.jsonl"  # in the folder of a class's exam
OWN_KEY = ".exam-key"
FUNCTION = re.compile(r"^(?:def|class) (\w+)", re.M)


class ExamError(UserError):
    """An exam sheet cannot be made or used as asked; the message says what to do."""


@dataclass
class Desk:
    """Answers questions about sheets; every answer is text.

    entries, note: the record. over: whether the instructor has ended the exam. own: whether it is
    the desk of the learner, who may end a sheet.
    """

    key: bytes
    entries: Callable[[], list[dict]]
    note: Callable[[dict], None]
    own: bool = True
    over: bool = False

    def ask(self, number: int, ticket: str, place: int, what: str, text: str = "") -> str:
        """The answer to one question: a command of `COMMANDS`, and its text. Raises UserError."""
        if type(text) is not str or what not in COMMANDS:
            raise ExamError(f"exam: got {str(what)[:20]!r}, expected one of {', '.join(COMMANDS)}.")
        if type(number) is not int:  # a set takes 80.0 for 80, and the record does not
            raise ExamError(f"sheet: got {str(number)[:20]}, expected a whole number.")
        sheet.known(number)
        if not sheet.TICKET.fullmatch(ticket):
            raise ExamError(f"sheet: got the ticket {ticket[:20]!r}, expected eight letters, as "
                            "in the first code cell of the sheet.")
        if self.over and what not in ("debrief", "receipt", "complaint"):
            raise ExamError("The exam is over. exam.debrief() shows what was planted.")
        if what == "debrief":
            return self._debrief(number, ticket)
        if place not in range(-1, sheet.CASES + 1):
            raise ExamError(f"case: got {place}, expected 1 to {sheet.CASES}.")
        drawn = draws.case(self.key, number, ticket, place)
        return getattr(self, f"_{what}")(Place(number, ticket, place, drawn), text)

    def happened(self, number: int, ticket: str, place: int) -> Happened:
        """What happened to a case so far."""
        return ledger.happened(self.entries(), number, ticket, place)

    def knows(self, number: int, ticket: str) -> bool:
        """Whether this desk gave out the sheet."""
        return any(entry["sheet"] == number and entry.get("ticket") == ticket
                   for entry in self.entries() if "begun" in entry)

    def begun_by(self, number: int, ticket: str) -> str:
        """The name under which a sheet was first begun, "" if it has none."""
        return next((entry["begun"] for entry in self.entries() if entry.get("begun")
                     and (entry["sheet"], entry.get("ticket")) == (number, ticket)), "")

    def cases(self, number: int, ticket: str) -> list[dict]:
        """For the instructor: each case's price, the names given, and which of them was right."""
        told = []
        for place, drawn in enumerate(draws.cases(self.key, number, ticket), 1):
            now = self.happened(number, ticket, place)
            told.append({
                "paid": numbers.price(now.charged), "budget": numbers.BUDGET,
                "bought": [*now.charged],
                "names": [{"said": clean(said), "understood": named(heard)}
                          for said, heard in zip(now.said, now.names, strict=True)],
                "right": now.names.index(drawn.name) + 1 if drawn.name in now.names else 0})
        return told

    def row(self, id: str, ticket: str) -> laws.Row:
        """The exercise of a row, for this ticket."""
        place, _ = sheet.place(id)
        number = int(id[:2])
        return laws.row(id, draws.case(self.key, number, ticket, place),
                        self.happened(number, ticket, place))

    def check(self, id: str, ticket: str, fn: object, seeds: tuple, seconds: float) -> Verdict:
        """The verdict on an answer to a row, on the learner's machine."""
        row = self.row(id, ticket)
        if row.happened.over:
            return Verdict("wrong", id, laws.OVER)
        return row.verdict(fn, seeds, seconds)

    # ---- what can be asked

    def _complaint(self, at: Place, _: str) -> str:
        return f"Case {at.place}. {debrief.complaints_line(at.drawn)}"

    def _look(self, at: Place, look: str) -> str:
        if look not in numbers.LOOKS:
            raise ExamError(f"look: got {look[:40]!r}, expected one of: "
                            f"{', '.join(numbers.LOOKS)}.")
        found = laws.measured(at.drawn.source, at.drawn.seed, numbers.LOOKS[look].probe)
        return self._paid(at, look, probe_table(look, found))

    def _read(self, at: Place, part: str) -> str:
        if part not in faults.PARTS:
            raise ExamError(f"read: got {part[:40]!r}, expected one of {', '.join(faults.PARTS)}.")
        if at.place < 1 and part != at.drawn.fault.part:
            raise ExamError(f"read: got {part!r}, expected {at.drawn.fault.part!r}: in a free "
                            "case, the other parts are the same as in the plain script.")
        return self._paid(at, f"read {part}", faults.part_of(at.drawn.source, part))

    def _swap(self, at: Place, names: str) -> str:
        asked = [*dict.fromkeys(names.replace(",", " ").split())]
        known = functions()
        if not asked or not set(asked) <= known.keys() or len(asked) > numbers.MOST_SWAPPED:
            raise ExamError(f"swap: got {names[:60]!r}, expected 1 to {numbers.MOST_SWAPPED} of: "
                            f"{', '.join(known)}.")
        gone = at.drawn.fault is not None and place_of(at.drawn.fault) in asked
        said = "gone" if gone else "still there"
        return self._paid(at, f"swap {' '.join(sorted(asked, key=list(known).index))}",
                          f"With these parts of the plain script, the complaint is {said}.\n")

    def _name(self, at: Place, text: str) -> str:
        now, right = self.happened(at.number, at.ticket, at.place), at.drawn.name
        if now.over:
            return laws.OVER
        if now.tried_out(right):
            done = ("is already named" if right in now.names
                    else f"has used up its {ledger.TRIES} tries")
            return f"Case {at.place} {done}: nothing was recorded."
        heard = exam_names.heard(text)
        if not heard.name:
            return f"{heard.why} No try was used."
        if heard.name in now.names:
            return (f"Understood as: {named(heard.name)}. You have tried that one. No try was "
                    "used.")
        if at.place > 0:
            self.note({"sheet": at.number, "ticket": at.ticket, "case": at.place, "said": text,
                       "heard": heard.name, "time": ledger.now()})
        if heard.name == right:
            return f"Understood as: {named(heard.name)}. That is it."
        left = ledger.TRIES - 1 - len(now.names)
        return (f"Understood as: {named(heard.name)}. That is not it. "
                + ("You have a second try." if left else "That was the second try."))

    def _receipt(self, at: Place, _: str) -> str:
        now = self.happened(at.number, at.ticket, at.place)
        bought = f": {', '.join(now.paid)}" if now.paid else ""
        free = " This case is free." if at.place < 1 else ""
        return f"Paid {numbers.price(now.charged)}, budget {numbers.BUDGET}{bought}.{free}"

    def _paid(self, at: Place, word: str, shown: str) -> str:
        """Record what is bought before it is shown."""
        now = self.happened(at.number, at.ticket, at.place)
        if now.over:
            return f"{shown}This sheet is over: nothing was recorded."
        if word not in now.paid:
            free = word.startswith("read ") and at.drawn.name in now.names
            self.note({"sheet": at.number, "ticket": at.ticket, "case": at.place, "paid": word,
                       **({"free": True} if free else {})})
        return f"{shown}{self._receipt(at, '')}"

    def missed(self, number: int, ticket: str) -> list[str]:
        """The faults of a sheet that were not named, once its exam is over."""
        if not (self.own or self.over):
            return []
        return debrief.missed(list(draws.cases(self.key, number, ticket)), [
            self.happened(number, ticket, place) for place in range(1, sheet.CASES + 1)])

    def _debrief(self, number: int, ticket: str) -> str:
        if not (self.own or self.over):
            raise ExamError("debrief: the exam is not over. Your instructor ends it.")
        cases = list(draws.cases(self.key, number, ticket))
        told = [self.happened(number, ticket, place) for place in range(1, sheet.CASES + 1)]
        text = debrief.text(number, cases, told)
        if self.own and not told[0].over:
            self.note({"sheet": number, "ticket": ticket, "case": 0,
                       "missed": debrief.missed(cases, told), "time": ledger.now()})
        return text


COMMANDS = ("complaint", "look", "read", "swap", "name", "receipt", "debrief")


@dataclass(frozen=True)
class Place:
    """The case of a sheet that a question is about."""

    number: int
    ticket: str
    place: int
    drawn: Drawn


def probe_table(look: str, found: dict) -> str:
    """The numbers of a look, a mark at those outside the healthy range, and the loss curve."""
    lines, asked = [], numbers.LOOKS[look]
    if curve := found.get("curve"):
        lines += [f"loss of step 1 to {len(curve)}, in groups of ten:",
                  "  " + "  ".join(f"{sum(curve[k:k + 10]) / len(curve[k:k + 10]):.3g}"
                                   for k in range(0, len(curve), 10)), ""]
    width = max(len(numbers.printed(name)) for name in asked.names)
    for name in asked.names:
        value, (low, high) = found[name], numbers.HEALTHY[asked.probe][name]
        mark = " " if low <= value <= high else "!"
        span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        lines.append(f"{mark} {numbers.printed(name):<{width}}  {value:>9.4g}   healthy: {span}")
    return "\n".join(lines) + "\n"


def functions() -> dict[str, str]:
    """The functions and classes of the plain script in order, each with its part."""
    return {name: part for part, text in faults.parts(faults.healthy()).items()
            for name in FUNCTION.findall(text)}


def place_of(fault: faults.Fault) -> str:
    """The function or class that a fault changes."""
    plain = faults.part_of(faults.healthy(), fault.part)
    faulty = faults.part_of(fault.planted(faults.healthy()), fault.part)
    pieces = [{FUNCTION.search(piece)[1]: piece for piece in re.split(
        r"\n\n\n", text) if FUNCTION.search(piece)} for text in (plain, faulty)]
    return next(name for name in pieces[0] if pieces[0][name] != pieces[1].get(name))


def named(name: str) -> str:
    """What to call a fault when answering the learner."""
    return faults.FAULTS[name].name if name in faults.FAULTS else name


# ---- the two kinds of desk

def own() -> Desk:
    """The learner's desk, whose key is made when it is first used. Raises ExamError."""
    store = ledger.STORE
    if store.path() is None:
        raise ExamError("exam: DLSYS_PROGRESS is off, but a sheet has to keep its key and what "
                        "you pay. Unset it.")
    return Desk(_key(store.path().with_name(OWN_KEY)), store.entries, store.append)


def of_class(folder: Path, over: bool = False, make: bool = False) -> Desk:
    """The desk in a class's folder; `make` creates a missing one. Raises ExamError."""
    if not make and not (folder / KEY).is_file():
        raise ExamError(f"{folder}: no exam here ({KEY} is missing). Expected the folder that "
                        "dlsys exam serve made.")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ExamError(f"{folder}: cannot be created ({error.strerror}).") from None
    store = Record(folder / RECORD)
    return Desk(_key(folder / KEY), store.entries, store.append, own=False, over=over)


class Record(Store):
    """The record in a class's folder, which one desk writes; it is read again after a change."""

    def __init__(self, file: Path) -> None:
        super().__init__(file.name, "The exam's record", ledger.STORE.valid)
        self.file, self._known, self._size = file, [], 0

    def path(self) -> Path:
        return self.file

    def size(self) -> int:
        """Bytes of the file."""
        return self.file.stat().st_size if self.file.exists() else 0

    def entries(self) -> list[dict]:
        """All readable entries, oldest first."""
        if self.size() != self._size:
            self._known, self._size = super().entries(), self.size()
        return self._known

    def append(self, *entries: dict) -> None:
        """Append entries. Raises ExamError if the disk refuses them; then nothing is shown.

        An entry that could not be read back is refused as well, because its price would be lost.
        """
        if not all(map(self.valid, entries)):
            raise ExamError("exam: this cannot be recorded. Nothing was recorded.")
        known, before = [*self.entries(), *entries], self.size()
        super().append(*entries)
        if self.size() <= before:
            raise ExamError("exam: the desk cannot write to its disk. Nothing was recorded. "
                            "Tell your instructor.")
        self._known, self._size = known, self.size()


def _key(path: Path) -> bytes:
    """The key in this file, which only its owner can read; a new one if there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="ascii",
                  opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
            out.write(secrets.token_hex(32))
    except FileExistsError:
        pass
    except OSError as error:
        raise ExamError(f"{path}: cannot be written ({error.strerror}).") from None
    try:
        key = bytes.fromhex(path.read_text("ascii"))
    except (OSError, ValueError):
        key = b""
    if len(key) != 32:
        raise ExamError(f"{path}: is not the key of an exam, expected 64 hexadecimal digits. Its "
                        "sheets cannot be opened without it: restore it from a backup, or delete "
                        "it and begin new sheets.")
    return key


def new_ticket() -> str:
    """Eight letters: whose sheet it is."""
    return "".join(secrets.choice("BCDFGHJKLMNPQRSTVWXZ") for _ in range(8))
