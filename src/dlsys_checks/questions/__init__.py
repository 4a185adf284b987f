"""Questions for review: one file a stage, one short function a question.

A function registered with `asks("03.1")` draws its constants from a `random.Random` and returns a
Question whose answer it computes; where a formula is enough, `ask` takes it as a row. Nothing here
imports torch; the files of the stages do.
"""

import importlib
import importlib.util
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dlsys_helpers.errors import UserError

_GENERATORS: dict[str, list[Callable[[random.Random], "Question"]]] = {}
_NUMBER = re.compile(r"([-+]?[\d_.]+(?:e[-+]?\d+)?)(?:/([\d_.]+(?:e[-+]?\d+)?))?", re.IGNORECASE)


class AnswerError(UserError):
    """What was typed is no answer to this question; the message says what is expected."""


@dataclass(frozen=True)
class Question:
    """A question with computed answer: a number, or the place (from 1) of the right option.

    within: the share of the answer by which a number may be off; 0 asks for it exactly.
    beliefs: wrong answers that are often given; none of them counts as right.
    """

    text: str
    answer: float
    why: str
    options: tuple[str, ...] = ()
    within: float = 0.0
    beliefs: tuple[float, ...] = ()

    @property
    def form(self) -> str:
        """What an answer looks like, in a few words."""
        if self.options:
            return f"Choose 1 to {len(self.options)}."
        if not self.within:
            return "A whole number."
        return f"A number, right within {100 * self.within:g} %. 1/3 and 2e-5 may be typed, too."

    @property
    def shown(self) -> str:
        """The answer as a learner reads it."""
        return self.options[int(self.answer) - 1] if self.options else shown(self.answer)

    def read(self, typed: str) -> float:
        """The number that was typed. Raises AnswerError, in one line, for anything else."""
        value = _number(typed)
        if value is None or (self.options and value not in range(1, len(self.options) + 1)):
            raise AnswerError(f"answer: got {typed.strip()[:40]!r}, expected: {self.form}")
        return value

    def right(self, value: float) -> bool:
        """Whether this number is the answer, within the tolerance that `form` states."""
        return abs(value - self.answer) <= self.within * abs(self.answer)


def _number(typed: str) -> float | None:
    """A finite number, as 0.5, 1,000, 1e-3 or 1/3; None for any other text."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", typed.strip())
    found = _NUMBER.fullmatch(text)
    try:
        value = float(found[1]) / float(found[2] or 1) if found else math.nan
    except (ValueError, ZeroDivisionError):
        return None
    return value if math.isfinite(value) else None


def shown(value: float) -> str:
    """A number for a sentence: whole ones in full, others with four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


# ---- for the files of the stages

def asks(trap: str):
    """Register a function as a question about this trap."""
    def keep(draw: Callable[[random.Random], Question]):
        _GENERATORS.setdefault(trap, []).append(draw)
        return draw
    return keep


def ask(trap: str, text: str, drawn: Mapping[str, Sequence], answer, why: str, *beliefs,
        within: float = 0.02) -> None:
    """Register a question as a row; {a} in question and answers is the `a` that is drawn.

        ask("03.1", "What is {a} times {b}?", {"a": (2, 3), "b": range(4, 9)},
            lambda a, b: a * b, "It is their product.", lambda a, b: a + b, within=0)

    drawn: the values of which one is taken, by name. answer and beliefs: numbers, or functions of
    all that is drawn; or texts, for a choice. within: the share by which a number may be off; 0
    for a whole one.
    """
    def draw(rng: random.Random) -> Question:
        facts = {name: rng.choice(values) for name, values in drawn.items()}

        def filled(one):
            if isinstance(one, str):
                return one.format(**facts)
            return one(**facts) if callable(one) else one

        given, right, *wrong = map(filled, (text, answer, *beliefs))
        if isinstance(right, str):
            return choice(rng, given, right, wrong, why)
        return number(given, right, why, *wrong, within=within) if within else (
            whole(given, right, why, *wrong))
    draw.__name__ = text  # as a test names what it is not content with
    asks(trap)(draw)


def number(text: str, answer, why: str, *beliefs, within: float = 0.02) -> Question:
    """A question for a number, right within this share of it."""
    return Question(text, float(answer), why, (), within, tuple(map(float, beliefs)))


def whole(text: str, answer: int, why: str, *beliefs) -> Question:
    """A question for a whole number, right when it is exact."""
    return Question(text, int(answer), why, (), 0.0, tuple(map(float, beliefs)))


def choice(rng: random.Random, text: str, right, wrong: Sequence, why: str) -> Question:
    """A choice among the right value and wrong ones, in an order of rng's own.

    Values that read alike are offered once. Raises ValueError when fewer than three remain.
    """
    first, *others = dict.fromkeys(v if isinstance(v, str) else shown(v) for v in (right, *wrong))
    if len(others) < 2:
        raise ValueError(f"options: got {[first, *others]}, expected at least three that differ.")
    options = rng.sample([first, *others], 1 + len(others))
    place = options.index(first) + 1
    beliefs = tuple(float(k) for k in range(1, len(options) + 1) if k != place)
    return Question(text, place, why, tuple(options), 0.0, beliefs)


# ---- for the review

def exist(stage: int) -> bool:
    """Whether there are questions about this stage. Imports none of them."""
    return importlib.util.find_spec(f"{__name__}.q{stage:02d}") is not None


def about(trap: str) -> list[Callable[[random.Random], Question]]:
    """The questions about a trap, "03.1". Imports those of its stage, and torch with them."""
    if exist(int(trap[:2])):
        importlib.import_module(f"{__name__}.q{trap[:2]}")
    return _GENERATORS.get(trap, [])
