"""Preview pictures for links to the course: 1200 x 630, one for the course, one for each stage.

We draw them from the stages' titles, promises and small drawings. Those consist of lines and boxes,
so matplotlib can draw them, too.
"""

from __future__ import annotations

import math
import re
import textwrap
from pathlib import Path
from xml.etree import ElementTree

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch, PathPatch
from matplotlib.path import Path as Curve

from dlsys_helpers.stages import STAGES, Stage
from tools.stage_drawings import DRAWINGS, drawing

GROUND, INK, SOFT = "#12181f", "#f3f5f7", "#b3bfca"
COLOURS = {"a": "#7fb2ff", "b": "#5d6b78", "x": "#ff9d4d"}  # as in course.css, in dark mode
MOST = 15  # the most characters in a line of a title
CLAIM = "Guess what the code does. Run it. Repair it."


def write_cards(folder: Path) -> None:
    """Write ``00.png`` for the course and ``NN.png`` for each stage into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    save(course_card(), folder / "00.png")
    for entry in STAGES:
        save(stage_card(entry), folder / name(entry.number))


def name(stage: int) -> str:
    """The file of a stage's card; 0 is the course."""
    return f"{stage:02d}.png"


def save(card: Figure, path: Path) -> None:
    card.savefig(path, dpi=100, metadata={"Software": None})


def course_card() -> Figure:
    """The card of the course: its name, its claim, and the drawings of all stages."""
    card = titled("Deep Learning Systems", CLAIM)
    step = 0.76 / math.ceil(len(DRAWINGS) / 3)
    for number in range(1, len(DRAWINGS) + 1):
        row, column = divmod(number - 1, 3)
        sketch(card, number, (0.575 + 0.135 * column, 0.88 - step * (row + 1), 0.115, 0.115))
    return card


def stage_card(entry: Stage) -> Figure:
    card = titled(entry.title, entry.promise, f"Deep Learning Systems, stage {entry.number}")
    sketch(card, entry.number, (0.58, 0.2, 0.37, 0.6))
    return card


def titled(title: str, promise: str, above: str = "") -> Figure:
    """A card with title and promise on the left."""
    card = Figure(figsize=(12, 6.3), facecolor=GROUND, layout="none")
    lines = textwrap.wrap(title, MOST)
    card.text(0.06, 0.86, above, color=SOFT, size=21, va="top")
    top = 0.74
    for line in lines:
        card.text(0.06, top, line, color=INK, size=46, weight="bold", va="top")
        top -= 0.135
    card.text(0.06, top - 0.03, textwrap.fill(promise, 34), color=SOFT, size=22, va="top",
              linespacing=1.45)
    return card


def sketch(card: Figure, number: int, place: tuple[float, float, float, float]) -> None:
    """Draw a stage's drawing on the card. place: left, bottom, width, height."""
    axes = card.add_axes(place)
    axes.set(xlim=(0, 120), ylim=(54, 0), aspect="equal")
    axes.axis("off")
    thick = 8 * place[2]
    for shape in ElementTree.fromstring(drawing(number)):
        add(axes, shape.tag, shape.attrib, thick)


def add(axes: Axes, tag: str, said: dict[str, str], thick: float) -> None:
    """Draw one shape. Raises ValueError for a kind that stage_drawings does not make."""
    colour = COLOURS[said["class"]]
    if tag == "polyline":
        points = [[float(n) for n in pair.split(",")] for pair in said["points"].split()]
        axes.plot(*zip(*points, strict=True), color=colour, lw=2 * thick, solid_capstyle="round",
                  ls=(0, (2, 2)) if "stroke-dasharray" in said else "-")
    elif tag == "path":
        axes.add_patch(PathPatch(curve(said["d"]), fill=False, ec=colour, lw=2 * thick))
    elif tag == "rect":
        x, y, width, height = (float(said[key]) for key in ("x", "y", "width", "height"))
        axes.add_patch(FancyBboxPatch((x, y), width, height, fc=colour, lw=0,
                                      boxstyle="round,pad=0,rounding_size=1.5"))
    elif tag == "circle":
        axes.add_patch(Circle((float(said["cx"]), float(said["cy"])), float(said["r"]), fc=colour,
                              lw=0))
    else:
        raise ValueError(f"social_cards: got <{tag}>, expected polyline, path, rect or circle. "
                         "Draw it in add, tools/social_cards.py.")


def curve(path: str) -> Curve:
    """Convert an SVG path of moves M, cubic curves C and lines L."""
    points, codes = [], []
    for kind, numbers in re.findall(r"([MCL])([^MCL]*)", path):
        pairs = [float(n) for n in numbers.split()]
        found = list(zip(pairs[::2], pairs[1::2], strict=True))
        points += found
        codes += {"M": [Curve.MOVETO], "L": [Curve.LINETO], "C": [Curve.CURVE4]}[kind] * len(found)
    return Curve(points, codes)
