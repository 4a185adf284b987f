"""pytest plugin: stored outputs are compared number by number, not digit by digit.

Another CPU adds in another order, so after 300 steps of training the last digits differ. The text
around the numbers and every integer (counts, shapes, steps) must match exactly. `close` says how
far a number with a decimal point or an exponent may differ:

- by one unit in the last place, and by RELATIVE of its size;
- below NOISE by a factor of ten. A gap that small between two ways to compute a number is only
  rounding: 1.7e-06 on one CPU is 1.9e-06 on the next, or at another address;
- by a factor of three if it is one digit with an exponent, which shows an order of magnitude;
- as far as a claim of the same trap allows, if the claim is about this very number and the sweep
  over seeds and CPUs saw it vary. Training amplifies rounding, so results of training vary.

If a number without a claim varies, such as a count after training, its cell needs the tag
`varies-by-cpu`. There we compare only the words around the numbers and how many numbers there are.
Claims say what a number has to be; this comparison asks whether the notebook still shows what its
code prints.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dlsys_helpers.lesson_names import key
from dlsys_helpers.paths import ROOT

VARIES = "varies-by-cpu"
# Leading spaces belong to the number: in a column, one more digit replaces a space.
DECIMAL = re.compile(r" *(?<![\w.])(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+))"
                     r"(?![\w.]*\d)", re.I)
CLAIM = re.compile(r"holds: .*: (?P<value>\S+), (?P<bound>.*)", re.S)
NUMBER = re.compile(r" *(?<![\w.])-?\d[\d,.]*(?:e[+-]?\d+)?(?!\w)", re.I)
# float32 is exact to 6e-8; a thousand sums in another order lose a few hundred times that.
RELATIVE = 1e-4
# The same for a number of size 100. A gap below NOTHING counts as NOTHING: 0 has no factors.
NOISE = 1e-5
NOTHING = 1e-7
SWEEPS = ROOT / "tests" / "records" / "sweep"


class ClaimedNumber(NamedTuple):
    """The stored number of a claim, and the claim's limits."""

    value: float
    low: float
    high: float

    def allows(self, stored: str, shown: str) -> bool:
        """Whether the stored number is this one, and the shown one satisfies the claim."""
        a, b = map(_value, (stored, shown))
        rounded = _unit(stored) * 0.501 + 5e-3 * abs(a)  # a claim prints 10.15 as 10.2
        return abs(self.value - a) <= rounded and self.low <= b <= self.high


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cells = [item for item in items if type(item).__name__ == "IPyNbCell"]
    books = {item.parent for item in cells}
    held = {book.path: claimed_numbers(book.path, book.nb.cells) for book in books}
    for item in cells:
        varies = VARIES in item.cell.metadata.get("tags", [])
        mine = held[item.path].get(_trap(item.cell), ())
        item.sanitize = sanitized(item.sanitize, without_numbers if varies else printed_with(mine))


def claimed_numbers(path: Path, cells: Iterable[Any]) -> dict[str, list[ClaimedNumber]]:
    """The numbers in a notebook's claims that varied in the sweep, by trap."""
    found: dict[str, list[ClaimedNumber]] = {}
    for cell in cells:
        shown = (out.get("data", {}).get("text/plain", "") for out in cell.get("outputs", ()))
        lines = [text for text in shown if text.startswith("holds: ")]
        for place, line in enumerate(lines, 1):
            claim = CLAIM.fullmatch(line)
            if claim and f"{cell.get('id')} {place}" in varying_claims(key(path)):
                number = ClaimedNumber(float(claim["value"]), *limits_of(claim["bound"]))
                found.setdefault(_trap(cell), []).append(number)
    return found


@cache
def varying_claims(lesson: str) -> frozenset[str]:
    """The claims, by cell and place in it, whose number differed between the runs of a sweep.

    Empty without a record, so that the digits are compared.
    """
    path = SWEEPS / f"{lesson}.json"
    if not path.exists():
        return frozenset()
    claims = json.loads(path.read_text("utf-8")).get(lesson, {}).get("claims", {})
    return frozenset(name for name, seen in claims.items() if seen["least"] != seen["most"])


def limits_of(bound: str) -> tuple[float, float]:
    """The limits in "above 1 and below 2" or "expected 1 ± 0.1", see dlsys_helpers.claims.judge."""
    named = dict(re.findall(r"(above|below|expected|±) (\S+)", bound))
    middle, spread = float(named.get("expected", "nan")), float(named.get("±", 0))
    if not math.isnan(middle):
        return middle - spread, middle + spread
    return float(named.get("above", "-inf")), float(named.get("below", "inf"))


def _trap(cell: Any) -> str:
    return cell.metadata.get("dlsys", {}).get("trap", "")


def sanitized(sanitize, kind):
    """Let nbval's `sanitize` also convert each text by `kind`; nbval compares with `!=`."""
    def of_kind(text):
        text = sanitize(text)
        return kind(text) if isinstance(text, str) else text
    return of_kind


def without_numbers(text: str) -> str:
    """The text with # for each number and the spaces before it."""
    return NUMBER.sub("#", text)


class Printed(str):
    """A text whose `==` tolerates rounding in the last printed digits, see `same`."""

    __hash__ = str.__hash__
    held: Sequence[ClaimedNumber] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and same(self, other, self.held)

    def __ne__(self, other: object) -> bool:
        return not self == other


def printed_with(held: Sequence[ClaimedNumber]):
    """A function that makes a text `Printed`, with these numbers of claims."""
    def made(text: str) -> Printed:
        new = Printed(text)
        new.held = held
        return new
    return made


def same(stored: str, shown: str, held: Sequence[ClaimedNumber] = ()) -> bool:
    """Whether two texts agree: words and integers exactly, decimals closely."""
    pairs = zip(DECIMAL.findall(stored), DECIMAL.findall(shown), strict=False)
    return DECIMAL.sub("#", stored) == DECIMAL.sub("#", shown) and all(
        close(*pair) or any(one.allows(*pair) for one in held) for pair in pairs)


def close(stored: str, shown: str) -> bool:
    """Whether two printed numbers agree, by the rules in the module's docstring."""
    a, b = map(_value, (stored, shown))
    small, large = sorted((abs(a), abs(b)))
    if small < NOISE and "e" in (stored + shown).lower():  # otherwise 0.00, whose neighbour is 0.01
        return large <= 10 * max(small, NOTHING)
    if _is_order(stored) and _is_order(shown):
        return a * b > 0 and large <= 3 * small
    return abs(a - b) <= _unit(stored, shown) * 1.001 + RELATIVE * large


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _is_order(text: str) -> bool:
    return re.fullmatch(r"-?\de[+-]?\d+", text, re.I) is not None


def _unit(*texts: str) -> float:
    """One unit in the last printed place; the finer of two, because str drops trailing zeros."""
    parts = [text.lower().partition("e") for text in texts]
    decimals = max(len(mantissa.partition(".")[2]) for mantissa, _, _ in parts)
    return 10.0 ** (max(int(exponent or 0) for _, _, exponent in parts) - decimals)
