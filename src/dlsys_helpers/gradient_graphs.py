"""A graph with its backward pass: values go down, gradients come up, each arrow has a factor.

    draw_backward({"x": "2", "L": "4"}, [("x", "L")], {("x", "L"): "times 2x = 4"},
                  title="One factor", alt="x above L, and an arrow back.")

It is separate from `draw_tree`, so that lessons that draw other graphs do not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlsys_helpers.diagrams import _layers
from dlsys_helpers.drawing_canvas import (
    KINDS,
    MARGIN,
    WIDTH,
    Sheet,
    need,
    need_known,
    text_height,
    text_width,
    wrap,
)

Place = tuple[float, float, float]  # the middle of a box, its top, its bottom
ASIDE = 0.07  # inches from an edge's middle to its forward and its backward arrow
GAP = 0.7  # inches between layers: room for a factor


def draw_backward(nodes: Mapping[str, str], edges: Sequence[tuple[str, str]],
                  factors: Mapping[tuple[str, str], str], *, title: str, alt: str) -> None:
    """Draw an autograd graph whose backward arrows carry factors: inputs above, the loss below.

    nodes: name to what is written under it (value, gradient), or "". edges: (from, to), each to
    the next layer. factors: edge to what is written on its way back; other edges have none. A node
    lies below the middle of its inputs.
    """
    for edge in edges:
        need_known(f"edge {edge}", edge, nodes)
    need_known("factors", factors, edges)
    layers = _layers(nodes, edges)
    need(all(node in nodes for layer in layers for node in layer), "edges", edges,
         "edges to the next layer")
    sheet = Sheet(title, alt)
    places: dict[str, Place] = {}
    for layer in layers:
        places |= _row(sheet, layer, nodes, edges, places)
    for a, b in edges:
        points = [(places[a][0], places[a][2]), (places[b][0], places[b][1])]
        if (a, b) in factors:
            _way_back(sheet, points, factors[a, b])
            points = [(x - ASIDE, y) for x, y in points]
        sheet.line(points, arrow=True, label="edge")
    sheet.show()


def _row(sheet: Sheet, layer: Sequence[str], nodes: Mapping[str, str],
         edges: Sequence[tuple[str, str]], places: Mapping[str, Place]) -> dict[str, Place]:
    """Draw the boxes of one layer below what is drawn; returns their places."""
    y, pitch = sheet.bottom + (GAP if places else 0), (WIDTH - 2 * MARGIN) / len(layer)
    texts = {n: wrap(f"{n}\n{nodes[n]}".strip(), pitch - 0.25) for n in layer}
    high = max(map(text_height, texts.values())) + 0.1
    found = {}
    for k, node in enumerate(layer):
        inputs = [places[a][0] for a, b in edges if b == node]
        middle = sum(inputs) / len(inputs) if inputs else MARGIN + (k + 0.5) * pitch
        wide = text_width(texts[node]) + 0.18
        sheet.box(middle - wide / 2, y, wide, high, texts[node],
                  colour=KINDS[0] if inputs else KINDS[2], label="node")
        found[node] = (middle, y, y + high)
    return found


def _way_back(sheet: Sheet, points: Sequence[tuple[float, float]], factor: str) -> None:
    """An upward arrow next to an edge, with its factor on the outer side of a slanted edge."""
    (x1, y1), (x2, y2) = points
    sheet.line([(x2 + ASIDE, y2), (x1 + ASIDE, y1)], arrow=True, colour=KINDS[1], label="back")
    lean = (x2 - x1) / (y2 - y1)
    way = -1 if lean > 0 else 1
    part = 0.3 if lean else 0.18  # where slanted edges are still apart
    sheet.text(x1 + part * (x2 - x1) + way * (ASIDE + 0.05 + 0.1 * abs(lean)),
               y1 + part * (y2 - y1), factor, va="center", ha="right" if way < 0 else "left",
               colour=KINDS[1], weight="bold")
