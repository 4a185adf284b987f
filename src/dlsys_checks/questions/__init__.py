"""Questions for review: one file a stage, one row or one short function a question.

`ask` registers a row: the values to draw from, and the question as a function of what was drawn.
Where that is too little, `question_for` registers a function that draws from a `random.Random`
itself. The order of a trap's questions counts: a review asks them in turn. Nothing here imports
torch; some files of the stages do.
"""

import importlib
import importlib.util
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
    def letters(self) -> str:
        """By which a terminal knows the options: the number of one may be the text of another."""
        return "abcdefghij"[:len(self.options)]

    @property
    def typed_form(self) -> str:
        """What an answer looks like in a terminal."""
        return f"Choose a to {self.letters[-1]}." if self.options else self.form

    def read_typed(self, typed: str) -> float:
        """An answer in a terminal: the letter of an option, or a number. Raises AnswerError."""
        if not self.options:
            return self.read(typed)
        said = typed.strip().lower()
        if len(said) != 1 or said not in self.letters:
            raise AnswerError(f"answer: got {typed.strip()[:40]!r}, expected: {self.typed_form}")
        return self.letters.index(said) + 1

    @property
    def shown(self) -> str:
        """The answer as a learner reads it."""
        return self.shown_answer(self.answer)

    def shown_answer(self, value: float) -> str:
        """A number that was given as an answer, as a learner reads it."""
        return self.options[int(value) - 1] if self.options else shown(value)

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

def question_for(trap: str):
    """Register a function that draws from its `rng` and returns a question about this trap."""
    def keep(made: Callable[[random.Random], Question]):
        def draw(rng: random.Random) -> Question:
            return _mixed(made(rng), rng)
        _GENERATORS.setdefault(trap, []).append(draw)
        draw.__name__ = f"{trap}, question {len(_GENERATORS[trap])}"  # for the messages of tests
        return made
    return keep


def ask(trap: str, drawn: Mapping[str, Sequence | Callable], made: Callable[..., Question]) -> None:
    """Register a question as a row: what is drawn, and the question as a function of that.

        ask("03.1", {"a": range(4, 9), "b": lambda a: range(1, a)}, lambda a, b: whole(
            f"What is {a} minus {b}?", a - b, "Count back from the first.", b - a, a + b))

    drawn: by name, the values of which one is taken, or a function that returns them and gets by
    name what was drawn before. "a, b" is a name for pairs, drawn together.
    """
    @question_for(trap)
    def draw(rng: random.Random) -> Question:
        facts: dict = {}
        for names, values in drawn.items():
            value = rng.choice(values(**facts) if callable(values) else values)
            facts |= zip(names.split(", "), value) if ", " in names else [(names, value)]
        return made(**facts)


def number(text: str, answer, why: str, *beliefs, within: float = 0.02) -> Question:
    """A question for a number, right within this share of it."""
    return Question(text, float(answer), why, (), within, tuple(map(float, beliefs)))


def whole(text: str, answer: int, why: str, *beliefs) -> Question:
    """A question for a whole number, right when it is exact. Raises ValueError for a fraction."""
    if answer != int(answer):
        raise ValueError(f"answer: got {answer}, expected a whole number.")
    return Question(text, int(answer), why, (), 0.0, tuple(map(float, beliefs)))


def choice(text: str, answer, why: str, *wrong) -> Question:
    """A choice among the right value and wrong ones; each draw has an order of its own.

    Values that read alike are offered once. Raises ValueError when fewer than three remain.
    """
    values = (value if isinstance(value, str) else shown(value) for value in (answer, *wrong))
    options = tuple(dict.fromkeys(values))
    if len(options) < 3:
        raise ValueError(f"options: got {list(options)}, expected at least three that differ.")
    return Question(text, 1, why, options)


def _mixed(question: Question, rng: random.Random) -> Question:
    """The question with its options, of which the first is right, in an order of rng's own."""
    if not question.options:
        return question
    first, count = question.options[0], len(question.options)
    options = tuple(rng.sample(question.options, count))
    place = options.index(first) + 1
    beliefs = tuple(float(k) for k in range(1, count + 1) if k != place)
    return replace(question, answer=place, options=options, beliefs=beliefs)


# ---- for the review

def exist(stage: int) -> bool:
    """Whether there are questions about this stage. Imports none of them."""
    return importlib.util.find_spec(f"{__name__}.q{stage:02d}") is not None


def about(trap: str) -> list[Callable[[random.Random], Question]]:
    """The questions about a trap, "03.1". Imports those of its stage, and torch with them."""
    if exist(int(trap[:2])):
        importlib.import_module(f"{__name__}.q{trap[:2]}")
    return _GENERATORS.get(trap, [])
