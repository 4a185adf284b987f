"""Strangers' names and messages as harmless text: one line, no controls, no hidden direction."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from dlsys_helpers.errors import UserError

# Control, format (bidirectional marks, zero width), surrogate, private use, line and paragraph.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# Letters and marks that show nothing (Unicode's default ignorable ones), and the empty pattern of
# braille.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
                    "\U000e0100-\U000e01ef]")
# Spreadsheets also take full-width signs as the start of a formula.
_FORMULA = tuple("=+-@\t\r＝＋－＠")
_INNER_FORMULA = re.compile(r"""(;[\s"']*)([=+@＝＋－＠-])""")


def visible(text: object) -> str:
    """`text` with its lines and blanks, and a blank for each control or hidden direction."""
    return "".join(c if c == "\n" or unicodedata.category(c) not in _UNSEEN else " "
                   for c in str(text))


def clean(text: object, longest: int = 300) -> str:
    """`text` on one line of at most `longest` characters, without controls or hidden direction.

    Texts that look alike become equal: invisible letters become blanks, accents join letters.
    """
    composed = unicodedata.normalize("NFC", visible(str(text)[:4 * longest]))
    line = " ".join(_BLANK.sub(" ", composed).split())
    return line if len(line) <= longest else f"{line[:longest - 3]}..."


def first_few(names: list[str], most: int = 5) -> str:
    """The first names, on one line, with dots if there are more."""
    return ", ".join([*names[:most], "..."] if len(names) > most else names)


def cell_and_line(report: dict) -> str:
    """`cell 4, line 2` for the report of a cell that stopped."""
    line = f", line {report['line']}" if report["line"] else ""
    return f"cell {report['number']}{line}"


def cell(value: object) -> object:
    """A value for a CSV file: what a spreadsheet would take for a formula gets a quote in front.

    The same after a semicolon, where some countries' spreadsheets split cells, quoted or not.
    """
    return quoted(value) if isinstance(value, str) else value


def quoted(value: str) -> str:
    """A text as `cell` writes it."""
    inside = _INNER_FORMULA.sub(r"\1'\2", value)
    return f"'{inside}" if value.lstrip().startswith(_FORMULA) else inside


def separator(content: str) -> str:
    """What separates the cells of a CSV text: a comma, a semicolon or a tab, by its first line."""
    return max(",;\t", key=content.partition("\n")[0].count)


def numbered_rows(path: Path, columns: Sequence[str],
                  error: type[UserError]) -> list[tuple[int, list[str]]]:
    """The rows of an instructor's CSV with their numbers, except for empty rows.

    Cells are separated by commas, semicolons or tabs. The list is empty if there is no such file.
    Raises `error` for a different encoding or different columns.
    """
    if not path.exists():
        return []
    try:
        content = path.read_bytes().decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(content, newline=""), delimiter=separator(content)))
    except (ValueError, csv.Error) as fault:
        raise error(f"{path}: cannot be read as CSV in UTF-8 ({type(fault).__name__}). Save it "
                    "again in that form.") from None
    if not rows or [cell.strip() for cell in rows[0]] != list(columns):
        raise error(f"{path}: got the columns {clean(','.join(rows[0]) if rows else '')!r}, "
                    f"expected {','.join(columns)}")
    return [(number, row) for number, row in enumerate(rows[1:], 2) if any(row)]


def rounded(number: float) -> float:
    """Points rounded to two decimals; an int if they are a whole number."""
    points = round(number, 2)
    return int(points) if points == int(points) else points
