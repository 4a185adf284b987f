"""What can be handed in, by number: worksheets of the stages, sheets of the exam, *Your model*."""

import importlib
from types import ModuleType

from dlsys import model_rows
from dlsys_checks.exam import sheet
from dlsys_files.notebook_reader import NO_WORKSHEET, NotebookFile, Unreadable
from dlsys_helpers import catalog, stages
from dlsys_helpers.catalog import Trap
from dlsys_helpers.stages import Stage

is_exam, EXAMS = sheet.is_exam, sheet.NUMBERS
is_model = model_rows.is_model


def is_known(number: int | None) -> bool:
    """Whether a notebook can have this number: a stage or an exam sheet."""
    return number is not None and (number in stages.NUMBERS or is_exam(number))


def stage_of(notebook: NotebookFile) -> int:
    """The stage of a notebook. Raises Unreadable for an earlier exam, or if it is no worksheet."""
    if sheet.is_earlier(notebook.stage):
        raise Unreadable(sheet.OLD, "earlier")
    if not is_known(notebook.stage):
        raise Unreadable(NO_WORKSHEET, "strange")
    return notebook.stage


def stage(number: int) -> Stage:
    """Number, file stem and title. Raises ValueError if nothing has this number."""
    if is_model(number):
        return model_rows.STAGE
    return sheet.stage(number) if is_exam(number) else stages.stage(number)


def how_to_begin(number: int) -> str:
    """The command that makes a fresh copy of the notebook with this number."""
    if is_exam(number):
        return f"dlsys {sheet.how_to_begin(number)}, after you have renamed yours"
    return f"dlsys start {number} --copy"


def traps(number: int) -> list[Trap]:
    """The exercises of a worksheet, or the rows of a sheet. Raises CatalogError, ValueError.

    Sorted by number, not in lesson order, so that gradebooks of two years have the same columns.
    """
    if is_model(number):
        return model_rows.traps()
    if is_exam(number):
        return sheet.traps(number)
    return by_number(number)


def by_number(stage: int | None = None) -> list[Trap]:
    """The traps of a stage, or of all, sorted by number; the catalog has them in lesson order."""
    return sorted(catalog.traps(stage), key=lambda trap: [*map(int, trap.id.split("."))])


def number_of(id: str) -> int:
    """The number before the point of an id such as "27.3"; 0 for any other text."""
    number = id[:2]
    return int(number) if number.isascii() and number.isdigit() else 0


def checks(id: str) -> ModuleType:
    """The module whose `run_check` judges an answer to an exercise or a row. Imports torch."""
    return importlib.import_module(
        "dlsys.exam_checks" if is_exam(number_of(id)) else "dlsys_checks.checking")


def trap(id: str) -> Trap:
    """The exercise or row with this id. Raises CatalogError."""
    if is_model(number_of(id)):
        return model_rows.trap(id)
    return sheet.trap(id) if is_exam(number_of(id)) else catalog.trap(id)
