"""pytest plugin: stored outputs are compared number by number, not digit by digit.

Another CPU adds in another order, so after 300 steps of training the last digits differ. The text
around the numbers and every integer (counts, shapes, steps) must be the same to the letter. A
number with a decimal point or an exponent may differ as `close` says. A cell tagged `exact-output`
is compared to the letter. In one tagged `varies-by-cpu` gaps of that size have grown, as in a long
training: there only the words around the numbers, and how many numbers there are, are compared.
What a number has to be is for the cell's claims; this comparison asks whether the notebook still
shows what its code prints.
"""

import re

import pytest

EXACT, VARIES = "exact-output", "varies-by-cpu"
# Leading blanks belong to the number: in a column, another digit takes one of them.
DECIMAL = re.compile(r" *(?<![\w.])(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+))"
                     r"(?![\w.]*\d)", re.I)
NUMBER = re.compile(r" *(?<![\w.])-?\d[\d,.]*(?:e[+-]?\d+)?(?!\w)", re.I)
# float32 carries 6e-8 of a number; a thousand sums in another order lose a few hundred times that.
RELATIVE = 1e-4
ROUNDING = 1e-6


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if type(item).__name__ != "IPyNbCell":
            continue
        tags = item.cell.metadata.get("tags", [])
        if EXACT not in tags:
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
    """Whether two printed numbers agree: to one unit of the last place, and RELATIVE beside it.

    One digit with an exponent (4e-07) prints an order of magnitude: a factor of 3 either way. No
    gap at all (0e+00) is close to one of float32's rounding.
    """
    a, b = (float(text.replace(",", "")) for text in (stored, shown))
    if _is_order(stored) and _is_order(shown):
        if 0 in (a, b):
            return max(abs(a), abs(b)) <= ROUNDING
        return a * b > 0 and 1 / 3 <= a / b <= 3
    return abs(a - b) <= _unit(stored, shown) * 1.001 + RELATIVE * max(abs(a), abs(b))


def _is_order(text: str) -> bool:
    return re.fullmatch(r"-?\de[+-]?\d+", text, re.I) is not None


def _unit(*texts: str) -> float:
    """One unit of the last place printed; of two the finer, since str drops a zero there."""
    parts = [text.lower().partition("e") for text in texts]
    decimals = max(len(mantissa.partition(".")[2]) for mantissa, _, _ in parts)
    return 10.0 ** (max(int(exponent or 0) for _, _, exponent in parts) - decimals)
