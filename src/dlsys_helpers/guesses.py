"""Guess first: a question before a trap, and the measurement that answers it.

`guess` shows a form and returns at once, so running all cells never waits. Guesses are kept in
``my-work/.guesses.jsonl``. A notebook stores plain HTML that is readable without a script; a page
mounts the same form on it.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from decimal import Decimal
from math import floor
from typing import Any, NamedTuple

from dlsys_helpers import cards, progress, room_client
from dlsys_helpers.cards import inline
from dlsys_helpers.claims import ClaimFailed


class Question(NamedTuple):
    """What is asked: one of `choices`, or a number in `unit`."""

    id: str
    text: str
    choices: tuple[str, ...] = ()
    unit: str = ""

    def named(self, answer: str | float) -> str:
        """An answer in the form that a sentence uses."""
        if isinstance(answer, str):
            return f"\N{LEFT DOUBLE QUOTATION MARK}{answer}\N{RIGHT DOUBLE QUOTATION MARK}"
        return f"{answer:.12g}\N{NO-BREAK SPACE}{self.unit}".strip()

    def fits(self, answer: object) -> bool:
        """Whether a stored answer still fits this question."""
        return answer in self.choices if self.choices else isinstance(answer, int | float)


class Measurement(NamedTuple):
    """A result as it is shown; `right` is the right choice or the lowest and highest right guess.

    value: the measured number; None for a choice.
    """

    id: str
    shown: str
    right: str | tuple[float, float]
    value: float | None = None

    def agrees(self, answer: str | float) -> bool:
        if isinstance(self.right, str) or isinstance(answer, str):
            return answer == self.right
        low, high = self.right
        return low <= answer <= high


ASKED: dict[str, Question] = {}  # in this process, by id
SAID: dict[str, dict] = {}
MEASURED: dict[str, Measurement] = {}


def guess(id: str, question: str, *, choices: Sequence[str] = (), unit: str = "") -> None:
    """Ask for a guess: one of three or four choices, or a number in a unit; and ask how sure.

    id: the trap's. Backquotes in the texts mark code. Returns at once; `measured` answers the
    guess. Raises ValueError unless there is either a unit or three or four choices.
    """
    asked = ASKED[id] = checked(Question(id, question, tuple(choices), unit))
    if cards.shell() is not None:
        _show_form(asked, _said(asked))
    else:
        print(_plain(asked))
    room_client.say_guess()


def checked(asked: Question) -> Question:
    """Return the question unchanged. Raises ValueError for one that cannot be answered."""
    n = len(set(asked.choices))
    if (n == 0) != bool(asked.unit) or n not in (0, 3, 4) or n < len(asked.choices):
        raise ValueError(f"guess {asked.id}: got {len(asked.choices)} choices and the unit "
                         f"{asked.unit!r}, expected three or four different choices, or a unit "
                         "for a number.")
    return asked


def measured(id: str, value: Any, *, right: tuple[float, float] | None = None) -> None:
    """Show the guess for this id next to what was measured.

    value: the number, or the index from 0 of the right choice. right: for a number, the lowest
    and highest guess that count as right; the value lies between them.
    Raises ClaimFailed when it does not.
    """
    asked = ASKED.get(id, Question(id, ""))
    result = _number(asked, value, right) if right else _choice(asked, value)
    MEASURED[id] = result
    said = _said(asked)
    if said and said.get("right") is None:
        said = SAID[id] = {**said, "right": result.agrees(said["guess"])}
        progress.record_guess(id, said["guess"], said["sure"], said["right"])
    _answer(asked, result, said)


class MeasuredQuestion(NamedTuple):
    """A question that this session asked and measured; `guess` is what was said, in words."""

    question: str
    guess: str
    measured: str


def measured_questions(prefix: str) -> list[MeasuredQuestion]:
    """The questions measured in this session whose id begins with `prefix`."""
    return [MeasuredQuestion(asked.text, asked.named(said["guess"]) if said else "",
                             MEASURED[id].shown)
            for id, asked in ASKED.items() if id.startswith(prefix) and id in MEASURED
            for said in [_said(asked)]]


def _number(asked: Question, value: Any, right: tuple[float, float]) -> Measurement:
    number = value.item() if hasattr(value, "item") else value
    low, high = right
    if not low <= number <= high:
        raise ClaimFailed(f"measured {asked.id}: got {number:.6g}, expected {low:g} to {high:g}.")
    return Measurement(asked.id, f"{_digits(number)}\N{NO-BREAK SPACE}{asked.unit}".strip(),
                       (low, high), number)


def _choice(asked: Question, index: int) -> Measurement:
    """The right choice: its text, or only its number if this session did not ask the question."""
    text = asked.choices[index] if asked.choices else f"choice {index + 1}"
    return Measurement(asked.id, asked.named(text), text)


def _digits(number: float) -> str:
    """Whole numbers as they are, others with two digits or, from 100 on, as a whole number."""
    if number == int(number) or abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.2g}"


def _said(asked: Question) -> dict:
    """The last guess, from this or an earlier session, that fits the question; {} for none."""
    said = SAID.get(asked.id) or progress.guesses().get(asked.id, {})
    return said if said and (not asked.text or asked.fits(said["guess"])) else {}


def sentence(asked: Question, result: Measurement, said: dict) -> str:
    """The guess next to the measurement; guess.js says the same on a page."""
    if not said:
        return f"Measured: {result.shown}."
    sure = "sure" if said["sure"] else "not sure"
    return (f"You said {asked.named(said['guess'])} and were {sure}; "
            f"measured {result.shown}{_verdict(asked, result, said['guess'])}.")


def _verdict(asked: Question, result: Measurement, answer: str | float) -> str:
    """The end of the sentence; for a number, the band that counts as right and any distance."""
    hit = result.agrees(answer)
    if isinstance(result.right, str):
        return ": right" if hit else ""
    low, high = map(_plain_number, result.right)
    if low == high:
        return ": right" if hit else f": {_missed(answer, result)}"
    band = f"{low} to {high}\N{NO-BREAK SPACE}{asked.unit}".strip()
    if hit:
        return f": right, as is {band}"
    return f", right from {band}: {_missed(answer, result)}"


def _plain_number(number: float) -> str:
    """A number as people write it, without an exponent."""
    return f"{Decimal(f'{number:.12g}'):,f}"


def _missed(answer: float, result: Measurement) -> str:
    """How far off a guess is, as a factor if possible."""
    way = "too low" if answer < result.right[0] else "too high"
    if not result.value or answer <= 0 or result.value <= 0:
        return way
    factor = max(answer, result.value) / min(answer, result.value)
    # Rounded as JavaScript does, since guess.js says the same.
    times = f"{floor(factor * 10 + .5) / 10:g}" if factor < 9.95 else f"{floor(factor + .5):,}"
    return f"{times} times {way}" if factor >= 1.1 else way


# ---- what is shown

def _show_form(asked: Question, said: dict) -> None:
    from IPython.display import display

    from dlsys_helpers.explorers._guess import GuessWidget  # slow to import
    from dlsys_helpers.explorers._live import show_live
    form = GuessWidget(question=asked._asdict(),
                       said={k: said[k] for k in ("guess", "sure") if said})
    form.observe(lambda change: hear(asked, change.new), "said")
    stand_in = {"text/html": _html(asked), "text/plain": _plain(asked)}
    if cards.watched():
        show_live(form, stand_in)
    else:
        data, metadata = form._repr_mimebundle_()
        display({**data, **stand_in}, metadata=metadata, raw=True)


def hear(asked: Question, said: dict) -> None:
    """Keep a guess, and answer it if its measurement already exists."""
    SAID[asked.id] = said
    result = MEASURED.get(asked.id)
    progress.record_guess(asked.id, said["guess"], said["sure"],
                          result.agrees(said["guess"]) if result else None)
    room_client.tell_guess(asked.id, said)
    if result:
        _answer(asked, result, said, update=True)


def _answer(asked: Question, result: Measurement, said: dict, update: bool = False) -> None:
    text = sentence(asked, result, said)
    known = {name: part for name, part in result._asdict().items() if part is not None}
    facts = html.escape(json.dumps(known))
    cards.emit(f'<p class="dlsys-measured" data-measured="{facts}" style="font-weight:600;'
               f'border-left:3px solid currentColor;padding-left:.7em">{inline(text)}</p>', text,
               display_id=f"measured-{asked.id}", update=update)


def _html(asked: Question) -> str:
    answers = "".join(f"<li>{inline(choice)}</li>" for choice in asked.choices)
    asks = f"<ol>{answers}</ol>" if answers else f"<p>A number, in {inline(asked.unit)}.</p>"
    return (f'<div class="xp gs" data-guess="{html.escape(json.dumps(asked._asdict()))}">'
            f'<p class="gs-question"><strong>Your guess:</strong> {inline(asked.text)}</p>'
            f"{asks}</div>")


def _plain(asked: Question) -> str:
    answers = asked.choices or (f"a number, in {asked.unit}",)
    return "\n".join([f"Your guess: {asked.text}", *(f"  - {answer}" for answer in answers)])
