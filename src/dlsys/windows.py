"""What native Windows lacks, and what the learner reads there. WSL is Linux and lacks nothing."""

import os
from typing import Any

import dlsys_helpers
from dlsys_helpers.errors import UserError

HERE = os.name == "nt"
# Exercise id to why it cannot be checked: there is no os.fork, and no limit for a file's size.
LEFT_OUT = {"12.8": "its check, and its cells in the lesson, kill a process that saves"}


class NotHere(UserError):
    """An exercise cannot be checked on this system; the message says where it can."""


def cannot_check(id: Any) -> str:
    """Why an exercise cannot be checked here, and where it can; "" if it can."""
    if not (HERE and isinstance(id, str) and id in LEFT_OUT):
        return ""
    return (f"{id} cannot be checked on Windows itself: {LEFT_OUT[id]}. Check it in WSL, on Linux, "
            "macOS or Colab.")


def left_out(stage: int) -> list[str]:
    """A line for each exercise of a stage that cannot be checked here."""
    return [why for id in LEFT_OUT if int(id[:2]) == stage and (why := cannot_check(id))]


def guard() -> None:
    """Let `check` refuse what cannot be checked, before it calls a right answer wrong."""
    def check(*arguments: Any, **options: Any) -> None:
        if why := cannot_check(arguments[0] if arguments else options.get("id")):
            raise NotHere(why)
        from dlsys_checks import checking  # imports torch, which takes seconds
        checking.check(*arguments, **options)

    dlsys_helpers.check = check
