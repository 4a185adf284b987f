"""Figures on slides: how large they must be to be readable from the last row.

A lesson's figures are stored as pictures. Their letters have the sizes of the house style, so the
height of a picture on a slide follows from the height that its smallest letters need.
"""

from __future__ import annotations

import base64
import io
import re
from copy import deepcopy

import numpy as np
from nbformat import NotebookNode
from nbformat import v4 as nb4
from PIL import Image

LETTERS_PX = 18  # of the smallest letters of a figure, in a window of 720 lines
WIDEST = 1240  # pixels of a slide
# Width in pixels at which an explorer's picture is shown in a notebook; points of its letters, and
# pixels for an inch. Those of all other figures: see plots.py and drawing_canvas.py.
EXPLORER, ITS_POINTS, ITS_INCH = 760, 9, 100
POINTS, INCH = 10, 110
SMALL = {"scalar_graph": 7}  # points of the letters in an explorer that has smaller ones
_SIZE = re.compile(r"fontsize=(\d+)")


def figure(output: NotebookNode, code: str) -> NotebookNode:
    """A cell that shows the picture of an output of this code; `least` is its least height.

    letters: the height of its smallest letters when it is as wide as a slide.
    """
    metadata = deepcopy(output.metadata)
    facts = metadata.setdefault("image/png", {})
    wide, high = as_picture(output.data["image/png"]).size
    shown = facts.get("width", wide / 2)
    explorer = shown == EXPLORER
    points = min([ITS_POINTS if explorer else POINTS, *map(int, _SIZE.findall(code)),
                  *(size for name, size in SMALL.items() if name in code)])
    letters = points * (ITS_INCH if explorer else INCH) / 72
    facts["least"] = round(min(shown * LETTERS_PX / letters, WIDEST) * high / wide)
    facts["letters"] = letters * WIDEST / shown
    return _cell(output.data["image/png"], metadata)


def least(cell: NotebookNode) -> int:
    """The height that a figure needs on a slide, in pixels."""
    return cell.outputs[0].metadata["image/png"]["least"]


def is_readable(cell: NotebookNode) -> bool:
    """Whether a slide is wide enough for the letters of a figure."""
    return cell.outputs[0].metadata["image/png"]["letters"] >= LETTERS_PX


def torn(cell: NotebookNode, most: int) -> list[NotebookNode]:
    """A figure in pieces, split at empty rows, if it needs more than `most` pixels."""
    if cell.cell_type != "code" or "data" not in (cell.get("outputs") or [{}])[0]:
        return [cell]
    if least(cell) <= most:
        return [cell]
    picture = as_picture(cell.outputs[0].data["image/png"])
    high = picture.height
    row = _empty_row(picture)
    if row is None:
        return [cell]
    made = []
    for top, bottom in ((0, row), (row, high)):
        metadata = deepcopy(cell.outputs[0].metadata)
        metadata["image/png"]["least"] = round(least(cell) * (bottom - top) / high)
        made += torn(_cell(as_png(picture.crop((0, top, picture.width, bottom))), metadata), most)
    return made


def _empty_row(picture: Image.Image) -> int | None:
    """The middle of the empty band nearest to a picture's middle; None if it is far from there."""
    empty = np.asarray(picture.convert("RGBA").getchannel("A")).max(axis=1) == 0
    high = len(empty)
    ends = np.flatnonzero(np.diff(np.concatenate([[False], empty, [False]]).astype(int)))
    middles = [(a + b) // 2 for a, b in zip(ends[::2], ends[1::2], strict=True)]
    near = [m for m in middles if high // 4 < m < high * 3 // 4]
    return min(near, key=lambda m: abs(m - high / 2), default=None)


def as_picture(data: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(data)))


def as_png(picture: Image.Image) -> str:
    out = io.BytesIO()
    picture.save(out, "png")
    return base64.b64encode(out.getvalue()).decode()


def _cell(data: str, metadata: dict) -> NotebookNode:
    return nb4.new_code_cell("", outputs=[nb4.new_output(
        "display_data", {"image/png": data}, metadata=metadata)])
