"""What a room shows: counts of choices, dots of numbers, who changed to what, who is stuck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import median
from typing import Any, NamedTuple

from dlsys.room.questions import Item
from dlsys.room.rounds import Answer, Room, Tried

LETTERS = "ABCD"
DOTS = 40  # columns of a dot plot
FAR = 4  # from the median, in median distances: numbers beyond it are counted at an edge
SOME_RIGHT, MANY_RIGHT = 0.3, 0.7  # discussion helps most between them


# ---- a question

def question_view(room: Room, trap: str, revealed: bool) -> dict[str, Any]:
    """Both histograms, the flow between them and, once it is revealed, what was measured."""
    item, last = room.by_id[trap], room.rounds[trap].go
    goes = [1] if last == 1 else [1, last]
    counted = [list(room.answers.get((trap, go), {}).values()) for go in goes]
    shown = {"counts": [len(answers) for answers in counted]}
    shown |= (_choices(item, counted, revealed) if item.asked.choices
              else _numbers(item, counted, revealed))
    if last > 1 and (item.asked.choices or revealed):
        shown["flow"] = flow(item, room.answers.get((trap, 1), {}),
                             room.answers.get((trap, last), {}))
    if revealed:
        shown |= {"measured": item.measured.shown, "found": item.found,
                  "right": [right(item, answers) for answers in counted]}
    return shown


def right(item: Item, answers: Iterable[Answer]) -> int:
    """How many answers agree with what was measured."""
    return sum(item.measured.agrees(answer.guess) for answer in answers)


def _choices(item: Item, counted: list[list[Answer]], revealed: bool) -> dict[str, Any]:
    rows = []
    for letter, choice in zip(LETTERS, item.asked.choices, strict=False):
        bars = [{"sure": sum(a == (choice, True) for a in answers),
                 "unsure": sum(a == (choice, False) for a in answers)} for answers in counted]
        rows.append({"letter": letter, "text": choice, "bars": bars})
        if revealed:
            rows[-1]["right"] = item.measured.agrees(choice)
    return {"choices": rows}


def _numbers(item: Item, counted: list[list[Answer]], revealed: bool) -> dict[str, Any]:
    band = item.measured.right if revealed else ()
    low, high = span([a.guess for answers in counted for a in answers], band, item.asked.unit)
    plot: dict[str, Any] = {"low": low, "high": high, "unit": item.asked.unit, "rows": [
        _dots(answers, low, high) for answers in counted]}
    return {"dots": plot | ({"band": list(band)} if revealed else {})}


def span(numbers: list[float], band: tuple[float, ...], unit: str) -> tuple[float, float]:
    """The ends of the axis, which spans the band and the numbers near the median.

    Far ones are drawn at the edges, so that one joker does not squeeze the rest into one column.
    """
    kept = [*near(numbers, band), *band]
    if unit == "%" and all(0 <= n <= 100 for n in kept):
        return 0.0, 100.0
    low, high = (min(kept), max(kept)) if kept else (0.0, 1.0)
    # Two numbers that differ only in their last digit leave no room for ticks between them.
    narrow = high - low <= 1e-9 * max(abs(low), abs(high))
    edge = (abs(high) * 0.1 or 1.0) if narrow else (high - low) * 0.05
    return (0.0 if low >= 0 and low - edge < 0.3 * high else low - edge), high + edge


def near(numbers: list[float], band: tuple[float, ...]) -> list[float]:
    """The numbers not far from the median or the band, measured by the median distance."""
    if not numbers:
        return []
    middle = median(numbers)
    # If most agree on one number, the median distance is zero, and the number itself is the scale.
    reach = FAR * (median(abs(n - middle) for n in numbers) or abs(middle) or 1.0)
    low, high = min(middle - reach, *band, middle), max(middle + reach, *band, middle)
    return [n for n in numbers if low <= n <= high]


def _dots(answers: list[Answer], low: float, high: float) -> dict[str, Any]:
    """Columns of dots from 0 to DOTS - 1: how many sure and not sure; how many lie outside."""
    columns: dict[int, list[int]] = {}
    for answer in answers:
        place = round((min(max(answer.guess, low), high) - low) / (high - low) * (DOTS - 1))
        columns.setdefault(place, [0, 0])[0 if answer.sure else 1] += 1
    return {"columns": [[k, *columns[k]] for k in sorted(columns)],
            "below": sum(a.guess < low for a in answers),
            "above": sum(a.guess > high for a in answers)}


def flow(item: Item, first: dict[str, Answer], last: dict[str, Answer]) -> dict[str, Any]:
    """Who changed to what: names, and how many went from each to each, of those in both rounds."""
    names = ([*LETTERS[:len(item.asked.choices)]] if item.asked.choices
             else ["right", "not right"])
    counts = Counter((_kind(item, first[who]), _kind(item, last[who]))
                     for who in first.keys() & last.keys())
    size = range(len(names))
    return {"names": names, "counts": [[counts[a, b] for b in size] for a in size]}


def _kind(item: Item, answer: Answer) -> int:
    if item.asked.choices:
        return item.asked.choices.index(answer.guess)
    return 0 if item.measured.agrees(answer.guess) else 1


def advice(item: Item, answers: Iterable[Answer]) -> str:
    """What the presenter should do after the first counts, by the rule of peer instruction."""
    answers = list(answers)
    if not answers:
        return "Nobody has answered."
    share = right(item, answers) / len(answers)
    said = f"{right(item, answers)} of {len(answers)} are right"
    if share < SOME_RIGHT:
        return f"{said}: too few to convince each other. Give a hint, then ask again."
    if share > MANY_RIGHT:
        return f"{said}: most know it. Reveal, and let one of them say why."
    return f"{said}: let neighbours with different answers convince each other, then ask again."


# ---- an exercise

class Stuck(NamedTuple):
    """A named mistake, how many are on it, and what to ask them."""

    name: str
    count: int
    ask: str


def exercise_view(room: Room, trap: str) -> dict[str, Any]:
    """Who has passed, who is trying, on which mistakes, with how many hints opened."""
    item, told = room.by_id[trap], room.verdicts.get(trap, {}).values()
    tried = [one for one in told if one.tries]
    trying = [one for one in tried if not one.passed]
    hints = Counter(room.hints.get(trap, {}).values())
    return {"solved": sum(one.passed for one in tried), "trying": len(trying),
            "unnamed": sum(not one.mistake for one in trying), "todo": len(told) - len(tried),
            "tries": sum(one.tries for one in tried),
            "mistakes": [one._asdict() for one in stuck(item, trying)],
            "hints": [sum(hints[n] for n in range(k, len(item.trap.hints) + 1))
                      for k in range(1, len(item.trap.hints) + 1)]}


def stuck(item: Item, trying: Iterable[Tried]) -> list[Stuck]:
    """The named mistakes of those who have not passed, the most frequent first."""
    counts = Counter(one.mistake for one in trying if one.mistake)
    return [Stuck(name, count, item.ask(name) or "")
            for name, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]
