"""The stored picture: the default frame drawn once with matplotlib, the same bytes every time."""

import io
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np

from dlsys_helpers.plots import INK

WIDTH_PX = 760
_INCH = 100  # picture pixels per inch, before scaling for sharp screens
_STYLE = {"text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
          "ytick.color": INK, "axes.titlecolor": INK, "axes.spines.top": False,
          "axes.spines.right": False, "font.size": 9, "font.family": "DejaVu Sans",
          "axes.titlesize": 10, "axes.titleweight": "bold"}


def png(title: str, sentence: str, views: Sequence, arrays: Mapping[str, np.ndarray]) -> bytes:
    """The views in rows of two, the title above and the sentence below, as PNG bytes."""
    from matplotlib.figure import Figure
    from matplotlib.style import context

    # The reader's own plot settings must not change the picture.
    with context(["default", _STYLE]):
        columns = min(2, len(views))
        rows = [views[i:i + columns] for i in range(0, len(views), columns)]
        heights = [max(view.inches for view in row) for row in rows]
        figure = Figure(figsize=(WIDTH_PX / _INCH, 0.9 + sum(heights)), layout="constrained")
        figure.suptitle(title, fontweight="bold", color=INK, x=0.01, ha="left")
        figure.supxlabel("\n".join(textwrap.wrap(sentence, 112)), fontsize=9, x=0.01, ha="left")
        grid = figure.add_gridspec(len(rows), columns, height_ratios=heights)
        for r, row in enumerate(rows):
            for c, view in enumerate(row):
                # A view alone in its row takes all of it.
                ax = figure.add_subplot(grid[r, c] if len(row) == columns else grid[r, :])
                ax.set_title(view.title, loc="left")
                view.draw(ax, arrays)
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=1.5 * _INCH, transparent=True,
                       metadata={"Software": None})
    return target.getvalue()
