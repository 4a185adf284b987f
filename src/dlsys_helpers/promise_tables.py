"""Tables of promises: how a check's file writes them as text. Imports nothing, torch least of all.

    result | The sum of x. | the sum
    sizes  | x: (N,) float32, N >= 1, | case one number; many numbers
    order  | in memory in any order. | case a column of a table | the sum

Two or three bars with a blank on each side split a row into its key, its text, and what decides it:
phrases, or the word `case` and names of cases, or a cell of each. A semicolon separates phrases or
names. A line that begins with a blank continues the row above.
"""

import re
from typing import NamedTuple


class Row(NamedTuple):
    """A row: the promise's key and text, the cases that decide it, and phrases of its message."""

    key: str
    text: str
    cases: tuple[str, ...]
    says: tuple[str, ...]


def read(table: str) -> list[Row]:
    """The rows of a table. Raises ValueError, which shows the row, for any other form."""
    return [_row(line) for line in re.sub(r"\n +", " ", table.strip("\n")).splitlines()]


def _row(line: str) -> Row:
    cells = [cell.strip() for cell in line.split(" | ")]
    names = [cell.removeprefix("case ") for cell in cells[2:] if cell.startswith("case ")]
    phrases = [cell for cell in cells[2:] if not cell.startswith("case ")]
    cases, says = (tuple(part.strip() for cell in kind for part in cell.split(";"))
                   for kind in (names, phrases))
    if (len(cells) not in (3, 4) or len(names) > 1 or len(phrases) > 1
            or not all((*cells, *cases, *says))):
        raise ValueError(f"promise table, row {line!r}: expected key | text | phrases, or case and "
                         "names of cases in the last cell, or a cell of each; none may be empty.")
    return Row(cells[0], cells[1], cases, says)
