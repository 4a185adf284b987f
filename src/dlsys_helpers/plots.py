"""Figures in the house style: the finding as title, labels on the lines, readable in any theme.

Ink is mid-tone on a transparent ground, so one picture serves light and dark pages. The palette
is Okabe and Ito's, darkened where needed; every series also differs in dash or marker.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK = "#7a8292"
COLOURS = ("#3b7dd8", "#d9710d", "#0f9d76", "#b657c9", "#a08a00", "#d0455c")
DASHES = ("-", (0, (6, 3)), (0, (1, 2)), (0, (6, 2, 1, 2)), (0, (3, 1)), (0, (9, 3)))
MARKERS = "os^Dvx"


def use_house_style() -> None:
    """Set matplotlib's defaults for all figures of a lesson."""
    mpl.rcParams.update({
        "figure.figsize": (6.6, 3.1), "figure.dpi": 110, "savefig.transparent": True,
        "figure.constrained_layout.use": True, "font.size": 10,
        "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK,
        "axes.labelcolor": INK, "axes.titlecolor": INK, "text.color": INK,
        "xtick.color": INK, "ytick.color": INK, "axes.titlelocation": "left",
        "axes.titlesize": 11, "axes.titleweight": "bold", "legend.frameon": False,
        "lines.linewidth": 2.0, "axes.prop_cycle": mpl.cycler(color=COLOURS),
    })


def new_axes(title: str, xlabel: str, ylabel: str, *, logx: bool = False,
             logy: bool = False) -> Axes:
    """Empty axes with the finding as title; a log axis says so in its label."""
    _, ax = plt.subplots()
    ax.set(title=title, xlabel=xlabel + (" (log)" if logx else ""),
           ylabel=ylabel + (" (log)" if logy else ""),
           xscale="log" if logx else "linear", yscale="log" if logy else "linear")
    return ax


def plot_lines(x: Sequence[float], series: Mapping[str, Sequence[float]], *, title: str,
               xlabel: str, ylabel: str, alt: str, logx: bool = False,
               logy: bool = False) -> None:
    """Draw each series over x, labelled at its end, and show the figure with its alt text."""
    ax = new_axes(title, xlabel, ylabel, logx=logx, logy=logy)
    for n, (name, y) in enumerate(series.items()):
        k = n % len(COLOURS)
        ax.plot(x, y, color=COLOURS[k], linestyle=DASHES[k], marker=MARKERS[k], markersize=4,
                markevery=max(1, len(x) // 12), label=name)
    label_ends(ax)
    show(ax.figure, alt)


def label_ends(ax: Axes) -> None:
    """Write each line's name at its last point, moved apart where names would overlap."""
    ax.figure.draw_without_rendering()
    ends = sorted(((ax.transData.transform((line.get_xdata()[-1], line.get_ydata()[-1]))[1], line)
                   for line in ax.lines), key=lambda pair: pair[0])
    last = -1e9
    for y_pixel, line in ends:
        place = max(y_pixel, last + 15)
        last = place
        ax.annotate(line.get_label(), (line.get_xdata()[-1], line.get_ydata()[-1]),
                    xytext=(8, (place - y_pixel) * 72 / ax.figure.dpi), textcoords="offset points",
                    va="center", color=line.get_color(), annotation_clip=False)


def plot_bars(values: Mapping[str, float], *, title: str, xlabel: str, alt: str,
              log: bool = False) -> None:
    """Draw one horizontal bar per name, with its value next to it, and show the figure."""
    ax = new_axes(title, xlabel, "", logx=log)
    names = list(values)
    bars = ax.barh(names, list(values.values()), color=COLOURS[0], height=0.6)
    ax.bar_label(bars, labels=[f"{v:.3g}" for v in values.values()], padding=5, color=INK)
    ax.invert_yaxis()
    ax.margins(x=0.15)
    show(ax.figure, alt)


def show(figure: Figure, alt: str) -> None:
    """Show a figure with alt text, as a PNG whose bytes depend on nothing but the data.

    Raises ValueError for an empty alt text. Outside a notebook nothing is shown.
    """
    if not alt.strip():
        raise ValueError("alt: got an empty text, expected a sentence that says what is seen.")
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        from IPython.display import Image, display
        # In the metadata: Image takes it as `alt` from IPython 8.31 on, and Colab has 7.34.
        display(Image(data=picture(figure), format="png", metadata={"alt": alt},
                      width=round(figure.get_figwidth() * figure.dpi)))
    plt.close(figure)


def picture(figure: Figure) -> bytes:
    """The figure as a PNG in 64 colours, which takes a quarter of the bytes of full colour."""
    from PIL import Image
    full, small = io.BytesIO(), io.BytesIO()
    # Twice the pixels it is shown at: sharp on high-density screens and on paper.
    # Not compressed yet: that happens once, after the colours are reduced.
    figure.savefig(full, format="png", dpi=2 * figure.dpi, metadata={"Software": None},
                   pil_kwargs={"compress_level": 0})
    Image.open(full).quantize(64, method=Image.Quantize.FASTOCTREE).save(small, "png",
                                                                         optimize=True)
    return small.getvalue()
