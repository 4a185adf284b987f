"""Drawings of ideas from a lesson's own numbers: one function each, the finding as title.

    draw_grids({"causal": torch.ones(4, 4).tril()}, title="Nobody looks ahead", alt="A triangle.")

Every function takes title= (the finding) and alt= (what is seen, in words) and shows one figure,
5.2 inches wide, whose texts are readable on a phone. marks= names what is at fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.ticker import MaxNLocator

from dlsys_helpers.plots import INK
from dlsys_helpers.sheet import (
    FAULT,
    KINDS,
    MARGIN,
    WIDTH,
    Sheet,
    need,
    need_known,
    pale,
    spread,
    text_height,
    text_width,
    wrap,
)

RIGHT = WIDTH - 0.15
HATCHES = ("//", "..", "\\\\", "xx", "--")


# ---- grids

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
    least, most = (0.36, 0.5) if values or column_names else (0.13, 0.26)
    widest = max(table.shape[1] for table in tables.values())
    pitch, across = _pitch(len(tables), RIGHT - left, widest * least)
    cell = min(most, (pitch - 0.25) / widest)
    above = 0.2 * bool(columns) + 0.2 * bool(column_names)
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
            for k, text in enumerate(column_names):
                sheet.text(x + (k + 0.5) * cell, y - 0.02, text, ha="center", va="bottom")
            _cells(sheet, x, y, cell, table, _marked(name, marks.get(name), table), values)
            sheet.text(x, y + cell * len(table) + 0.03, wrap(captions.get(name, ""), pitch - 0.2))
        sheet.bottom += 0.1
    if legend:
        _legend(sheet, {legend: ""}, fault=True)
    sheet.show()


def _matrix(name: str, grid: object) -> np.ndarray:
    table = np.asarray(grid, dtype=float)
    need(table.ndim == 2 and table.size > 0, f"grids[{name!r}]", table.shape,
         "a matrix [rows, columns]")
    need(bool(((table >= 0) & (table <= 1)).all()), f"grids[{name!r}]",
         (float(table.min()), float(table.max())), "bools or numbers within 0..1")
    return table


def _marked(name: str, marks: object, table: np.ndarray) -> np.ndarray:
    marked = np.zeros(table.shape, bool) if marks is None else np.asarray(marks, dtype=bool)
    need(marked.shape == table.shape, f"marks[{name!r}]", marked.shape, f"shape {table.shape}")
    return marked


def _cells(sheet: Sheet, x: float, y: float, cell: float, table: np.ndarray, marked: np.ndarray,
           values: bool) -> None:
    size = cell - min(0.03, cell / 8)
    for (r, k), value in np.ndenumerate(table):
        place = (x + k * cell, y + r * cell)
        fill = pale(KINDS[0], 0.2 + 0.55 * value)
        text = f"{value:.2f}".replace("0.", ".").replace("1.00", "1") if values and value else ""
        if marked[r, k]:
            sheet.box(*place, size, size, text, fault=True, label="marked",
                      fill=None if values else FAULT)
            if not values:
                sheet.cross(place[0] + size / 2, place[1] + size / 2, size * 0.24, "white")
        else:
            sheet.box(*place, size, size, text, fill=fill, empty=value == 0, label="cell")


def _pitch(count: int, width: float, least: float) -> tuple[float, int]:
    """How far apart panels at least `least` inches wide lie, and how many stand in a row."""
    across = max(1, min(count, int((width + 0.25) / (least + 0.25))))
    across = math.ceil(count / math.ceil(count / across))  # as many in each row as can be
    return (width + 0.25) / across, across


def _legend(sheet: Sheet, names: Mapping[str, str], *, fault: bool = False) -> None:
    """A swatch and a name each, in lines; names: to the hatch of the swatch."""
    x, y = MARGIN, sheet.bottom
    for n, (name, hatch) in enumerate(names.items()):
        text = wrap(name, WIDTH - 0.4)
        if x > MARGIN and x + 0.35 + text_width(text) > RIGHT:
            x, y = MARGIN, sheet.bottom + 0.03
        sheet.box(x, y + 0.03, 0.14, 0.12, label="swatch", hatch=hatch, fault=fault,
                  colour=KINDS[n % len(KINDS)], fill=FAULT if fault else None)
        if fault:
            sheet.cross(x + 0.07, y + 0.09, 0.035, "white")
        sheet.text(x + 0.2, y, text)
        x += 0.35 + text_width(text)


# ---- boxes of memory, lanes of time

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
    top, tall = sheet.bottom + 0.22, 2.3
    floor, scale = top + tall, tall / max(*sums.values(), limit or 0, 1e-12)
    line = "" if limit is None else wrap(f"{limit_name}\n{limit:.4g} {unit}", 0.8)
    pitch = (RIGHT - MARGIN - (text_width(line) + 0.1 if line else 0)) / len(stacks)
    width = min(pitch - 0.12, 1.5)
    for n, (name, parts) in enumerate(stacks.items()):
        x, y = MARGIN + n * pitch, floor
        over = limit is not None and sums[name] > limit
        below = wrap(name, width, "bold")
        sheet.text(x + width / 2, floor + 0.05, below, ha="center", weight="bold")
        flat = []
        for part, size in parts.items():
            y -= size * scale
            text = f"{part} {size:.3g}"
            fits = text_width(text) + 0.06 < width and size * scale > 0.165
            text = text if fits else wrap(text, width - 0.06)
            fits = fits or text_height(text) < size * scale
            flat += [] if fits or not size else [text]
            sheet.box(x, y, width, size * scale, text if fits else "", colour=kinds[part],
                      label="part")
        for text in flat:
            sheet.text(x + width / 2, floor + 0.07 + text_height(below), text, ha="center")
            below += "\n" + text
        total = f"{sums[name]:.4g} {unit}" + (" ✗" if over else "")
        sheet.text(x + width / 2, y - 0.03, total, ha="center", va="bottom", weight="bold",
                   colour=FAULT if over else INK)
    if line:
        y = floor - limit * scale
        sheet.line([(MARGIN, y), (MARGIN + len(stacks) * pitch, y)], dashed=True, label="limit")
        sheet.text(MARGIN + len(stacks) * pitch + 0.06, y, line, va="center")
    sheet.show()


def _kinds(names: object) -> dict[str, str]:
    """A colour for each name, in the order of appearance."""
    return {name: KINDS[n % len(KINDS)] for n, name in enumerate(dict.fromkeys(names))}


def draw_lanes(lanes: Mapping[str, Sequence[tuple[float, float, str]]], *, title: str, alt: str,
               unit: str = "ms", moments: Mapping[str, float] | None = None,
               marks: Collection[str] = ()) -> None:
    """Lanes of time: who does what when, in a schedule, a pipeline, on a stream.

    lanes: name to (start, end, label) spans in `unit`. Labels that differ in their number have one
    colour ("F0", "F1"); one that does not fit is told by the hatch in the legend. moments: label
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
    at = _scale([*(s for s, _, _ in spans), *(e for _, e, _ in spans), *moments.values()], left)
    colours = _kinds(_kind(label) for *_, label in spans)
    _moments(sheet, moments, at, left)
    top, told = sheet.bottom, {}
    for name, lane in lanes.items():
        y, text = sheet.bottom + 0.05, wrap(name, 1.3)
        high = max(0.3, text_height(text))
        sheet.text(left - 0.08, y + high / 2, text, ha="right", va="center")
        for start, end, label in lane:
            kind, wide = _kind(label), at(end) - at(start)
            fits = text_width(label, "bold" if label in marks else "normal") + 0.04 < wide
            hatch = "" if fits else HATCHES[[*colours].index(kind) % len(HATCHES)]
            told |= {} if fits else {kind: hatch}
            sheet.box(at(start), y, wide, high, label if fits else "", colour=colours[kind],
                      fault=label in marks, hatch=hatch, label="span")
    for time in moments.values():
        sheet.line([(at(time), top), (at(time), sheet.bottom)], dashed=True, label="moment")
    _axis(sheet, at, left, unit)
    if told:
        sheet.bottom += 0.05
        _legend(sheet, {kind: told.get(kind, "") for kind in colours})
    sheet.show()


def _kind(label: str) -> str:
    return label.rstrip("0123456789 ") or label


def _scale(values: Sequence[float], left: float, log: bool = False) -> Callable[[float], float]:
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


def _axis(sheet: Sheet, at: Callable[[float], float], left: float, unit: str) -> None:
    """An axis below all that is drawn: line, ticks, numbers, unit."""
    y = sheet.bottom + 0.06
    sheet.line([(left, y), (RIGHT - 0.1, y)], width=1)
    places = MaxNLocator(5, integer=at.log).tick_values(at.low, at.high)
    for place in places[(places >= at.low) & (places <= at.high)]:
        x = at(10.0 ** place if at.log else place)
        sheet.line([(x, y), (x, y + 0.05)], width=1)
        sheet.text(x, y + 0.07, f"1e{place:.0f}" if at.log else f"{place:.6g}", ha="center")
    if unit or at.log:
        sheet.text((left + RIGHT) / 2, sheet.bottom + 0.02, f"{unit} (log)" if at.log else unit,
                   ha="center")


def _moments(sheet: Sheet, moments: Mapping[str, float], at: Callable, left: float) -> None:
    """The names of dashed lines, moved apart, with the lines' upper ends."""
    placed = spread([(at(value), name) for name, value in moments.items()], left, WIDTH - MARGIN)
    if placed:
        top = sheet.bottom + max(text_height(text) for *_, text in placed)
        for x, middle, text in placed:
            sheet.text(middle, top, text, ha="center", va="bottom")
            sheet.line([(middle, top + 0.02), (x, top + 0.12)], dashed=True)
        sheet.bottom = top + 0.12


# ---- ranks, blocks, trees

def draw_ranks(steps: Mapping[str, Sequence[Sequence[str]]], *, title: str, alt: str,
               arrows: Mapping[str, Sequence[tuple[int, int, int]]] | None = None,
               marks: Mapping[str, Sequence[tuple[int, int]]] | None = None,
               ranks: Sequence[str] = ()) -> None:
    """Who holds which shard at each step of a collective, and what is sent.

    steps: name to a table [ranks][shards] of short labels; "" is nothing held. arrows: step to
    (from rank, to rank, shard). marks: step to (rank, shard) at fault. ranks: their names.
    """
    arrows, marks = arrows or {}, marks or {}
    need(bool(steps), "steps", steps, "at least one table")
    need_known("arrows", arrows, steps)
    need_known("marks", marks, steps)
    tables = [*steps.values()]
    shape = (len(tables[0]), len(tables[0][0]))
    for name, table in steps.items():
        got = (len(table), *{len(row) for row in table})
        need(got == shape, f"steps[{name!r}]", got, f"{shape[0]} ranks of {shape[1]} shards")
    for name, places in [(n, (a[0], a[2])) for n in arrows for a in arrows[n]] + [
            (n, (a[1], a[2])) for n in arrows for a in arrows[n]] + [
            (n, place) for n in marks for place in marks[n]]:
        need(0 <= places[0] < shape[0] and 0 <= places[1] < shape[1], f"{name!r}", places,
             f"a rank below {shape[0]} and a shard below {shape[1]}")
    sheet = Sheet(title, alt)
    ranks = [*ranks] or [f"rank {n}" for n in range(shape[0])]
    need(len(ranks) == shape[0], "ranks", ranks, f"{shape[0]} names")
    left = MARGIN + max(map(text_width, ranks)) + 0.1
    cell = max(0.26, 0.12 + max(text_width(t, "bold") for table in tables for row in table
                                for t in row))
    step, tall = cell + 0.12, 0.26 + (0.16 if arrows else 0.06)
    pitch, across = _pitch(len(steps), RIGHT - left, step * shape[1])
    step = min(step, (pitch - 0.1) / shape[1])
    names = [*steps]
    for first in range(0, len(names), across):
        top = sheet.bottom
        heads = [wrap(name, pitch - 0.2, "bold") for name in names[first:first + across]]
        y = top + max(map(text_height, heads)) + 0.05
        for r, rank in enumerate(ranks):
            sheet.text(left - 0.1, y + r * tall + 0.13, rank, ha="right", va="center")
        for n, head in enumerate(heads):
            x, name = left + n * pitch, names[first + n]
            sheet.text(x, top, head, weight="bold")
            for r, row in enumerate(steps[name]):
                for k, text in enumerate(row):
                    sheet.box(x + k * step, y + r * tall, step - 0.12, 0.26, text,
                              colour=KINDS[k % len(KINDS)], empty=not text, label="shard",
                              fault=(r, k) in marks.get(name, ()))
            for source, target, k in arrows.get(name, ()):
                _send(sheet, x + k * step, step - 0.12, y, tall, source, target)
        sheet.bottom += 0.14
    sheet.show()


def _send(sheet: Sheet, x: float, wide: float, y: float, tall: float, source: int,
          target: int) -> None:
    """An arrow between two ranks' cells: straight to a neighbour, else along the cells' side."""
    one, two = y + source * tall, y + target * tall
    if abs(source - target) == 1:
        down = target > source
        points = [(x + wide / 2, one + 0.26 * down), (x + wide / 2, two + 0.26 * (not down))]
    else:
        side = x + wide + 0.06
        points = [(x + wide, one + 0.13), (side, one + 0.13), (side, two + 0.13),
                  (x + wide, two + 0.13)]
    sheet.line(points, arrow=True, label="arrow")


def draw_blocks(diagrams: Mapping[str, Sequence[str | tuple[str, ...]]], *, title: str, alt: str,
                bypass: Mapping[str, Sequence[tuple[int, int]]] | None = None,
                marks: Mapping[str, Collection[str]] | None = None,
                captions: Mapping[str, str] | None = None) -> None:
    """Block diagrams side by side, each a column of blocks with arrows downwards.

    diagrams: name to blocks; a tuple stands side by side, "" in it is only a wire, "+" a sum.
    bypass: name to (from, to) places in the column; downwards it is a residual path, on the left,
    upwards a loop, on the right. marks: name to the texts of blocks at fault.
    """
    bypass, marks, captions = bypass or {}, marks or {}, captions or {}
    need(bool(diagrams) and all(diagrams.values()), "diagrams", diagrams, "a block in each")
    for what, names in (("bypass", bypass), ("marks", marks), ("captions", captions)):
        need_known(what, names, diagrams)
    sheet = Sheet(title, alt)
    pitch = (RIGHT - MARGIN + 0.15) / len(diagrams)
    top = sheet.bottom
    heads = {name: wrap(name, pitch - 0.2, "bold") for name in diagrams}
    start = top + max(map(text_height, heads.values())) + 0.08
    for n, (name, column) in enumerate(diagrams.items()):
        x = MARGIN + n * pitch
        sheet.text(x, top, heads[name], weight="bold")
        rows = [row if isinstance(row, tuple) else (row,) for row in column]
        need_known(f"marks[{name!r}]", marks.get(name, ()), [t for row in rows for t in row])
        _column(sheet, x, start, min(pitch - 0.15, 3.2), rows, bypass.get(name, ()),
                marks.get(name, ()))
    under = sheet.bottom + 0.06
    for n, name in enumerate(diagrams):
        sheet.text(MARGIN + n * pitch, under, wrap(captions.get(name, ""), pitch - 0.2))
    sheet.show()


def _column(sheet: Sheet, x: float, y: float, width: float, rows: Sequence[tuple[str, ...]],
            bypass: Sequence[tuple[int, int]], marks: Collection[str]) -> None:
    """One diagram: its blocks from y downwards, their arrows, then the ways around them."""
    for a, b in bypass:
        need(0 <= a < len(rows) and 0 <= b < len(rows) and a != b, "bypass", (a, b),
             f"two different places below {len(rows)}")
    x += 0.22 * any(a < b for a, b in bypass)
    width -= 0.22 * (any(a < b for a, b in bypass) + any(a > b for a, b in bypass))
    ends: list[tuple[float, float]] = []
    before: list[tuple[float, float]] = []
    for row in rows:
        wide = width / len(row)
        texts = [wrap(text, wide - 0.2, "bold" if text in marks else "normal") for text in row]
        high = max(0.24 if text == "+" else text_height(text) + 0.1 for text in texts)
        middles = [x + (k + 0.5) * wide for k in range(len(row))]
        for k, middle in enumerate(middles):
            pairs = before if len(before) != len(row) else before[k:k + 1]
            for a, b in pairs:
                sheet.line([(a, b), (middle, y)], arrow=bool(row[k]), label="arrow")
            if not row[k]:
                sheet.line([(middle, y), (middle, y + high)])
                continue
            half = 0.12 if row[k] == "+" else wide / 2 - 0.05
            sheet.box(middle - half, y, 2 * half, high, texts[k], fault=row[k] in marks,
                      colour=KINDS[2] if row[k] == "+" else KINDS[0], label="block")
        ends.append((half if len(row) == 1 else width / 2 - 0.05, y + high / 2))
        before = [(middle, y + high) for middle in middles]
        y += high + 0.2
    for a, b in bypass:
        (one, start), (two, end) = ends[a], ends[b]
        way, side = (-1, x - 0.14) if a < b else (1, x + width + 0.14)
        centre = x + width / 2
        sheet.line([(centre + way * one, start), (side, start), (side, end),
                    (centre + way * two, end)], arrow=True, label="bypass")


def draw_tree(nodes: Mapping[str, str], edges: Sequence[tuple[str, str]], *, title: str, alt: str,
              cuts: Collection[tuple[str, str]] = (), marks: Collection[str] = (),
              cut_name: str = "cut: no gradient passes") -> None:
    """A graph of autograd: inputs above, the loss below, cut edges dashed and crossed.

    nodes: name to what is written under it (value, gradient), or "". edges: (from, to). cuts:
    those edges that pass no gradient. marks: nodes at fault.
    """
    for edge in edges:
        need_known(f"edge {edge}", edge, nodes)
    need_known("cuts", cuts, edges)
    need_known("marks", marks, nodes)
    layers = _layers(nodes, edges)
    sheet = Sheet(title, alt)
    y, places, wires = sheet.bottom, {}, {}
    for layer in layers:
        pitch = (WIDTH - 2 * MARGIN) / len(layer)
        texts = {n: wrap(f"{n}\n{nodes[n]}".strip(), pitch - 0.25, "bold")
                 for n in layer if n in nodes}
        high = max(map(text_height, texts.values())) + 0.1
        for k, node in enumerate(layer):
            middle = MARGIN + (k + 0.5) * pitch
            places[node] = (middle, y, y + high)
            if node in nodes:
                wide = text_width(texts[node], "bold") + 0.18
                first = not any(b == node for _, b in edges)
                sheet.box(middle - wide / 2, y, wide, high, texts[node], fault=node in marks,
                          colour=KINDS[2] if first else KINDS[0], label="node")
        y += high + 0.4
    for a, b in edges:
        wires[a, b] = [(places[a][0], places[a][2])]
        for node in (n for n in places if n[1:] == (a, b)):
            wires[a, b] += [(places[node][0], y) for y in places[node][1:]]
        wires[a, b].append((places[b][0], places[b][1]))
    for edge, points in wires.items():
        cut = edge in cuts
        sheet.line(points, arrow=True, dashed=cut, colour=FAULT if cut else INK, label="edge")
        if cut:
            (x1, y1), (x2, y2) = points[-2:]
            sheet.cross((x1 + x2) / 2, (y1 + y2) / 2, 0.06, FAULT)
    if cuts:
        y = sheet.bottom + 0.1
        sheet.cross(MARGIN + 0.07, y + 0.09, 0.06, FAULT)
        sheet.text(MARGIN + 0.2, y, wrap(cut_name, WIDTH - 0.4))
    sheet.show()


def _layers(nodes: Mapping[str, str], edges: Sequence[tuple[str, str]]) -> list[list]:
    """Nodes by depth, each under its inputs; an edge over several layers has a place in each."""
    depth = dict.fromkeys(nodes, 0)
    for _ in nodes:
        for a, b in edges:
            depth[b] = max(depth[b], depth[a] + 1)
    need(all(depth[a] < depth[b] for a, b in edges), "edges", edges, "no circle")
    for node in nodes:  # an input stands just above its first user
        users = [depth[b] for a, b in edges if a == node]
        if users and not any(b == node for _, b in edges):
            depth[node] = min(users) - 1
    layers: list[list] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for node in nodes:
        layers[depth[node]].append(node)
    links = []
    for a, b in edges:
        chain = [a, *((level, a, b) for level in range(depth[a] + 1, depth[b])), b]
        for level, node in zip(range(depth[a] + 1, depth[b]), chain[1:-1], strict=True):
            layers[level].append(node)
        links += pairwise(chain)
    for above, layer in pairwise(layers):
        x = {node: (k + 0.5) / len(above) for k, node in enumerate(above)}
        layer.sort(key=lambda n: np.mean([x[a] for a, b in links if b == n and a in x] or [1.0]))
    return layers


# ---- numbers

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
    at = _scale([*values, *moments.values()], left, log)
    sheet = Sheet(title, alt)
    _moments(sheet, moments, at, left)
    top = sheet.bottom
    for name, items in parts.items():
        _number_row(sheet, name, items, at, left, marks)
    for value in moments.values():
        sheet.line([(at(value), top), (at(value), sheet.bottom + 0.06)], dashed=True,
                   label="moment")
    _axis(sheet, at, left, unit)
    sheet.show()


def _item(name: str, item: object) -> tuple[float, float, str]:
    """An item of a row as (low, high, label)."""
    parts = item if isinstance(item, tuple) else (item,)
    *numbers, label = parts if isinstance(parts[-1], str) else (*parts, "")
    need(len(numbers) in (1, 2) and numbers[0] <= numbers[-1], f"rows[{name!r}]", item,
         'a number, (value, "label") or (low, high, "label")')
    return float(numbers[0]), float(numbers[-1]), label


def _number_row(sheet: Sheet, name: str, items: Sequence[tuple[float, float, str]],
                at: Callable[[float], float], left: float, marks: Collection[str]) -> None:
    """One row: labels of points and of narrow ranges above it, those of wide ranges in it."""
    inside = {i for i in items if i[1] > i[0] and text_width(i[2], "bold") + 0.08 < at(i[1])
              - at(i[0])}
    above = spread([(at((low * high) ** 0.5 if at.log else (low + high) / 2), label)
                    for low, high, label in items if label and (low, high, label) not in inside],
                   left - 0.1, WIDTH - MARGIN)
    y = sheet.bottom + 0.1
    if above:
        lift = y + max(text_height(text) for *_, text in above)
        y = lift + 0.12
        for x, middle, text in above:
            sheet.text(middle, lift, text, ha="center", va="bottom")
            sheet.line([(middle, lift + 0.02), (x, y)], width=0.8, label="leader")
    name = wrap(name, 1.2, "normal")
    high = max(0.24, text_height(name))
    sheet.text(left - 0.15, y + high / 2, name, ha="right", va="center")
    for low, up, label in items:
        fault = label in marks and bool(label)
        if up > low:
            sheet.box(at(low), y, at(up) - at(low), high, label if (low, up, label) in inside
                      else "", fault=fault, label="range")
        else:
            sheet.line([(at(low), y), (at(low), y + high)], width=3 if fault else 1.8,
                       colour=FAULT if fault else KINDS[1], label="level")


def draw_histogram(values: object, *, title: str, alt: str, unit: str = "", bins: int = 50,
                   grids: Mapping[str, Sequence[float]] | None = None) -> None:
    """How often which value occurs, and below it the levels that a quantiser offers.

    values: any shape, finite. grids: name to its levels, on the same axis as the histogram.
    """
    grids = grids or {}
    flat = np.asarray(values, dtype=float).ravel()
    need(flat.size > 0 and bool(np.isfinite(flat).all()), "values", flat.shape,
         "at least one value, all finite")
    counts, borders = np.histogram(flat, bins)
    left = MARGIN + min(1.2, max(map(text_width, grids), default=0)) + 0.15
    at = _scale([*borders, *(float(v) for grid in grids.values() for v in grid)], left)
    sheet = Sheet(title, alt)
    floor = sheet.bottom + 1.3
    for count, low, high in zip(counts, borders[:-1], borders[1:], strict=True):
        tall = 1.25 * count / counts.max()
        sheet.bar(at(low), floor - tall, at(high) - at(low), tall)
    sheet.bottom = floor
    for name, grid in grids.items():
        _number_row(sheet, name, [(float(v), float(v), "") for v in grid], at, left, ())
    _axis(sheet, at, left, unit)
    sheet.show()


def plot_columns(values: Mapping[object, float], *, title: str, xlabel: str, ylabel: str, alt: str,
                 reference: tuple[float, str] | None = None,
                 marks: Collection[object] = ()) -> None:
    """One column a name with its value above, and a dashed line to compare with.

    values: name to a finite number >= 0. reference: (value, label). marks: names of columns at
    fault, hatched.
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
    top, ticks = sheet.bottom + 0.2, MaxNLocator(4).tick_values(0, most)
    floor, scale = top + 1.7, 1.7 / most
    left = MARGIN + max(text_width(f"{tick:.4g}") for tick in ticks) + 0.08
    for tick in ticks[(ticks >= 0) & (ticks <= most)]:
        y = floor - tick * scale
        sheet.text(left - 0.08, y, f"{tick:.4g}", ha="right", va="center")
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
        if text_width(f"{height:.3g}", "bold") < pitch:
            sheet.text(x, floor - height * scale - 0.03, f"{height:.3g}", ha="center", va="bottom",
                       weight="bold", colour=FAULT if fault else INK)
        sheet.text(x, floor + 0.05, wrap(str(name), pitch - 0.04), ha="center")
    sheet.text((left + right) / 2, sheet.bottom + 0.06, xlabel, ha="center")
    sheet.show()
