"""Drawings of connections: ranks that send, blocks of a model, autograd graphs.

    draw_tree({"x": "2.0", "loss": "4.0"}, [("x", "loss")], title="One way", alt="x above loss.")

Every function takes title= (the finding) and alt= (what is seen, in words) and shows one figure,
5.2 inches wide, whose texts are readable on a phone. marks= names what is at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import numpy as np

from dlsys_helpers.drawing_canvas import (
    FAULT,
    KINDS,
    MARGIN,
    RIGHT,
    WIDTH,
    Sheet,
    need,
    need_known,
    panels,
    text_height,
    text_width,
    wrap,
)
from dlsys_helpers.plots import INK


def draw_ranks(steps: Mapping[str, Sequence[Sequence[str]]], *, title: str, alt: str,
               arrows: Mapping[str, Sequence[tuple[int, int, int]]] | None = None,
               marks: Mapping[str, Sequence[tuple[int, int]]] | None = None,
               ranks: Sequence[str] = ()) -> None:
    """Draw which rank holds which shard at each step of a collective, and what is sent.

    steps: name to a table [ranks][shards] of short labels; "" is empty. arrows: step to
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
    pitch, across = panels(len(steps), RIGHT - left, step * shape[1])
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

    diagrams: name to blocks; a tuple is drawn side by side, with "" for a wire and "+" for a sum.
    bypass: name to (from, to) positions in the column; downwards it is a residual path on the
    left, upwards a loop on the right. marks: name to the texts of blocks at fault.
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
    """Draw one diagram: its blocks from y downwards, their arrows, then the bypasses."""
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
    """Draw an autograd graph: inputs above, the loss below, cut edges dashed and crossed.

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
    for node in nodes:  # an input is just above its first user
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
