"""An exam sheet: its number, the cases that it draws, and the rows that are graded.

A sheet has a number beyond the stages, so that notebook, check and grader treat it as they treat a
stage: 20 to 49 are form A, 50 to 79 form B, each with draw 0 to 29. A draw couples faults whose
probes cost nearly the same; a coin says which of the two stands in which form, and the cases of
form B stand in another order.
"""

from __future__ import annotations

import random
from difflib import unified_diff
from functools import cache
from itertools import permutations

from dlsys_checks.exam import faults, numbers
from dlsys_checks.exam.faults import DRAWN, WORKED, Fault
from dlsys_helpers.catalog import CatalogError, Trap
from dlsys_helpers.stages import Stage

FORMS, DRAWS, FIRST = "AB", 30, 20
NUMBERS = range(FIRST, FIRST + len(FORMS) * DRAWS)
SINGLES = 4  # cases with one fault; one more case has two
CASES = SINGLES + 1
ROWS = (("the faults", 2), ("the evidence", 2), ("the mend", 3), ("the price", 1))


def is_exam(number: int) -> bool:
    """Whether this is the number of an exam sheet."""
    return number in NUMBERS


def known(number: int) -> None:
    """Raise CatalogError for a number that no sheet has."""
    if not is_exam(number):
        raise CatalogError(f"sheet: got {number}, expected {NUMBERS[0]} to "
                           f"{NUMBERS[-1]}. Make one with: dlsys exam a")


def number_of(form: str, draw: int) -> int:
    """The number of a sheet: form "A" or "B", draw 0 to 29."""
    return FIRST + FORMS.index(form) * DRAWS + draw


def stage(number: int) -> Stage:
    """The sheet's name and title, in the form that a stage has."""
    form, draw = divmod(number - FIRST, DRAWS)
    return Stage(number, f"exam_{FORMS[form].lower()}", f"Exam, form {FORMS[form]}, draw {draw}",
                 "Five training scripts with planted faults.")


def how_to_begin(number: int) -> str:
    """The command that makes this sheet, as `exam a --draw 3`."""
    form, draw = divmod(number - FIRST, DRAWS)
    return f"exam {FORMS[form].lower()} --draw {draw}"


def seed(number: int, case: int) -> int:
    """The seed of a case's run."""
    return 100 * ((number - FIRST) % DRAWS) + case % 10


@cache
def drawn(number: int) -> tuple[tuple[Fault, ...], ...]:
    """The faults of each case: four times one, then two."""
    form, draw = divmod(number - FIRST, DRAWS)
    rng = random.Random(draw)
    pairs = [tuple(rng.sample(pair, 2)) for pair in coupled(rng)]
    first, second = next((a, b) for a, b in permutations(pairs, 2)
                         if all(map(stand_together, a, b)))
    singles = [pair for pair in pairs if pair not in (first, second)][:SINGLES]
    turn = form * rng.randrange(1, SINGLES)  # where case k of form A stands in form B
    singles = singles[turn:] + singles[:turn]
    return (*((pair[form],) for pair in singles), (first[form], second[form]))


def coupled(rng: random.Random) -> list[tuple[Fault, Fault]]:
    """All faults in twos of nearly the same cost, anew in each draw, in no order."""
    ordered = sorted(rng.sample(DRAWN, len(DRAWN)), key=cost)
    pairs = list(zip(ordered[::2], ordered[1::2], strict=True))
    return rng.sample(pairs, len(pairs))


def cost(fault: Fault) -> int:
    """The price of the cheapest probe that shows it."""
    return min(numbers.PRICES[probe] for probe, *_ in fault.shows)


# Faults that leave so little of the training that another one can hardly be seen beside them.
ALONE = {"03.1", "12.7", "04.2", "04.5", "01.4", "03.4"}


def stand_together(a: Fault, b: Fault) -> bool:
    """Whether both faults can stand in one script and be told apart there."""
    if {a.id, b.id} & ALONE or a.part == b.part:
        return False
    try:
        return bool(source((a, b)))
    except ValueError:
        return False


def source(planted: tuple[Fault, ...]) -> str:
    """The script with these faults."""
    text = faults.healthy()
    for fault in planted:
        text = fault.planted(text)
    return text


def case(number: int, place: int) -> tuple[Fault, ...]:
    """The faults of case 1 to 5 of a sheet, or of a worked one: 0 is loud, -1 is silent."""
    return drawn(number)[place - 1] if place > 0 else (WORKED[-place],)


# ---- the rows that are graded

def traps(number: int) -> list[Trap]:
    """The rows of a sheet, in the form that exercises have."""
    return [_row(number, case, k) for case in range(CASES) for k in range(len(ROWS))]


def _row(number: int, case: int, k: int) -> Trap:
    """A row of a case; its name gives nothing away."""
    words, points = ROWS[k]
    title = f"Case {case + 1}: {words}"
    return Trap(id=f"{number}.{4 * case + k + 1}", title=title, fault=title, symptom="",
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
    """Case (1 to 5) and row (0 to 3) of an id."""
    case, row = divmod(int(id.partition(".")[2]) - 1, len(ROWS))
    return case + 1, row


def explained(id: str) -> str:
    """What was planted in the case of this row, what shows it, and the mended lines."""
    number, (k, _) = int(id[:2]), place(id)
    parts = [f"{stage(number).title}, case {k}:"]
    for fault in case(number, k):
        shown = ", or ".join(f"`{name}` of {probe}: {low:g} to {high:g}"
                             for probe, name, low, high in fault.shows)
        parts += [f"\n{fault.id} {fault.name}, in the part {fault.part}", f"Shown by {shown}"]
        parts += _difference(fault)
    return "\n".join(parts)


def _difference(fault: Fault) -> list[str]:
    """The lines that stand there (-) and should (+), with a line around them."""
    now, then = (faults.part_of(text, fault.part).splitlines()
                 for text in (fault.planted(faults.healthy()), faults.healthy()))
    return [line for line in unified_diff(now, then, n=1, lineterm="")
            if not line.startswith(("---", "+++", "@@"))]
