"""A small drawing of each stage's own idea, for the cards of the start page.

Lines and boxes on a field of 120 by 54. course.css colours the classes in light and dark mode: `a`
for the idea, `b` for its surroundings, `x` for what goes wrong.
"""

from __future__ import annotations

from collections.abc import Iterable


def line(points: str, kind: str = "a", more: str = "") -> str:
    return f'<polyline class="{kind}" points="{points}"{more}/>'


def curve(path: str, kind: str = "a") -> str:
    return f'<path class="{kind}" d="{path}"/>'


def box(x: float, y: float, width: float, height: float, kind: str = "a") -> str:
    return (f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            'rx="1.5"/>')


def dot(x: float, y: float, kind: str = "a", radius: float = 4) -> str:
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>'


def grid(rows: Iterable[str], left: float, top: float, step: float) -> str:
    """A grid of cells, one letter each for their class: "ab" is one `a` and one `b`."""
    return "".join(box(left + step * c, top + step * r, step - 2, step - 2, kind)
                   for r, row in enumerate(rows) for c, kind in enumerate(row))


def columns(heights: Iterable[float], kinds: str) -> str:
    return "".join(box(4 + 13 * k, 50 - height, 10, height, kind)
                   for k, (height, kind) in enumerate(zip(heights, kinds, strict=True)))


def neuron() -> str:
    """One layer with three inputs, two working units, and a dead one."""
    wires = "".join(line(f"18,{a} 60,{b}", "b") for a in (10, 27, 44) for b in (10, 27, 44))
    return (wires + "".join(dot(18, y, "b") for y in (10, 27, 44))
            + dot(60, 10) + dot(60, 27) + dot(60, 44, "x") + line("64,10 102,27", "b")
            + line("64,27 102,27", "b") + dot(102, 27))


def lost_gradient() -> str:
    """A backward pass through six operations, cut at one."""
    steps = "".join(box(5 + 19 * k, 20, 13, 14, "b") for k in range(6))
    return (steps + line("115,44 72,44") + line("72,40 66,44 72,48")
            + line("58,38 58,50", "x") + line("48,44 6,44", "b", ' stroke-dasharray="3 3"'))


def lying_loss() -> str:
    """A loss that falls and an error that rises."""
    return curve("M4 10C34 44 60 49 116 50") + curve("M4 14C36 42 66 34 116 8", "x")


def descent() -> str:
    """A path down a valley, and one that swings across it."""
    return (curve("M8 6C30 54 90 54 112 6", "b") + line("14,17 44,39 56,43 60,43")
            + line("104,20 22,27 92,33 38,38", "x") + dot(60, 43, radius=3))


def statistics() -> str:
    """Activations of layers that shrink in the top row and keep their size below."""
    return "".join(box(6 + 19 * k, 22 - h, 12, h, "x") + box(6 + 19 * k, 34, 12, 14)
                   for k, h in enumerate((18, 12, 8, 5, 3, 2)))


def early_stop() -> str:
    """Training and validation, and the step at which to stop."""
    return (curve("M4 12C30 44 60 47 116 49", "b") + curve("M4 16C28 42 56 44 116 16")
            + line("53,4 53,51", "x", ' stroke-dasharray="3 3"'))


def receptive_field() -> str:
    """What a pixel can see: a square within a grid."""
    return grid(("bbbbbbb", "baaaabb", "baaaabb", "baaxabb", "bbbbbbb"), 34, 2, 10)


def causal_mask() -> str:
    """The lower triangle of a mask, with one future position left open."""
    return grid(("abbxbb", "aabbbb", "aaabbb", "aaaabb", "aaaaab", "aaaaaa"), 34, 1, 9)


def ranks() -> str:
    """Two ranks at work; one waits for the other."""
    lanes = "".join(box(4, y, 112, 16, "b") for y in (8, 30))
    return (lanes + box(7, 11, 46, 10) + box(57, 11, 46, 10) + box(7, 33, 28, 10)
            + box(37, 33, 17, 10, "x") + box(57, 33, 28, 10))


def low_rank() -> str:
    """A large frozen matrix, and two thin ones next to it."""
    return box(14, 5, 48, 44, "b") + box(74, 5, 7, 44) + box(88, 5, 24, 7)


def few_levels() -> str:
    """A histogram of weights on few levels; one outlier sets the range."""
    return columns((5, 14, 30, 42, 30, 14, 5, 1, 8), "abababbbx")


def nan() -> str:
    """A loss that falls until it becomes nan."""
    return curve("M4 14C26 34 52 41 80 43L88 8") + dot(88, 8, "x") + line("92,50 116,50", "b")


def shared_pages() -> str:
    """Two requests that share two pages of a cache; a third page has two owners by mistake."""
    return (grid(("aab", "aab"), 8, 16, 13) + line("50,22 70,10", "b") + line("50,35 70,44", "b")
            + grid(("aaaxb",), 62, 20, 11) + box(62, 4, 54, 8, "b") + box(62, 42, 54, 8, "b"))


def anchor() -> str:
    """A policy held near its reference by a spring, and one that has left."""
    spring = "24,27 32,20 40,34 48,20 56,34 64,20 72,27"
    return (dot(16, 27, "b", 6) + line(spring, "b") + dot(80, 27)
            + curve("M22 22C44 2 84 2 104 8", "x") + dot(108, 9, "x"))


def split_run() -> str:
    """Eight devices in a grid of two splits, one of them out of memory."""
    levels = (20, 20, 20, 22, 16, 16, 16, 14)
    return "".join(box(6 + 14 * k, 4, 11, 46, "b")
                   + box(6 + 14 * k, 50 - level, 11, level, "x" if k == 3 else "a")
                   for k, level in enumerate(2 * level for level in levels))


DRAWINGS = (neuron, lost_gradient, lying_loss, descent, statistics, early_stop, receptive_field,
            causal_mask, ranks, low_rank, few_levels, nan, shared_pages,
            anchor, split_run)


def drawing(number: int) -> str:
    """The drawing of a stage. It repeats what the card says, so a screen reader passes over it."""
    return f'<svg viewBox="0 0 120 54" aria-hidden="true">{DRAWINGS[number - 1]()}</svg>'
