"""The learner's own desk, if this copy of the course can have one, and its checks of answers."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from dlsys_helpers import timeouts
from dlsys_helpers.errors import UserError
from dlsys_helpers.verdicts import Verdict

PARTS = ("dlsys_checks.exam.laws", "dlsys_checks.exam.draws")
NO_DESK = ("exam: this copy of the course was made for a class, and has no exam of its own. Ask "
           "your instructor for the address of one: dlsys exam a --at ADDRESS")


class SheetError(UserError):
    """A sheet cannot be used as asked; the message says what to do."""


def in_sandbox() -> bool:
    """Whether the grader runs this notebook, where there are no checks and no desk."""
    try:
        return importlib.util.find_spec("dlsys_checks.exam.sheet") is None
    except ModuleNotFoundError:
        return True


def has_desk() -> bool:
    """Whether this copy of the course can draw sheets: a class's wheel cannot."""
    return all(map(importlib.util.find_spec, PARTS))


def desk() -> Any:
    """The learner's own desk. Raises UserError."""
    if not has_desk():
        raise SheetError(NO_DESK)
    from dlsys import exam_desk
    return exam_desk.own()


def run_check(id: str, fn: object, seeds: Sequence[int],
              seconds: float = timeouts.SECONDS) -> Verdict:
    """The verdict of the learner's own desk on a row. Raises UserError."""
    from dlsys_checks.exam import sheet  # not where the grader runs a notebook
    return desk().check(id, sheet.OWN, fn, seeds, seconds)
