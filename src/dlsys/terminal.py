"""Tables, colours and lines on a terminal, with rich where it is installed."""

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
    """Print with rich; of texts, which may hold a stranger's file name, what can be seen.

    Without rich, which `dlsys doctor` then names, lines are plain.
    """
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        print(*map(visible, parts))
        return
    # No markup: a message may hold brackets. Long lines are left to the terminal.
    shown = [visible(part) if isinstance(part, str) else part for part in parts]
    Console(markup=False, highlight=False).print(*shown, soft_wrap=not isinstance(parts[-1], Table))


def paragraph(text: str) -> None:
    """Print text wrapped to the terminal; the indent of a line is that of what wraps below it."""
    for part in text.split("\n"):
        blank = part[:len(part) - len(part.lstrip())]
        say(filled(part.strip(), blank, blank))


def filled(text: str, first: str = "", others: str = "") -> str:
    """One line, wrapped to the terminal, with an indent for its first line and the others."""
    width = min(88, shutil.get_terminal_size().columns)
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=others,
                         break_long_words=False, break_on_hyphens=False)


def ask(question: str, read: Callable[[str], T], refusal: type[UserError]) -> T:
    """An answer, asked for until `read` raises no refusal, whose message is shown."""
    if question:
        paragraph(question)
    while True:
        try:
            return read(input("> "))
        except refusal as error:
            paragraph(str(error))
