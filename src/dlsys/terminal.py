"""Tables, colours and lines on a terminal, with rich if it is installed."""

import shutil
import textwrap
from collections.abc import Callable
from typing import TypeVar

from dlsys.grading.text import visible
from dlsys_helpers.errors import UserError

T = TypeVar("T")


def new_table(*columns: str):
    try:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
    except ModuleNotFoundError:
        raise UserError("the package rich is missing. Run: pip install rich") from None

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    # Of the width that the others leave:
    shares = {"name": 2, "what was found": 3, "whose": 1, "what it does": 3, "number": 3}
    for name in columns:
        share = shares.get(name.partition(",")[0])
        table.add_column(name, no_wrap=share is None, ratio=share, overflow="fold",
                         justify="right" if name == "points" else "left")
    return table


def bold(text: str):
    return styled(text, "bold")


def styled(text: str, style: str):
    try:
        from rich.text import Text
    except ModuleNotFoundError:
        return text
    return Text(text, style)


def say(*parts) -> None:
    """Print with rich; from texts, which may contain a stranger's file name, only what is visible.

    Without rich, lines are plain, and `dlsys doctor` names the missing package.
    """
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        print(*map(visible, parts))
        return
    # No markup, because a message may contain brackets. The terminal wraps long lines.
    shown = [visible(part) if isinstance(part, str) else part for part in parts]
    Console(markup=False, highlight=False).print(*shown, soft_wrap=not isinstance(parts[-1], Table))


def paragraph(text: str) -> None:
    """Print text wrapped to the terminal; wrapped lines keep the indent of their first line."""
    for part in text.split("\n"):
        blank = part[:len(part) - len(part.lstrip())]
        say(filled(part.strip(), blank, blank))


def filled(text: str, first: str = "", others: str = "") -> str:
    """One line, wrapped to the terminal, with an indent for its first line and the others."""
    width = min(88, shutil.get_terminal_size().columns)
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=others,
                         break_long_words=False, break_on_hyphens=False)


def ask(question: str, read: Callable[[str], T], refusal: type[UserError]) -> T:
    """Ask until `read` accepts the answer, and show the message of each refusal."""
    if question:
        paragraph(question)
    while True:
        try:
            return read(input("> "))
        except refusal as error:
            paragraph(str(error))
