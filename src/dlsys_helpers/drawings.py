"""Drawings from a lesson's own numbers: cells of matrices, memory, time.

    draw_grids({"causal": torch.ones(4, 4).tril()}, title="Nobody looks ahead", alt="A triangle.")

Every function takes title= (the finding) and alt= (what is seen, in words) and shows one figure,
5.2 inches wide, whose texts are readable on a phone. marks= names what is at fault.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import numpy as np

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
    pale,
    panels,
    scaled,
    text_height,
    text_width,
    widest_part,
    wrap,
)
from dlsys_helpers.plots import INK

HATCHES = ("//", "..", "\\\\", "xx", "--")


def draw_grids(grids: Mapping[str, object], *, title: str, alt: str,
               marks: Mapping[str, object] | None = None,
               captions: Mapping[str, str] | None = None, rows: str = "", columns: str = "",
               row_names: Sequence[str] = (), column_names: Sequence[str] = (),
               values: bool = False, legend: str = "") -> None:
    """Matrices side by side as cells: who looks at whom, what is padded, which weights are zero.

    grids: name to a [rows, columns] matrix, bool or within 0..1; a cell is empty at 0. marks: name
    to a bool matrix of the same shape, whose cells are crossed; legend says what they are.
    rows, columns: what a row and a column is. values: write the numbers into the cells.
    """
    marks, captions = marks or {}, captions or {}
    need(bool(grids), "grids", grids, "at least one matrix")
    need_known("marks", marks, grids)
    need_known("captions", captions, grids)
    tables = {name: _matrix(name, grid) for name, grid in grids.items()}
    sheet = Sheet(title, alt)
    side = [*row_names] or [rows]
    left = MARGIN + max(map(text_width, side)) + 0.08 * any(side)
    least, most = (0.36, 0.5) if values else (0.11, 0.26)
    named = max((text_width(name) + 0.06 for name in column_names), default=0)
    least, most = max(least, min(named, 0.8)), max(most, named)
    widest = max(table.shape[1] for table in tables.values())
    pitch, across = panels(len(tables), RIGHT - left, widest * least)
    cell = min(most, (pitch - 0.25) / widest)
    over = [wrap(name, cell - 0.03) for name in column_names]
    above = 0.2 * bool(columns) + max(map(text_height, over), default=0) + 0.02
    names = [*tables]
    for first in range(0, len(names), across):
        batch = names[first:first + across]
        top = sheet.bottom
        heads = [wrap(name, pitch - 0.2, "bold") for name in batch]
        y = top + max(map(text_height, heads)) + 0.04 + above
        for k, text in enumerate(side):
            sheet.text(left - 0.08, y + (k + 0.5) * cell, text, ha="right", va="center")
        for n, (name, head) in enumerate(zip(batch, heads, strict=True)):
            x, table = left + n * pitch, tables[name]
            sheet.text(x, top, head, weight="bold")
            if columns:
                sheet.text(x, y - above, columns + " →")
            for k, text in enumerate(over):
                sheet.text(x + (k + 0.5) * cell, y - 0.02, text, ha="center", va="bottom")
            _cells(sheet, x, y, cell, table, _marked(name, marks.get(name), table), values)
            sheet.text(x, y + cell * len(table) + 0.03, wrap(captions.get(name, ""), pitch - 0.2))
        sheet.bottom += 0.1
    if legend:
        y = sheet.bottom
        _mark(sheet, MARGIN, y + 0.02, 0.14, "", crossed=not values, label="legend")
        sheet.text(MARGIN + 0.22, y, wrap(legend, WIDTH - 0.4))
    sheet.show()


def _matrix(name: str, grid: object) -> np.ndarray:
    table = as_array(grid)
    need(table.ndim == 2 and table.size > 0, f"grids[{name!r}]", table.shape,
         "a matrix [rows, columns]")
    need(bool(((table >= 0) & (table <= 1)).all()), f"grids[{name!r}]",
         (float(table.min()), float(table.max())), "bools or numbers within 0..1")
    return table


def _marked(name: str, marks: object, table: np.ndarray) -> np.ndarray:
    marked = np.zeros(table.shape, bool) if marks is None else as_array(marks) != 0
    need(marked.shape == table.shape, f"marks[{name!r}]", marked.shape, f"shape {table.shape}")
    return marked


def _cells(sheet: Sheet, x: float, y: float, cell: float, table: np.ndarray, marked: np.ndarray,
           values: bool) -> None:
    size = cell - min(0.03, cell / 8)
    for (r, k), value in np.ndenumerate(table):
        place, text = (x + k * cell, y + r * cell), ""
        if values and (value or marked[r, k]):
            text = f"{value:.2f}".lstrip("0") if 0.005 <= value < 0.995 else f"{value:.0f}"
        if marked[r, k]:
            _mark(sheet, *place, size, text, crossed=not values)
        else:
            sheet.box(*place, size, size, text, fill=pale(KINDS[0], 0.2 + 0.55 * value),
                      empty=value == 0, label="cell")


def _mark(sheet: Sheet, x: float, y: float, size: float, text: str, *, crossed: bool,
          label: str = "marked") -> None:
    """A cell at fault: crossed, or thick-edged where its number must be read."""
    sheet.box(x, y, size, size, text, fault=True, fill=FAULT if crossed else None, label=label)
    if crossed:
        sheet.cross(x + size / 2, y + size / 2, size * 0.24, "white")


def draw_boxes(stacks: Mapping[str, Mapping[str, float]], *, title: str, alt: str,
               unit: str = "GB", limit: float | None = None, limit_name: str = "limit") -> None:
    """Memory as stacks of boxes to scale, one column a name, its sum above.

    stacks: name to {part: size in `unit`}. limit: a dashed line; a sum above it is marked. A part
    too flat for its label is named below its column.
    """
    need(bool(stacks) and all(stacks.values()), "stacks", stacks, "a part in each stack")
    sizes = [size for parts in stacks.values() for size in parts.values()]
    need(all(s >= 0 and math.isfinite(s) for s in sizes), "sizes", sizes, "finite numbers >= 0")
    sheet = Sheet(title, alt)
    sums = {name: sum(parts.values()) for name, parts in stacks.items()}
    kinds = _kinds(part for parts in stacks.values() for part in parts)
    line = "" if limit is None else wrap(f"{limit_name}\n{number(limit)} {unit}", 0.8)
    room = RIGHT - MARGIN - (text_width(line) + 0.1 if line else 0)
    least = 0.12 + max(text_width(word, "bold") for name in (*stacks, *kinds)
                       for word in name.split())
    rows = math.ceil(len(stacks) / max(1, int(room / least)))
    across = math.ceil(len(stacks) / rows)
    pitch, tall = room / across, 2.3 if rows == 1 else 1.7
    scale = tall / max(*sums.values(), limit or 0, 1e-12)
    names = [*stacks]
    for first in range(0, len(names), across):
        floor = sheet.bottom + 0.22 + tall
        level = None if limit is None else floor - limit * scale
        for n, name in enumerate(names[first:first + across]):
            _stack(sheet, MARGIN + n * pitch, floor, min(pitch - 0.08, 1.5), scale, name,
                   stacks[name], kinds, level, unit)
        if line:
            sheet.line([(MARGIN, level), (MARGIN + room, level)], dashed=True, label="limit")
            sheet.text(MARGIN + room + 0.06, level, line, va="center")
    sheet.show()


def _stack(sheet: Sheet, x: float, floor: float, width: float, scale: float, name: str,
           parts: Mapping[str, float], kinds: Mapping[str, str], level: float | None,
           unit: str) -> None:
    """One column: its boxes upwards from the floor, its sum above, its name and the rest below."""
    y, middle, total = floor, x + width / 2, sum(parts.values())
    below = wrap(name, width, "bold")
    sheet.text(middle, floor + 0.05, below, ha="center", weight="bold")
    for part, size in parts.items():
        y -= size * scale
        text = wrap(f"{part} {number(size)}", width - 0.04)
        sheet.box(x, y, width, size * scale, colour=kinds[part], label="part")
        if text_height(text) < size * scale:
            sheet.text(middle, _aside(y, size * scale, text, level), text, ha="center",
                       va="center", colour=DARK)
        elif size:
            sheet.text(middle, floor + 0.07 + text_height(below), text, ha="center")
            below += "\n" + text
    over = level is not None and y < level - 1e-9
    if level is not None and abs(y - 0.12 - level) < 0.12:
        y = level  # the sum is above the line, not on it
    sheet.text(middle, y - 0.03, f"{total:.4g} {unit}" + " ✗" * over, ha="center", va="bottom",
               weight="bold", colour=FAULT if over else INK)


def _aside(y: float, high: float, text: str, line: float | None) -> float:
    """The middle of a text in a box from y up, clear of a line across the box if possible."""
    reach = text_height(text) / 2 + 0.04
    if line is None or abs(y + high / 2 - line) > reach:
        return y + high / 2
    return line + reach if y + high - line > line - y else line - reach


def _kinds(names: object) -> dict[str, str]:
    """A colour for each name, in the order of appearance."""
    return {name: KINDS[n % len(KINDS)] for n, name in enumerate(dict.fromkeys(names))}


def draw_lanes(lanes: Mapping[str, Sequence[tuple[float, float, str]]], *, title: str, alt: str,
               unit: str = "ms", moments: Mapping[str, float] | None = None,
               marks: Collection[str] = ()) -> None:
    """Draw time lanes that show who does what when: in a schedule, a pipeline, a stream.

    lanes: name to (start, end, label) spans in `unit`. Labels that differ only in number share a
    colour ("F0", "F1"); the legend explains one that does not fit by its hatch. moments: label
    to a time, drawn as a dashed line. marks: labels of the spans that are at fault.
    """
    spans = [span for lane in lanes.values() for span in lane]
    need(bool(spans), "lanes", lanes, "at least one (start, end, label)")
    for name, lane in lanes.items():
        for start, end, label in lane:
            need(end > start, f"lanes[{name!r}]", (start, end, label), "an end after the start")
        for one, two in pairwise(sorted(lane)):
            need(one[1] <= two[0] + 1e-9, f"lanes[{name!r}]", (one, two), "spans that do not meet")
    need_known("marks", marks, [label for *_, label in spans])
    sheet, moments = Sheet(title, alt), moments or {}
    left = MARGIN + min(1.3, max(map(text_width, lanes))) + 0.08
    at = scaled([*(s for s, _, _ in spans), *(e for _, e, _ in spans), *moments.values()], left)
    colours = _kinds(_kind(label) for *_, label in spans)
    name_moments(sheet, moments, at, left)
    top, told = sheet.bottom, {}
    for name, lane in lanes.items():
        y, text = sheet.bottom + 0.05, wrap(name, 1.3)
        high = max(0.3, text_height(text))
        sheet.text(left - 0.08, y + high / 2, text, ha="right", va="center")
        for start, end, label in lane:
            kind, weight = _kind(label), "bold" if label in marks else "normal"
            room = widest_part(at(start), at(end), [*map(at, moments.values())])
            fits = text_width(label, weight) + 0.02 < room[1] - room[0]
            hatch = "" if fits else HATCHES[[*colours].index(kind) % len(HATCHES)]
            told |= {} if fits else {kind: hatch}
            sheet.box(at(start), y, at(end) - at(start), high, colour=colours[kind],
                      fault=label in marks, hatch=hatch, label="span")
            if fits:
                sheet.text(sum(room) / 2, y + high / 2, label, ha="center", va="center",
                           colour=DARK, weight=weight)
    for time in moments.values():
        sheet.line([(at(time), top), (at(time), sheet.bottom)], dashed=True, label="moment")
    axis(sheet, at, left, unit)
    if told:
        _legend(sheet, told, colours, {_kind(label) for label in marks})
    sheet.show()


def _kind(label: str) -> str:
    return label.rstrip("0123456789 ") or label


def _legend(sheet: Sheet, hatches: Mapping[str, str], colours: Mapping[str, str],
            faults: Collection[str] = ()) -> None:
    """A swatch and a name for each kind, in lines; a kind at fault looks as it does above."""
    x, y = MARGIN, sheet.bottom + 0.05
    for kind, colour in colours.items():
        text = wrap(kind, WIDTH - 0.4)
        if x > MARGIN and x + 0.35 + text_width(text) > RIGHT:
            x, y = MARGIN, sheet.bottom + 0.03
        sheet.box(x, y + 0.03, 0.14, 0.12, label="legend", hatch=hatches.get(kind, ""),
                  colour=colour, fault=kind in faults)
        sheet.text(x + 0.2, y, text)
        x += 0.35 + text_width(text)
