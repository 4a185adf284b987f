"""pytest plugin: stored outputs are compared number by number, not digit by digit.

Another CPU adds in another order, so after 300 steps of training the last digits differ. The text
around the numbers and every integer (counts, shapes, steps) must be the same to the letter. A
number with a decimal point or an exponent may differ as `close` says:

- by one unit of the last place, and by RELATIVE of its size;
- below NOISE by a factor of ten. So small are the gaps between two ways to the same number, which
  are made of rounding alone: another CPU, another address in memory, and 1.7e-06 is 1.9e-06;
- by a factor of three where it is one digit with an exponent, which shows an order of magnitude.

In a cell tagged `varies-by-cpu` gaps of that size have grown, as in a long training: there only the
words around the numbers, and how many numbers there are, are compared.
What a number has to be is for the cell's claims; this comparison asks whether the notebook still
shows what its code prints.
"""

import re

import pytest

VARIES = "varies-by-cpu"
# Leading blanks belong to the number: in a column, another digit takes one of them.
DECIMAL = re.compile(r" *(?<![\w.])(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+))"
                     r"(?![\w.]*\d)", re.I)
NUMBER = re.compile(r" *(?<![\w.])-?\d[\d,.]*(?:e[+-]?\d+)?(?!\w)", re.I)
# float32 carries 6e-8 of a number; a thousand sums in another order lose a few hundred times that.
RELATIVE = 1e-4
# The same of a number of size 100. Below NOTHING a gap is as good as none: of 0 it is no factor.
NOISE = 1e-5
NOTHING = 1e-7


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if type(item).__name__ != "IPyNbCell":
            continue
        tags = item.cell.metadata.get("tags", [])
        item.sanitize = sanitized(item.sanitize, without_numbers if VARIES in tags else Printed)


def sanitized(sanitize, kind):
    """nbval's `sanitize`, whose texts are made ones of this kind; they are compared with `!=`."""
    def of_kind(text):
        text = sanitize(text)
        return kind(text) if isinstance(text, str) else text
    return of_kind


def without_numbers(text: str) -> str:
    """The text with # for each number and the blanks before it."""
    return NUMBER.sub("#", text)


class Printed(str):
    """A text whose `==` tolerates rounding in the last printed digits, see `same`."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and same(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def same(stored: str, shown: str) -> bool:
    """Whether two texts agree: their words and integers to the letter, their decimals closely."""
    words, numbers = DECIMAL.sub("#", stored), DECIMAL.findall(stored)
    return words == DECIMAL.sub("#", shown) and all(
        map(close, numbers, DECIMAL.findall(shown)))


def close(stored: str, shown: str) -> bool:
    """Whether two printed numbers agree, as the page's head says."""
    a, b = (float(text.replace(",", "")) for text in (stored, shown))
    small, large = sorted((abs(a), abs(b)))
    if small < NOISE and "e" in (stored + shown).lower():  # else 0.00, and 0.01 is its neighbour
        return large <= 10 * max(small, NOTHING)
    if _is_order(stored) and _is_order(shown):
        return a * b > 0 and large <= 3 * small
    return abs(a - b) <= _unit(stored, shown) * 1.001 + RELATIVE * large


def _is_order(text: str) -> bool:
    return re.fullmatch(r"-?\de[+-]?\d+", text, re.I) is not None


def _unit(*texts: str) -> float:
    """One unit of the last place printed; of two the finer, since str drops a zero there."""
    parts = [text.lower().partition("e") for text in texts]
    decimals = max(len(mantissa.partition(".")[2]) for mantissa, _, _ in parts)
    return 10.0 ** (max(int(exponent or 0) for _, _, exponent in parts) - decimals)
