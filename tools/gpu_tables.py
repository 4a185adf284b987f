"""Turn the tables of GPU sections into rows for a phone and a figure of predictions."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bs4 import BeautifulSoup

NEAR = 1.2                       # within 20 % counts as near
SIGN = "dlsys-gpu"               # the class of a GPU section's output
LEAST, MOST = 1 / 16, 16         # ends of the axis
WIDTH, LEFT, RIGHT, ROW, TOP = 440, 64, 30, 22, 6
BYTES = re.compile(r"\b(memory|MB|GB)\b")
COUNTED = "bytes held"           # counts, which stage 10 makes in the small and in the real stack
TICKS = {1 / 16: "1/16", 1 / 4: "1/4", 1: "as predicted", 4: "4 times", 16: "16 times"}


def labelled(text: str) -> str:
    """HTML whose GPU table cells name their column, which a phone shows."""
    if SIGN not in text:
        return text
    soup = BeautifulSoup(text, "html.parser")
    for box in soup.select(f".{SIGN}"):
        box["class"] = [SIGN, "rows"]
        table = box.find("table", recursive=False)
        head = [cell.text for cell in table.select("thead th")] if table else []
        for line in table.select("tbody tr") if table else ():
            for name, cell in zip(head, line.select("td"), strict=True):
                cell["data-label"] = name
                cell["style"] = cell["style"].partition(";")[0]  # keeps words whole
    return str(soup)


class Pair(NamedTuple):
    """A question of a GPU section with a number as its prediction and a measurement."""

    stage: str
    asked: str
    predicted: str
    measured: str
    above: str = ""                  # the question before it, if this one asks "the same"

    @property
    def ratio(self) -> float:
        """The measured number divided by the predicted one."""
        return _number(self.measured) / _number(self.predicted)

    @property
    def in_bytes(self) -> bool:
        return bool(BYTES.search(self.asked + self.above))

    @property
    def near(self) -> bool:
        return 1 / NEAR <= self.ratio <= NEAR


def pairs(stage: str, outputs: Iterator[str]) -> Iterator[Pair]:
    """The pairs in the tables of a lesson's GPU section, from the HTML of its stored outputs.

    Leaves out rows whose measurement is a count, too.
    """
    for output in outputs:
        if SIGN not in output:  # most outputs; parsing one takes a while
            continue
        table = BeautifulSoup(output, "html.parser").select_one(f".{SIGN} > table")
        head = [cell.text for cell in table.select("th")] if table else []
        if "measured" not in head:
            continue
        predicted = next(i for i, name in enumerate(head) if name.startswith("predicted"))
        last = ""
        for line in table.select("tbody tr"):
            cells = [cell.text for cell in line.select("td")]
            pair = Pair(stage, cells[0], cells[predicted], cells[head.index("measured")],
                        last if cells[0].endswith("the same") else "")
            last = pair.asked
            if COUNTED not in last and _number(pair.predicted) and _number(pair.measured):
                yield pair


def _number(text: str) -> float:
    """The number in a cell; 0 if the cell contains words, or more than a number."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0


def finding(found: Sequence[Pair]) -> str:
    """One sentence on what the figure shows."""
    kinds = [[p for p in found if p.in_bytes], [p for p in found if not p.in_bytes]]
    near = [sum(p.near for p in kind) for kind in kinds]
    return (f"Counted bytes were right within 20 % in {near[0]} of {len(kinds[0])} cases, other "
            f"predictions in {near[1]} of {len(kinds[1])}")


def drawing(found: Sequence[Pair]) -> str:
    """The figure as SVG, a row for each stage, in the colours of the page."""
    stages = sorted({pair.stage for pair in found})
    height = TOP + ROW * len(stages) + 40
    base = TOP + ROW * len(stages)
    parts = [f'<rect x="{_x(1 / NEAR):.1f}" y="{TOP}" width="{_x(NEAR) - _x(1 / NEAR):.1f}" '
             f'height="{base - TOP}" fill="currentColor" opacity="0.12"/>']
    for value, name in TICKS.items():
        parts += [f'<path d="M{_x(value):.1f} {TOP}V{base}" stroke="currentColor" opacity="0.25"/>',
                  _text(_x(value), base + 18, name, "middle")]
    parts.append(_text((_x(LEAST) + _x(MOST)) / 2, base + 36, "measured over predicted", "middle"))
    for row, stage in enumerate(stages):
        y = TOP + ROW * (row + 0.5)
        parts.append(_text(0, y + 4, f"Stage {int(stage)}", "start"))
        parts += [_mark(pair, y) for pair in found if pair.stage == stage]
    label = html.escape(f"{finding(found)}.")
    return (f'<svg class="dlsys-predicted" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="{label}" style="width:100%;max-width:36rem">{"".join(parts)}</svg>')


def _x(ratio: float) -> float:
    share = math.log(min(max(ratio, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" fill="currentColor" font-size="13" '
            f'text-anchor="{anchor}">{html.escape(words)}</text>')


def _mark(pair: Pair, y: float) -> str:
    """A square for bytes, a dot for times and rates; hover over it to see its question."""
    x = _x(pair.ratio)
    shape = (f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="none" '
             'stroke="currentColor" stroke-width="2">' if pair.in_bytes else
             f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="var(--pst-color-primary, #0072b2)" '
             'opacity="0.8">')
    said = html.escape(f"{pair.asked}: predicted {pair.predicted}, measured {pair.measured}")
    return f"{shape}<title>{said}</title>{'</rect>' if pair.in_bytes else '</circle>'}"


def furthest(found: Sequence[Pair], count: int = 8) -> list[Pair]:
    """The predictions that are furthest off, the worst first."""
    return sorted((pair for pair in found if not pair.near),
                  key=lambda pair: -abs(math.log(pair.ratio)))[:count]
