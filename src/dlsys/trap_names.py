"""What to call a trap while a learner may still have to guess it."""

from dlsys_helpers.catalog import Trap


def shown_name(trap: Trap, known: bool) -> str:
    """The fault of a trap, which answers its guess, if that is known; else its situation."""
    return trap.name if known else trap.title
