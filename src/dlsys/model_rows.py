"""*Your model* as an assignment: its number, and a row for each part."""

from functools import cache

from dlsys_helpers.catalog import CatalogError, Trap
from dlsys_helpers.lesson_names import YOUR_MODEL
from dlsys_helpers.stages import Stage
from dlsys_model.part_table import CATALOGUE, Part

NUMBER = 90  # beyond the stages and the sheets of the exam
STAGE = Stage(NUMBER, YOUR_MODEL, "Your model", "A language model of your own parts.")


def is_model(number: int) -> bool:
    """Whether this is the number of *Your model*."""
    return number == NUMBER


@cache
def traps() -> list[Trap]:
    """A row for each part, of one point, in the form that exercises have."""
    return [Trap(id=f"{NUMBER}.{place}", title=f"{part.function} of {part.id}",
                 fault=f"{part.function}() of {part.id}", symptom="", function=part.function,
                 points=1, difficulty=1, minutes=1, core=False, hints=())
            for place, part in enumerate(CATALOGUE, 1)]


def trap(id: str) -> Trap:
    """A row. Raises CatalogError for an unknown id."""
    found = {one.id: one for one in traps()}
    if id not in found:
        raise CatalogError(f"your model: got {id[:40]!r}, expected {NUMBER}.1 to "
                           f"{NUMBER}.{len(found)}.")
    return found[id]


def part(id: str) -> Part:
    """The part of a row. Raises CatalogError for an unknown id."""
    return CATALOGUE[traps().index(trap(id))]
