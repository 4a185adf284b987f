"""A canvas over matplotlib for drawings: texts, boxes and arrows in inches, y downwards.

Texts are measured before they are placed: they wrap, and what is below moves down. Fills are pale
and solid with dark text, lines and free texts mid-tone, so that one picture fits any background.
A fault has the fault's colour and a thick edge or a cross: colour is never the only sign.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator

from dlsys_helpers import plots
from dlsys_helpers.plots import INK

WIDTH, MARGIN, SIZE = 5.2, 0.06, 10  # inches, inches, points
RIGHT = WIDTH - 0.15
DARK, FAULT = "#1f2733", plots.COLOURS[5]
KINDS = plots.COLOURS[:5]  # the sixth is the fault's


def pale(colour: str, strength: float = 0.35) -> tuple[float, float, float]:
    """A colour mixed with white: solid, so that dark text is readable on it in any theme."""
    return tuple(1 - strength * (1 - part) for part in to_rgb(colour))


@functools.cache
def text_width(text: str, weight: str = "normal", size: float = SIZE) -> float:
    """The width of a text's longest line, in inches."""
    font = FontProperties(size=size, weight=weight)
    return max(text_to_path.get_text_width_height_descent(line, font, False)[0]
               for line in text.split("\n")) * 1.03 / 72


def text_height(text: str, size: float = SIZE) -> float:
    """The height of a text with all its lines, in inches."""
    return (text.count("\n") + 1) * size * 1.25 / 72


def wrap(text: str, width: float, weight: str = "normal", size: float = SIZE) -> str:
    """A text in lines no wider than `width` inches; a word that is wider breaks anywhere."""
    lines = []
    for paragraph in text.split("\n"):
        lines.append("")
        for word in paragraph.split(" "):
            joined = f"{lines[-1]} {word}".strip()
            if text_width(joined, weight, size) <= width:
                lines[-1] = joined
                continue
            lines.append("") if lines[-1] else None
            for letter in word:
                if lines[-1] and text_width(lines[-1] + letter, weight, size) > width:
                    lines.append("")
                lines[-1] += letter
    return "\n".join(lines)


def spread(labels: Sequence[tuple[float, str]], low: float,
           high: float) -> list[tuple[float, float, str]]:
    """Labels (x, text) without overlap between `low` and `high`: (x, middle of text, text)."""
    labels = sorted(labels)
    gap = 0.1
    if sum(text_width(text) + gap for _, text in labels) > high - low:
        labels = [(x, wrap(text, (high - low) / len(labels) - gap)) for x, text in labels]
    halves = [(text_width(text) + gap) / 2 for _, text in labels]
    middles, left = [], low
    for (x, _), half in zip(labels, halves, strict=True):
        middles.append(max(x, left + half))
        left = middles[-1] + half
    for k in reversed(range(len(middles))):
        middles[k] = min(middles[k], high - halves[k])
        high = middles[k] - halves[k]
    return [(x, middle, text) for (x, text), middle in zip(labels, middles, strict=True)]


def number(value: float) -> str:
    """Format with three digits; whole numbers below a million get no power of ten."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def as_array(values: object) -> np.ndarray:
    """Lists, arrays and tensors, of any dtype and on any device, as float64."""
    if hasattr(values, "detach"):
        values = values.detach().double().cpu()
    return np.asarray(values, dtype=float)


def need(holds: bool, what: str, got: object, expected: str) -> None:
    """Raise ValueError in the standard wording unless `holds` is true."""
    if not holds:
        raise ValueError(f"{what}: got {got!r}, expected {expected}.")


def need_known(what: str, names: object, known: Mapping | Sequence) -> None:
    """Raise ValueError for a name that the drawing does not have."""
    for name in names:
        need(name in known, what, name, "one of " + ", ".join(map(str, known)))


class Sheet:
    """A figure WIDTH inches wide; `bottom` is the lower end of what has been drawn."""

    def __init__(self, title: str, alt: str) -> None:
        need(bool(title.strip()), "title", title, "the finding in a sentence")
        need(bool(alt.strip()), "alt", alt, "a sentence on what the figure shows")
        self.alt, self.bottom = alt, 0.0
        self.figure = Figure(figsize=(WIDTH, 1), dpi=110, layout="none")
        self.figure.patch.set_alpha(0)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        lines = wrap(title, WIDTH - 2 * MARGIN, "bold", 11.5)
        self.text(MARGIN, 0.05, lines, weight="bold", size=11.5)
        self.bottom += 0.12

    def text(self, x: float, y: float, text: str, *, ha: str = "left", va: str = "top",
             colour: str = INK, weight: str = "normal", size: float = SIZE) -> None:
        """Write a text, by its top unless va says otherwise."""
        high = text_height(text, size)
        top = y - {"top": 0, "center": 0.5, "bottom": 1}[va] * high
        self.bottom = max(self.bottom, top + high)
        for n, line in enumerate(text.split("\n")):  # one by one: each on its baseline
            self.axes.text(x, top + (1.25 * n + 1) * size / 72, line, ha=ha, va="baseline",
                           color=colour, weight=weight, size=size, parse_math=False)

    def box(self, x: float, y: float, width: float, height: float, text: str = "", *,
            colour: str = KINDS[0], fill: object = None, fault: bool = False, empty: bool = False,
            hatch: str = "", label: str = "box") -> None:
        """A rounded box with its text in the middle; a fault is thick-edged, an empty one hollow.

        label: what it is, kept on the patch for code that reads the figure.
        """
        colour = FAULT if fault else colour
        self.axes.add_patch(FancyBboxPatch(
            (x, y), width, height, boxstyle=f"round,pad=0,rounding_size={min(0.04, height / 3)}",
            facecolor="none" if empty else fill or pale(colour), hatch=hatch,
            edgecolor=INK if empty and not fault else colour, label=label,
            linewidth=2.4 if fault else 0.6 if empty else 1))
        self.bottom = max(self.bottom, y + height)
        if text:
            self.text(x + width / 2, y + height / 2, text, ha="center", va="center",
                      colour=INK if empty else DARK, weight="bold" if fault else "normal")

    def bar(self, x: float, y: float, width: float, height: float, *,
            fault: bool = False) -> None:
        """A column of a plot: square and filled, hatched where it is at fault."""
        colour = FAULT if fault else KINDS[0]
        self.axes.add_patch(Rectangle((x, y), width, height, facecolor=pale(colour, 0.7),
                                      edgecolor=colour, hatch="//" if fault else "", label="bar"))
        self.bottom = max(self.bottom, y + height)

    def line(self, points: Sequence[tuple[float, float]], *, arrow: bool = False,
             colour: str = INK, dashed: bool = False, width: float = 1.3,
             label: str = "line") -> None:
        """A line through points, in inches, with an arrow's head at the last if asked for."""
        self.axes.add_patch(PathPatch(
            Path(points), fill=False, color=colour, linewidth=width, label=label,
            linestyle=(0, (4, 3)) if dashed else "-", capstyle="butt", joinstyle="round"))
        if arrow:
            (x1, y1), (x2, y2) = points[-2:]
            length = math.hypot(x2 - x1, y2 - y1)
            dx, dy = 0.09 * (x2 - x1) / length, 0.09 * (y2 - y1) / length
            self.axes.add_patch(Polygon(
                [(x2, y2), (x2 - dx - dy / 2.4, y2 - dy + dx / 2.4),
                 (x2 - dx + dy / 2.4, y2 - dy - dx / 2.4)], color=colour, linewidth=0,
                label="head"))
        self.bottom = max(self.bottom, *(y for _, y in points))

    def cross(self, x: float, y: float, reach: float, colour: str = DARK) -> None:
        """Draw a cross, the second sign of a fault."""
        for way in (-1, 1):
            self.line([(x - reach, y - way * reach), (x + reach, y + way * reach)],
                      colour=colour, width=1.8, label="cross")

    def show(self) -> None:
        """Give the figure its height and show it."""
        height = self.bottom + MARGIN
        self.figure.set_size_inches(WIDTH, height)
        self.axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        plots.show(self.figure, self.alt)


def panels(count: int, width: float, least: float) -> tuple[float, int]:
    """A grid of panels at least `least` inches wide: the pitch, and how many fit in a row."""
    across = max(1, min(count, int((width + 0.25) / (least + 0.25))))
    across = math.ceil(count / math.ceil(count / across))  # rows as even as possible
    return (width + 0.25) / across, across


def scaled(values: Sequence[float], left: float, log: bool = False) -> Callable[[float], float]:
    """Where a value lies between `left` and RIGHT; the smallest and largest are at the ends."""
    need(all(map(math.isfinite, values)), "values", list(values), "finite numbers")
    need(not log or min(values) > 0, "values", min(values), "numbers above 0 on a log scale")
    low, high = (f(map(math.log10, values)) if log else f(values) for f in (min, max))
    need(high > low, "values", [*values], "at least two that differ")

    def at(value: float) -> float:
        place = math.log10(value) if log else value
        return left + (place - low) / (high - low) * (RIGHT - 0.1 - left)
    at.low, at.high, at.log = low, high, log
    return at


def axis(sheet: Sheet, at: Callable[[float], float], left: float, unit: str) -> None:
    """An axis below all that is drawn: line, ticks, numbers, unit."""
    y = sheet.bottom + 0.06
    sheet.line([(left, y), (RIGHT - 0.1, y)], width=1)
    places = MaxNLocator(5, integer=at.log).tick_values(at.low, at.high)
    for place in places[(places >= at.low) & (places <= at.high)]:
        x = at(10.0 ** place if at.log else place)
        sheet.line([(x, y), (x, y + 0.05)], width=1)
        number = f"{place:.6g}" if not at.log else f"1e{place:.0f}" if place else "1"
        sheet.text(x, y + 0.07, number, ha="center")
    if at.log:
        unit = f"{unit} (log)".strip()
    if unit:
        sheet.text((left + RIGHT) / 2, sheet.bottom + 0.02, unit, ha="center")


def name_moments(sheet: Sheet, moments: Mapping[str, float], at: Callable, left: float) -> None:
    """The names of dashed lines, moved apart, with the lines' upper ends."""
    placed = spread([(at(value), name) for name, value in moments.items()], left, WIDTH - MARGIN)
    if placed:
        top = sheet.bottom + max(text_height(text) for *_, text in placed)
        for x, middle, text in placed:
            sheet.text(middle, top, text, ha="center", va="bottom")
            sheet.line([(middle, top + 0.02), (x, top + 0.12)], dashed=True)
        sheet.bottom = top + 0.12


def widest_part(low: float, high: float, moments: Sequence[float]) -> tuple[float, float]:
    """The widest part of a range between the dashed lines that cross it."""
    borders = [low, *sorted(x for x in moments if low < x < high), high]
    return max(pairwise(borders), key=lambda part: part[1] - part[0])
