"""How a table of promises is read: by a check, by its fingerprint, and by the room.

    result | The sum of x. | the sum
    sizes  | x: (N,) float32, N >= 1, | case one number; many
             numbers

A line that begins with a blank continues the row above. Bars with a blank on each side part a row
into cells. The room has no torch, so nothing here needs it.
"""

from __future__ import annotations

import re


def rows(table: str) -> list[str]:
    """The rows of a table, each on one line."""
    return re.sub(r"\n +", " ", table.strip("\n")).splitlines()


def cells(row: str) -> list[str]:
    """Key and text of a promise, and what decides it, in one cell or two."""
    return [cell.strip() for cell in row.split(" | ")]


def names_cases(cell: str) -> bool:
    """Whether a cell holds names of cases, not phrases of a message."""
    return cell.startswith("case ")
