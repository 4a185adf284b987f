"""An exam sheet: its number and the rows that are graded. Nothing here depends on a fault.

A sheet has a number beyond the stages, so that notebook, check and grader treat it as they treat a
stage: 80 to 84 are form A, 85 to 89 form B, of round 0 to 4. The numbers 20 to 79 are sheets of an
exam that showed a list of faults; they are only recognized, and left as they are.
"""

from __future__ import annotations

import re

from dlsys_helpers.catalog import CatalogError, Trap
from dlsys_helpers.stages import Stage

FORMS, ROUNDS, FIRST = "AB", 5, 80
NUMBERS = range(FIRST, FIRST + len(FORMS) * ROUNDS)
EARLIER = range(20, FIRST)
CASES = 5
ROWS = (("the name", 1), ("the first try", 1), ("the evidence", 1), ("the fix", 2),
        ("within twice the budget", 2), ("within the budget", 3))
NAME, FIRST_TRY, EVIDENCE, FIX, TWICE, ONCE = range(len(ROWS))
TICKET = re.compile(r"[BCDFGHJKLMNPQRSTVWXZ]{8}")  # whose sheet it is: letters that spell no word
OWN = "LLLLLLLL"  # the ticket of a sheet of one's own
SIT = re.compile(r"""\bsit\(\s*(\d\d)\s*,\s*\\?["']([A-Z]{8})\\?["']"""
                 r"""(?:\s*,\s*\\?["']([^\s"'\\]+))?""", re.A)
OLD = ("is a sheet of version 1.1 or earlier, whose cases came with the course. It stays as it is, "
       "and this version neither checks nor grades it. Hand it in where version 1.1 grades, or "
       "begin a new one: dlsys exam a")


def is_exam(number: int) -> bool:
    """Whether this is the number of an exam sheet."""
    return number in NUMBERS


def is_earlier(number: int | None) -> bool:
    """Whether this is the number of a sheet of the exam with a list of faults."""
    return number in EARLIER


def known(number: int) -> None:
    """Raise CatalogError for a number that no sheet has."""
    if is_earlier(number):
        raise CatalogError(f"sheet {number}: {OLD}")
    if not is_exam(number):
        raise CatalogError(f"sheet: got {number}, expected {NUMBERS[0]} to "
                           f"{NUMBERS[-1]}. Make one with: dlsys exam a")


def opened(source: str) -> tuple[int, str] | None:
    """Number and ticket of the sheet that some code opens at a class's desk; None for none."""
    found = SIT.search(source)
    return (int(found[1]), found[2]) if found else None


def desk_of(source: str) -> str:
    """The address of the desk at which some code opens a sheet; "" for none."""
    found = SIT.search(source)
    return (found[3] or "") if found else ""


def number_of(form: str, turn: int) -> int:
    """The number of a sheet: form "A" or "B", round 0 to 4."""
    return FIRST + FORMS.index(form) * ROUNDS + turn


def form_and_round(number: int) -> tuple[str, int]:
    """Form "A" or "B" and round of a sheet."""
    form, turn = divmod(number - FIRST, ROUNDS)
    return FORMS[form], turn


def stage(number: int) -> Stage:
    """The sheet's name and title, in the form that a stage has."""
    form, turn = form_and_round(number)
    return Stage(number, f"exam_{form.lower()}", f"Exam, form {form}, round {turn + 1}",
                 "Five complaints about a training script.")


def how_to_begin(number: int) -> str:
    """The command that makes such a sheet."""
    return f"exam {form_and_round(number)[0].lower()}"


# ---- the rows that are graded

def traps(number: int) -> list[Trap]:
    """The rows of a sheet, in the form that exercises have."""
    return [_row(number, case, k) for case in range(CASES) for k in range(len(ROWS))]


def _row(number: int, case: int, k: int) -> Trap:
    """A row of a case; its name gives nothing away."""
    words, points = ROWS[k]
    title = f"Case {case + 1}: {words}"
    return Trap(id=f"{number}.{len(ROWS) * case + k + 1}", title=title, fault=title, symptom="",
                function=f"case_{case + 1}", points=points, difficulty=3, minutes=10, core=False,
                hints=())


def trap(id: str) -> Trap:
    """A row. Raises CatalogError for an id that is none."""
    found = {one.id: one for one in traps(int(id[:2]))}
    if id not in found:
        raise CatalogError(f"exam: got {id[:40]!r}, expected {id[:2]}.1 to {id[:2]}.{len(found)}.")
    return found[id]


def is_row(id: str) -> bool:
    """Whether a row of some sheet has this id."""
    number = id.partition(".")[0]
    return (number.isascii() and number.isdecimal() and is_exam(int(number))
            and any(one.id == id for one in traps(int(number))))


def place(id: str) -> tuple[int, int]:
    """Case (1 to 5) and row of an id."""
    case, row = divmod(int(id.partition(".")[2]) - 1, len(ROWS))
    return case + 1, row
