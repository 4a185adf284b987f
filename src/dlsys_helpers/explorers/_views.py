"""Views: what an explorer draws. Each names its arrays, checks them, and draws the stored picture.

explorer.js draws the live and the page version from the same fields (`spec`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import numpy as np

from dlsys_helpers.plots import INK

# Colour ramps, from vmin to vmax. HEAT: dark to light in even steps of lightness. DIVERGING: two
# hues that stay apart for every common colour blindness, pale in the middle.
HEAT = ("#0b0724", "#331067", "#6a1c81", "#a3307e", "#dc4869", "#f8765c", "#fdae78", "#fcf3c4")
DIVERGING = ("#d98a4a", "#e6b485", "#f2dcc5", "#f4f4f2", "#cddaf2", "#9cb9e8", "#6b95de")
GROUPS = ("#7a3300", "#10307f")  # points of group 0 and 1: darker than any colour of DIVERGING
# The stored picture is shown on light and dark pages: mid tones, readable on both.
SERIES = (("#4c7be0", "-"), ("#d06a12", "--"), ("#129065", ":"), ("#9166f0", "-."),
          ("#c9508b", (0, (3, 2))))


@dataclass(frozen=True)
class Grip:
    """A control that can also be dragged in a drawing: where on the axes each of its values is.

    x, y: functions from the control's value to the axis; None if it does not matter. With
    `share` they return shares of the drawing's width and height, from its upper left corner.
    """

    control: str
    x: Callable | None = None
    y: Callable | None = None
    share: bool = False

    def spec(self, offered: Mapping[str, Sequence]) -> dict:
        """Places of all offered values, in their order."""
        places = {axis: at and [at(value) for value in offered[self.control]]
                  for axis, at in (("x", self.x), ("y", self.y))}
        return {"control": self.control, "share": self.share, **places}


@dataclass(frozen=True, kw_only=True)
class _View:
    """What all views share."""

    title: str
    grips: ClassVar[Sequence[Grip]] = ()
    kind: ClassVar[str]

    @property
    def inches(self) -> float:
        """The height of this view in the stored picture."""
        return 2.7

    def spec(self, offered: Mapping[str, Sequence]) -> dict:
        """What the front end needs to draw this view; `offered` has each control's values."""
        return {"kind": self.kind, **asdict(self), "grips": [g.spec(offered) for g in self.grips]}

    def stored(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays as they travel to the front end."""
        return {name: arrays[name] for name in self.arrays}

    def _refuse(self, what: str):
        raise ValueError(f"view {self.title!r}: {what}")


@dataclass(frozen=True, kw_only=True)
class _Axes(_View):
    """A view with axes, in which a point can be dragged."""

    grips: Sequence[Grip] = ()


@dataclass(frozen=True)
class Lines(_Axes):
    """Curves over one x axis; `ys` maps an array's name to its label.

    Limits left out follow the data. On a log axis all values must be above zero. `mark` names an
    array (1,): the position of a dashed line on the x axis.
    """

    x: str
    ys: Mapping[str, str]
    xlabel: str
    ylabel: str
    xlim: tuple[float, float] | None = None
    ylim: tuple[float, float] | None = None
    xlog: bool = False
    ylog: bool = False
    step: bool = False
    mark: str | None = None
    kind: ClassVar[str] = "lines"

    def __post_init__(self):
        if not 1 <= len(self.ys) <= len(SERIES):
            self._refuse(f"got {len(self.ys)} curves, expected 1 to {len(SERIES)}.")

    @property
    def arrays(self) -> tuple[str, ...]:
        return (self.x, *self.ys, *([self.mark] if self.mark else []))

    def check(self, arrays):
        sizes = {name: arrays[name].shape for name in (self.x, *self.ys)}
        if len(set(sizes.values())) != 1 or arrays[self.x].ndim != 1 or arrays[self.x].size < 2:
            self._refuse(f"curves need two or more points and one length, got {sizes}.")
        logged = [self.x] * self.xlog + [*self.ys] * self.ylog
        for name in logged:
            if (arrays[name] <= 0).any():
                self._refuse(f"{name} is on a log axis and must be above zero, "
                             f"got {arrays[name].min():.3g}.")

    def draw(self, ax, arrays):
        how = "steps-post" if self.step else "default"
        for (name, label), (colour, dash) in zip(self.ys.items(), SERIES, strict=False):
            ax.plot(arrays[self.x], arrays[name], linestyle=dash, color=colour, label=label,
                    drawstyle=how)
        # Scales first: limits that are left out are read, and kept, when they are set.
        ax.set(xlabel=self.xlabel, ylabel=self.ylabel,
               xscale="log" if self.xlog else "linear", yscale="log" if self.ylog else "linear")
        ax.set(xlim=self.xlim, ylim=self.ylim)
        ax.grid(axis="y", alpha=0.25)
        if self.mark:
            ax.axvline(arrays[self.mark][0], color=INK, linewidth=0.8, linestyle="--")
        if len(self.ys) > 1:
            ax.legend(frameon=False, labelcolor=INK)


@dataclass(frozen=True)
class Columns(_Axes):
    """Columns from zero over neighbouring whole numbers, one of each curve side by side.

    `ys` maps an array's name to its label. `levels` does so for arrays (1,): dashed lines across
    all columns. `mark` names an array (1,) for a line upwards, `band` an array (2,) for the ends of
    a range on the x axis that is shaded. Limits left out follow the data.
    """

    x: str
    ys: Mapping[str, str]
    xlabel: str
    ylabel: str
    ylim: tuple[float, float] | None = None
    levels: Mapping[str, str] = field(default_factory=dict)
    mark: str | None = None
    band: str | None = None
    kind: ClassVar[str] = "columns"

    def __post_init__(self):
        if not (self.ys and len(self.ys) + len(self.levels) <= len(SERIES)):
            self._refuse(f"got {len(self.ys)} curves and {len(self.levels)} levels, expected one "
                         f"curve or more, and {len(SERIES)} of both at most.")

    @property
    def arrays(self) -> tuple[str, ...]:
        single = [name for name in (self.mark, self.band) if name]
        return (self.x, *self.ys, *self.levels, *single)

    def check(self, arrays):
        sizes = {name: arrays[name].shape for name in (self.x, *self.ys)}
        x = arrays[self.x]
        if len(set(sizes.values())) != 1 or x.ndim != 1 or x.size < 2 or (np.diff(x) != 1).any():
            self._refuse(f"columns need two or more whole numbers in a row as x, and one length, "
                         f"got {sizes} and {x.tolist()}.")

    def draw(self, ax, arrays):
        x, wide = arrays[self.x], 0.8 / len(self.ys)
        for n, (name, label) in enumerate(self.ys.items()):
            ax.bar(x - 0.4 + n * wide, arrays[name], wide, align="edge", color=SERIES[n][0],
                   label=label)
        for (name, label), (colour, _) in zip(self.levels.items(), SERIES[len(self.ys):],
                                              strict=False):
            ax.axhline(arrays[name][0], color=colour, linestyle="--", label=label)
        ax.set(xlabel=self.xlabel, ylabel=self.ylabel, xlim=(x[0] - 0.5, x[-1] + 0.5),
               ylim=self.ylim)
        ax.grid(axis="y", alpha=0.25)
        ax.axhline(0, color=INK, linewidth=0.8)
        if self.band:
            ax.axvspan(*arrays[self.band], color=INK, alpha=0.2, linewidth=0)
        if self.mark:
            ax.axvline(arrays[self.mark][0], color=INK, linewidth=0.8, linestyle="--")
        if len(self.ys) + len(self.levels) > 1:
            ax.legend(frameon=False, labelcolor=INK)


@dataclass(frozen=True)
class Points:
    """Points over a heat map: arrays of x, of y and of group 0 or 1, and the groups' labels."""

    x: str
    y: str
    group: str
    labels: tuple[str, str]
    colours: tuple[str, str] = GROUPS


@dataclass(frozen=True)
class Ways:
    """Lines over a heat map, by label: arrays (N,) of x and of y, drawn up to the index in `at`.

    A ring marks the first place of each, a disc the last. Anything outside the axes is cut off.
    """

    paths: Mapping[str, tuple[str, str]]
    at: str


@dataclass(frozen=True)
class Heatmap(_Axes):
    """A matrix as colours from vmin to vmax; values outside take the end colours.

    Without limits row 0 is at the top, as matrices are printed. With xlim and ylim the axes have
    numbers and row 0 lies at ylim[0], so y grows upwards. `frame` names an array (4,) of limits
    (left, right, bottom, top) that a setting uses instead.
    """

    z: str
    xlabel: str
    ylabel: str
    vmin: float
    vmax: float
    label: str
    ramp: Sequence[str] = HEAT
    xlim: tuple[float, float] | None = None
    ylim: tuple[float, float] | None = None
    points: Points | None = None
    ways: Ways | None = None
    frame: str | None = None
    kind: ClassVar[str] = "heatmap"

    def __post_init__(self):
        if not self.vmin < self.vmax:
            self._refuse(f"vmin {self.vmin} must be below vmax {self.vmax}.")
        if (self.xlim is None) != (self.ylim is None) or (
                (self.points or self.ways or self.frame) and not self.xlim):
            self._refuse("xlim and ylim come together, and points, ways and a frame need both.")

    @property
    def arrays(self) -> tuple[str, ...]:
        return (self.z, *self._pointed, *self._walked, *([self.ways.at] if self.ways else []),
                *([self.frame] if self.frame else []))

    @property
    def _pointed(self) -> tuple[str, ...]:
        p = self.points
        return (p.x, p.y, p.group) if p else ()

    @property
    def _walked(self) -> tuple[str, ...]:
        paths = self.ways.paths if self.ways else {}
        return tuple(name for pair in paths.values() for name in pair)

    def limits(self, arrays: Mapping[str, np.ndarray]) -> tuple:
        """The limits (low, high) of x and of y at a setting; None for a matrix as printed."""
        if not self.frame:
            return self.xlim, self.ylim
        left, right, bottom, top = arrays[self.frame]
        return (left, right), (bottom, top)

    def check(self, arrays):
        if arrays[self.z].ndim != 2:
            self._refuse(f"{self.z} must have two dimensions, got {arrays[self.z].shape}.")
        for what, names in (("points", self._pointed), ("ways", self._walked)):
            sizes = {name: arrays[name].shape for name in names}
            if len(set(sizes.values())) > 1:
                self._refuse(f"{what} need one length, got {sizes}.")

    def stored(self, arrays):
        """Colours need 256 levels, not 32 bits: the matrix travels as uint8."""
        share = (arrays[self.z] - self.vmin) / (self.vmax - self.vmin)
        levels = np.rint(share.clip(0, 1) * 255).astype(np.uint8)
        return {**super().stored(arrays), self.z: levels}

    def draw(self, ax, arrays):
        from matplotlib.colors import LinearSegmentedColormap

        xlim, ylim = self.limits(arrays)
        where = {"extent": (*xlim, *ylim), "origin": "lower"} if xlim else {}
        image = ax.imshow(arrays[self.z], vmin=self.vmin, vmax=self.vmax, **where,
                          cmap=LinearSegmentedColormap.from_list("ramp", self.ramp))
        ax.figure.colorbar(image, ax=ax, label=self.label, shrink=0.8)
        ax.set(xlabel=self.xlabel, ylabel=self.ylabel)
        if self.points:
            self._draw_points(ax, arrays)
        if self.ways:
            self._draw_ways(ax, arrays)
            ax.set(xlim=xlim, ylim=ylim)

    def _draw_ways(self, ax, arrays):
        last = int(arrays[self.ways.at][0])
        for (x, y), (colour, dash) in zip(self.ways.paths.values(), SERIES, strict=False):
            xs, ys = arrays[x][:last + 1], arrays[y][:last + 1]
            ax.plot(xs, ys, color="white", linewidth=3)
            ax.plot(xs, ys, color=colour, linestyle=dash, linewidth=1.5)
            ax.plot(xs[:1], ys[:1], "o", color="white", mfc="none")
            ax.plot(xs[-1:], ys[-1:], "o", color=colour, mec="white", markersize=5)

    def _draw_points(self, ax, arrays):
        x, y, group = (arrays[name] for name in self._pointed)
        for k, (marker, colour) in enumerate(zip("o^", self.points.colours, strict=True)):
            ax.scatter(x[group == k], y[group == k], s=14, marker=marker, color=colour,
                       edgecolor="white", linewidth=0.5, label=self.points.labels[k])
        ax.set(xlim=self.xlim, ylim=self.ylim)
        ax.legend(ncols=2, frameon=False, labelcolor=INK, loc="upper center",
                  bbox_to_anchor=(0.5, -0.16))


@dataclass(frozen=True)
class Bars(_View):
    """A few named amounts, from 0 to `limit`; `values` is one array with a number per label."""

    values: str
    labels: Sequence[str]
    limit: float
    unit: str = ""
    kind: ClassVar[str] = "bars"

    @property
    def inches(self) -> float:
        return 0.2 + 0.45 * len(self.labels)

    @property
    def arrays(self) -> tuple[str, ...]:
        return (self.values,)

    def check(self, arrays):
        values = arrays[self.values]
        if values.shape != (len(self.labels),):
            self._refuse(f"got shape {values.shape} for {len(self.labels)} labels.")
        if values.min() < 0 or values.max() > self.limit:
            self._refuse(f"bars go from 0 to {self.limit}, got {values.tolist()}.")

    def draw(self, ax, arrays):
        rows, values = range(len(self.labels)), arrays[self.values]
        ax.barh(rows, self.limit, 0.3, facecolor="none", edgecolor=INK, linewidth=0.6)
        ax.barh(rows, values, 0.3, color=SERIES[0][0])
        for row, label, value in zip(rows, self.labels, values, strict=True):
            ax.text(0, row - 0.25, label)
            ax.text(self.limit, row - 0.25, f"{value:.4g}{self.unit}", ha="right")
        ax.set(xlim=(0, self.limit), ylim=(rows[-1] + 0.3, -0.7))
        ax.axis("off")


@dataclass(frozen=True)
class Graph(_View):
    """Nodes that hold a value and a gradient, their edges drawn from top to bottom.

    nodes: (label, column, row) of each; edges: pairs of node numbers. The four arrays have one
    entry per node. `state` 0: nothing known, 1: value known, 2: a part of the gradient,
    3: the whole gradient. `active` is 1 for the node at work, else 0.
    """

    nodes: Sequence[tuple[str, float, float]]
    edges: Sequence[tuple[int, int]]
    value: str
    grad: str
    state: str
    active: str
    kind: ClassVar[str] = "graph"

    @property
    def inches(self) -> float:
        return 0.62 * (1 + max(row for _, _, row in self.nodes))

    @property
    def arrays(self) -> tuple[str, ...]:
        return (self.value, self.grad, self.state, self.active)

    def check(self, arrays):
        sizes = {name: arrays[name].shape for name in self.arrays}
        if set(sizes.values()) != {(len(self.nodes),)}:
            self._refuse(f"{len(self.nodes)} nodes need as many numbers, got {sizes}.")
        if not np.isin(arrays[self.state], (0, 1, 2, 3)).all():
            self._refuse(f"states are 0 to 3, got {arrays[self.state].tolist()}.")

    def draw(self, ax, arrays):
        for start, end in self.edges:
            (_, x0, y0), (_, x1, y1) = self.nodes[start], self.nodes[end]
            ax.annotate("", (x1, y1 - 0.36), (x0, y0 + 0.36),
                        arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.8})
        for i, (label, x, y) in enumerate(self.nodes):
            state = arrays[self.state][i]
            text = [label, f"= {arrays[self.value][i]:.4g}" if state >= 1 else "",
                    f"\N{PARTIAL DIFFERENTIAL} {arrays[self.grad][i]:.4g}" if state >= 2 else ""]
            shown = "\n".join(text).replace("-", "\N{MINUS SIGN}")
            ax.text(x, y, shown, ha="center", va="center", fontsize=7,
                    bbox={"boxstyle": "round", "facecolor": "none", "edgecolor": INK,
                          "linewidth": 1.8 if arrays[self.active][i] else 0.7})
        columns, rows = zip(*[node[1:] for node in self.nodes], strict=True)
        ax.set(xlim=(min(columns) - 0.5, max(columns) + 0.5), ylim=(max(rows) + 0.5, -0.5))
        ax.axis("off")


def named(views: Sequence[_View]) -> list[str]:
    """The names of all arrays that the views draw."""
    return list(dict.fromkeys(name for view in views for name in view.arrays))
