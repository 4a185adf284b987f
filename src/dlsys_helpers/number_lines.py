"""Drawings of numbers: ranges and levels on a line, a histogram, columns.

    draw_line({"float16": [(6.1e-5, 65504, "normal")]}, log=True, title="Narrow", alt="A bar.")

Every function takes title= (the finding) and alt= (what is seen, in words) and shows one figure,
5.2 inches wide, whose texts are readable on a phone. marks= names what is at fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from dlsys_helpers.drawing_canvas import (
    DARK,
    FAULT,
    KINDS,
    MARGIN,
    RIGHT,
    WIDTH,
    Sheet,
    as_array,
    axis,
    name_moments,
    need,
    need_known,
    number,
    scaled,
    spread,
    text_height,
    text_width,
    widest_part,
    wrap,
)
from dlsys_helpers.plots import INK


def draw_line(rows: Mapping[str, Sequence], *, title: str, alt: str, unit: str = "",
              log: bool = False, moments: Mapping[str, float] | None = None,
              marks: Collection[str] = ()) -> None:
    """Values and ranges on a number line: formats, grids of levels, loss scales, thresholds.

    rows: name to items, each a number (a level), (value, "label") or (low, high, "label").
    moments: label to a value, a dashed line over all rows. marks: labels of what is at fault.
    """
    moments, left = moments or {}, MARGIN + min(1.2, max(map(text_width, rows), default=0)) + 0.15
    parts = {name: [_item(name, item) for item in items] for name, items in rows.items()}
    need_known("marks", marks, [label for items in parts.values() for *_, label in items])
    values = [v for items in parts.values() for low, high, _ in items for v in (low, high)]
    need(bool(values), "rows", rows, "at least one value")
    at = scaled([*values, *moments.values()], left, log)
    sheet = Sheet(title, alt)
    name_moments(sheet, moments, at, left)
    for name, items in parts.items():
        _number_row(sheet, name, items, at, left, marks, [at(v) for v in moments.values()])
    axis(sheet, at, left, unit)
    sheet.show()


def _item(name: str, item: object) -> tuple[float, float, str]:
    """An item of a row as (low, high, label)."""
    parts = item if isinstance(item, tuple) else (item,)
    *numbers, label = parts if isinstance(parts[-1], str) else (*parts, "")
    need(len(numbers) in (1, 2) and numbers[0] <= numbers[-1], f"rows[{name!r}]", item,
         'a number, (value, "label") or (low, high, "label")')
    return float(numbers[0]), float(numbers[-1]), label


def _number_row(sheet: Sheet, name: str, items: Sequence[tuple[float, float, str]],
                at: Callable[[float], float], left: float, marks: Collection[str] = (),
                moments: Sequence[float] = ()) -> None:
    """One row: labels of points and of narrow ranges above it, those of wide ranges in it.

    moments: where dashed lines cross it, in inches; no text overlaps them.
    """
    rooms = {i: widest_part(at(i[0]), at(i[1]), moments) for i in items}
    inside = {i for i, (low, high) in rooms.items() if text_width(i[2], "bold") + 0.06 < high - low}
    above = spread([((at(i[0]) + at(i[1])) / 2, i[2]) for i in items if i[2] and i not in inside],
                   left - 0.1, WIDTH - MARGIN)
    y = sheet.bottom + 0.1
    if above:
        lift = y + max(text_height(text) for *_, text in above)
        y = lift + 0.12
        for x, middle, text in above:
            fault = text.replace("\n", " ") in marks
            sheet.text(middle, lift, text, ha="center", va="bottom",
                       colour=FAULT if fault else INK)
            sheet.line([(middle, lift + 0.02), (x, y)], width=0.8, label="leader")
    name = wrap(name, 1.2)
    high = max(0.24, text_height(name))
    sheet.text(left - 0.15, y + high / 2, name, ha="right", va="center")
    for item in items:
        low, up, label = item
        fault = bool(label) and label in marks
        if up == low:
            sheet.line([(at(low), y), (at(low), y + high)], width=3 if fault else 1.8,
                       colour=FAULT if fault else KINDS[1], label="level")
            continue
        sheet.box(at(low), y, at(up) - at(low), high, fault=fault, label="range")
        if item in inside:
            sheet.text(sum(rooms[item]) / 2, y + high / 2, label, ha="center", va="center",
                       colour=DARK, weight="bold" if fault else "normal")
    for x in moments:
        sheet.line([(x, y - 0.06), (x, y + high + 0.06)], dashed=True, label="moment")


def draw_histogram(values: object, *, title: str, alt: str, unit: str = "", bins: int = 50,
                   grids: Mapping[str, Sequence[float]] | None = None) -> None:
    """Draw how often each value occurs, and below that the levels that a quantizer offers.

    values: any shape, finite. grids: name to its levels, on the same axis as the histogram.
    """
    grids = grids or {}
    flat = as_array(values).ravel()
    need(flat.size > 0 and bool(np.isfinite(flat).all()), "values", flat.shape,
         "at least one value, all finite")
    counts, borders = np.histogram(flat, bins)
    left = MARGIN + min(1.2, max(map(text_width, grids), default=0)) + 0.15
    at = scaled([*borders, *(float(v) for grid in grids.values() for v in grid)], left)
    sheet = Sheet(title, alt)
    floor = sheet.bottom + 1.3
    for count, low, high in zip(counts, borders[:-1], borders[1:], strict=True):
        tall = 1.25 * count / counts.max()
        sheet.bar(at(low), floor - tall, at(high) - at(low), tall)
    sheet.bottom = floor
    for name, grid in grids.items():
        _number_row(sheet, name, [(float(v), float(v), "") for v in grid], at, left)
    axis(sheet, at, left, unit)
    sheet.show()


def plot_columns(values: Mapping[object, float], *, title: str, xlabel: str, ylabel: str, alt: str,
                 reference: tuple[float, str] | None = None, form: str = "",
                 marks: Collection[object] = ()) -> None:
    """Draw one column per name with its value above, and a dashed line to compare with.

    values: name to a finite number >= 0. reference: (value, label). form: of the numbers above
    the columns (".2f"), left out where one is too wide. marks: names of columns at fault, hatched.
    """
    heights = [float(v) for v in values.values()]
    need(bool(heights) and all(v >= 0 and math.isfinite(v) for v in heights), "values", heights,
         "finite numbers >= 0")
    need_known("marks", marks, values)
    sheet = Sheet(title, alt)
    sheet.text(MARGIN, sheet.bottom - 0.05, ylabel)
    line = wrap(reference[1], 1.15) if reference else ""
    right = RIGHT - (text_width(line) + 0.08 if line else 0)
    most = max(*heights, reference[0] if reference else 0, 1e-12)
    top, ticks = sheet.bottom + 0.2, MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(0, most)
    floor, scale = top + 1.7, 1.7 / most
    left = MARGIN + max(text_width(f"{tick:.6g}") for tick in ticks) + 0.08
    for tick in ticks[(ticks >= 0) & (ticks <= most)]:
        y = floor - tick * scale
        sheet.text(left - 0.08, y, f"{tick:.6g}", ha="right", va="center")
        sheet.line([(left, y), (right, y)], width=0.4, label="tick")
    pitch = (right - left) / len(values)
    if reference:
        y = floor - reference[0] * scale
        sheet.line([(left, y), (right, y)], dashed=True, label="reference")
        sheet.text(right + 0.06, y, line, va="center")
    for n, (name, height) in enumerate(values.items()):
        x, fault = left + (n + 0.5) * pitch, name in marks
        wide = min(0.62 * pitch, 0.6)
        sheet.bar(x - wide / 2, floor - height * scale, wide, height * scale, fault=fault)
        text, y = f"{height:{form}}" if form else number(height), floor - height * scale - 0.03
        if reference and abs(y - 0.09 - floor + reference[0] * scale) < 0.12:
            y = floor - reference[0] * scale - 0.03  # above the line, not on it
        if text_width(text, "bold") < pitch:
            sheet.text(x, y, text, ha="center", va="bottom", weight="bold",
                       colour=FAULT if fault else INK)
        sheet.text(x, floor + 0.05, wrap(str(name), pitch - 0.04), ha="center")
    sheet.text((left + right) / 2, sheet.bottom + 0.06, xlabel, ha="center")
    sheet.show()
