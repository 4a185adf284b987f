"""What a trap is called where its guess may still be made."""

from dlsys_helpers.catalog import Trap


def shown_name(trap: Trap, known: bool) -> str:
    """The fault of a trap, which answers its guess, where that is known; else its situation."""
    return trap.name if known else trap.title
