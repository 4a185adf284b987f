"""Read what an explorer has drawn and compare it with what Python computes.

The scale of a drawing is read from its own tick labels, not from the front end's functions, so a
curve that is not where the labels say is a difference. So is a wrong sentence or colour.
"""

import copy
import re

import numpy as np

from tools import frames

PIXEL = 0.6  # drawn positions are rounded to a tenth
SHADES = 4  # of 255: half a colour level, seven stops per ramp

# One call reads all views, because the call itself costs the most.
READ = """box => {
  const ticks = (figure, axis, at) =>
    [...figure.querySelectorAll(`.xp-${axis} text:not(.xp-label)`)]
      .map(t => [t.textContent, +t.getAttribute(at)]);
  const paths = (figure, name) => [...figure.querySelectorAll(name)].map(p => p.getAttribute("d"));
  const width = (bar, part) => +bar.querySelector(part).getAttribute("width");
  const heat = canvas => canvas && {
    size: [canvas.height, canvas.width],
    box: [canvas.offsetLeft, canvas.offsetTop, canvas.offsetWidth, canvas.offsetHeight],
    rgba: canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.join() };
  const shifted = mark => {  // from the marks' own numbers to those of the axes
    const outer = mark.closest(".xp-plot > svg").getScreenCTM();
    const { a, d, e, f } = outer.inverse().multiply(mark.getScreenCTM());
    return [a, d, e, f];
  };
  const read = figure => ({
    x: ticks(figure, "x", "x"), y: ticks(figure, "y", "y"),
    curves: paths(figure, ".xp-canvas > svg .xp-line, .xp-canvas > svg .xp-columns"),
    levels: [...figure.querySelectorAll(".xp-level")].map(l => +l.getAttribute("y1")),
    bands: [...figure.querySelectorAll(".xp-band")].map(b => ["x", "width"].map(
      name => +b.getAttribute(name))), heat: heat(figure.querySelector("canvas")),
    points: paths(figure, ".xp-plot .xp-point"),
    shifts: [...figure.querySelectorAll(".xp-plot .xp-point")].map(shifted),
    ways: paths(figure, ".xp-plot .xp-way"),
    rules: [...figure.querySelectorAll(".xp-rule")].map(r => +r.getAttribute("x1")),
    bars: [...figure.querySelectorAll(".xp-bar")].map(b => [
      width(b, ".xp-amount") / width(b, ".xp-track"), b.querySelector(".xp-value").textContent]),
    edges: figure.querySelectorAll(".xp-edge").length,
    nodes: [...figure.querySelectorAll(".xp-node")].map(n => [
      n.getAttribute("class"), [...n.querySelectorAll("text")].map(t => t.textContent)]),
  });
  return [box.querySelector(".xp-say").innerText,
          [...box.querySelectorAll("figure.xp-view")].map(read)];
}"""


# What Python computed for a page, by explorer and setting, so that no test computes it again.
COMPUTED: dict[str, dict[frozenset, tuple]] = {}


def computed_for(explorer) -> tuple[bytes, dict[frozenset, tuple]]:
    """The frames of the settings that tests look at, packed, and what they were made from."""
    values = {frozenset(s.items()): explorer(**s) for s in looked_at(explorer).values()}
    known = copy.copy(explorer)
    known.compute = lambda **setting: values[frozenset(setting.items())]
    return frames.some(known, looked_at(explorer)), values


def differences(box, explorer, setting) -> list[str]:
    """Describe where the explorer in `box` (a locator) differs from what Python computes."""
    known = COMPUTED.get(explorer.name, {}).get(frozenset(setting.items()))
    arrays, sentence = known or explorer(**setting)
    shown, drawings = box.evaluate(READ)
    found = [] if shown == sentence else [f"sentence: shown {shown!r}, computed {sentence!r}"]
    for view, drawn in zip(explorer.views, drawings, strict=True):
        compare = {"lines": _lines, "columns": _columns, "heatmap": _heatmap, "bars": _bars,
                   "graph": _graph}[view.kind]
        bare = [axis for axis in ("x", "y") if view.kind in ("lines", "columns")
                and len(drawn[axis]) < 2]
        problems = [f"axis {bare[0]} has no two labels"] if bare else compare(view, drawn, arrays)
        found += [f"{view.title}: {problem}" for problem in problems]
    return found


def _number(text):
    return float(text.replace("\N{MINUS SIGN}", "-"))


def _scale(ticks, log=False):
    """Value -> pixel, as a line through the tick labels."""
    place = np.log10 if log else np.asarray
    values = place([_number(text) for text, _ in ticks])
    slope, start = np.polyfit(values, [at for _, at in ticks], 1)
    return lambda v: start + slope * place(v)


def _off(name, drawn, expected, within=PIXEL):
    drawn, expected = np.asarray(drawn, float), np.asarray(expected, float)
    if drawn.shape != expected.shape:
        return [f"{name}: drawn shape {drawn.shape}, computed {expected.shape}"]
    worst = np.abs(drawn - expected).max(initial=0)
    return [f"{name}: off by {worst:.3g}"] if worst > within else []


def _pairs(pattern, path):
    """The number pairs found in a path, as an array (2, n)."""
    return np.array(re.findall(pattern, path), float).reshape(-1, 2).T


def _vertices(path, step):
    pattern = r"[MH]([-\d.]+)[ V]([-\d.]+)" if step else r"[ML]([-\d.]+) ([-\d.]+)"
    return _pairs(pattern, path)


def _lines(view, drawn, arrays):
    if min(len(drawn["x"]), len(drawn["y"])) < 2:
        return ["fewer than two tick labels on an axis"]
    X, Y = _scale(drawn["x"], view.xlog), _scale(drawn["y"], view.ylog)
    found = []
    for name, path in zip(view.ys, drawn["curves"], strict=True):
        expected = [X(arrays[view.x]), Y(arrays[name])]
        found += _off(name, _vertices(path, view.step), expected)
    marks = X(arrays[view.mark]) if view.mark else []
    return found + _off("mark", drawn["rules"], marks)


def _columns(view, drawn, arrays):
    X, Y = _scale(drawn["x"]), _scale(drawn["y"])
    found, wide = [], 0.8 / len(view.ys)
    for n, (name, path) in enumerate(zip(view.ys, drawn["curves"], strict=True)):
        left = arrays[view.x] - 0.4 + n * wide
        found += _off(name, _pairs(r"M([-\d.]+) [-\d.]+V([-\d.]+)", path),
                      [X(left), Y(arrays[name])])
        tall = arrays[name] != 0
        found += _off(f"{name}, right ends and zero", _pairs(r"H([-\d.]+)V([-\d.]+)Z", path),
                      [X(left[tall] + wide), np.full(tall.sum(), Y(0))])
    found += _off("levels", drawn["levels"], [Y(arrays[name][0]) for name in view.levels])
    if view.band:
        start, end = X(arrays[view.band])
        found += _off("band", drawn["bands"], [[start, end - start]], 1)
    return found + _off("mark", drawn["rules"], X(arrays[view.mark]) if view.mark else [])


def _colours(view, z):
    share = ((z - view.vmin) / (view.vmax - view.vmin)).clip(0, 1)
    stops = np.array([[int(h[i:i + 2], 16) for i in (1, 3, 5)] for h in view.ramp])
    where = np.linspace(0, 1, len(stops))
    return np.stack([np.interp(share, where, stops[:, c]) for c in range(3)], -1)


def _heatmap(view, drawn, arrays):
    heat, z = drawn["heat"], arrays[view.z]
    if tuple(heat["size"]) != z.shape:
        return [f"{view.z}: drawn {heat['size']}, computed {z.shape}"]
    shown = np.array(heat["rgba"].split(","), float).reshape(*z.shape, 4)[..., :3]
    found = _off("colours", shown, _colours(view, z[::-1] if view.ylim else z), SHADES)
    X, Y = _scale(drawn["x"]), _scale(drawn["y"])
    left, top, width, height = heat["box"]
    rows, columns = z.shape  # without limits cell i is centred on i
    xlim, ylim = view.limits(arrays)
    xlim, ylim = xlim or (-0.5, columns - 0.5), ylim or (rows - 0.5, -0.5)
    found += _off("place", [left, left + width, top + height, top], [*X(xlim), *Y(ylim)], 1.5)
    found += _points(view, drawn, arrays, X, Y) if view.points else []
    return found + (_ways(view, drawn, arrays, X, Y) if view.ways else [])


def _points(view, drawn, arrays, X, Y):
    p, found = view.points, _off("marks against axes", drawn["shifts"], [[1, 1, 0, 0]] * 2, 0.01)
    # A mark's path starts at the left of a circle and at the top of a triangle.
    for group, (shift_x, shift_y) in enumerate([(-3.5, 0), (0, -4.5)]):
        mine = arrays[p.group] == group
        starts = _pairs(r"M([-\d.]+) ([-\d.]+)", drawn["points"][group])
        found += _places(f"points of group {group}", view.limits(arrays),
                         (arrays[p.x][mine], arrays[p.y][mine]), starts, X, Y, (shift_x, shift_y))
    return found


def _ways(view, drawn, arrays, X, Y):
    upto = int(arrays[view.ways.at][0]) + 1
    found = []
    for (name, (x, y)), path in zip(view.ways.paths.items(), drawn["ways"], strict=True):
        found += _places(f"the way of {name}", view.limits(arrays),
                         (arrays[x][:upto], arrays[y][:upto]),
                         _pairs(r"[ML]([-\d.]+) ([-\d.]+)", path), X, Y, (0, 0))
    return found


def _places(name, limits, places, drawn, X, Y, shift):
    """Compare only the points inside the axes; far outside, a pixel means nothing."""
    (x, y), (xlim, ylim) = places, limits
    seen = (np.abs(x - np.mean(xlim)) <= np.ptp(xlim) / 2) & (
        np.abs(y - np.mean(ylim)) <= np.ptp(ylim) / 2)
    if drawn.shape != (2, len(x)):
        return [f"{name}: {drawn.shape[1]} are drawn, {len(x)} computed"]
    return _off(name, drawn[:, seen], [X(x[seen]) + shift[0], Y(y[seen]) + shift[1]])


def _bars(view, drawn, arrays):
    values = arrays[view.values]
    shown = [_number(text.removesuffix(view.unit)) for _, text in drawn["bars"]]
    return (_off("bar lengths", [share for share, _ in drawn["bars"]], values / view.limit, 0.002)
            + _off("bar numbers", shown, values, 1e-3 * view.limit))


def _graph(view, drawn, arrays):
    found = [] if drawn["edges"] == len(view.edges) else [f"{drawn['edges']} edges are drawn"]
    of_node = zip(view.nodes, *(arrays[name] for name in view.arrays), strict=True)
    for (classes, texts), ((label, *_), *numbers) in zip(drawn["nodes"], of_node, strict=True):
        found += _node(label, classes.split(), texts, *numbers)
    return found


def _node(label, classes, texts, value, grad, state, active):
    look = ("xp-blank", "xp-known", "xp-part", "xp-whole")[int(state)]
    right = texts[0] == label and look in classes and ("xp-on" in classes) == bool(active)
    found = [] if right else [f"node {label}: drawn {texts[0]!r} as {classes}"]
    for text, sign, number, known in ((texts[1], "= ", value, state >= 1),
                                      (texts[2], "\N{PARTIAL DIFFERENTIAL} ", grad, state >= 2)):
        shown = text.removeprefix(sign).removesuffix(" \N{HORIZONTAL ELLIPSIS}")
        if bool(text) != known or (known and text == shown):
            found.append(f"node {label}: drawn {text!r} in state {state:g}")
        elif known:
            found += _off(f"node {label}", _number(shown), number, 1e-3 * max(1, abs(number)))
    return found


# ---- the keyboard ---------------------------------------------------------------------------
def focus(box, control):
    """Focus a control, as a reader would with Tab."""
    if control.kind == "slider":
        box.get_by_role("slider", name=control.label, exact=True).focus()
    else:
        group = box.get_by_role("group", name=control.label, exact=True)
        group.locator("input:checked").focus()


def move(box, control, start, value, static):
    """Move a control from one value to another with the arrow keys."""
    focus(box, control)
    press(box, control, start, value, static)


def press(box, control, start, value, static):
    """Press the arrow keys that take the focused control from one value to another."""
    offered = control.offered(static)
    distance = offered.index(value) - offered.index(start)
    for _ in range(abs(distance)):
        box.page.keyboard.press("ArrowRight" if distance > 0 else "ArrowLeft")


def every_value(explorer):
    """Go through every value of every control, one control at a time, and back again.

    Yields the control, its value before, and the setting.
    """
    setting = explorer.defaults
    for control in explorer.controls:
        for value in (*control.offered(static=True), control.default):
            if value != setting[control.name]:
                before, setting = setting, {**setting, control.name: value}
                yield control, before[control.name], setting


def far_end(explorer):
    """Move one control after the other to its last value, or first; yields as every_value does."""
    setting = explorer.defaults
    for control in explorer.controls:
        first, *_, last = control.offered(static=True)
        value = first if last == control.default else last
        setting = {**setting, control.name: value}
        yield control, control.default, setting


def walk(explorer):
    """The keyboard walk: every value, or only the far end if a recorded visit saw them all."""
    return far_end(explorer) if frames.visited(explorer.name) else every_value(explorer)


def far(explorer):
    """At most five settings, spread over the whole grid from its end."""
    return list(explorer.grid().values())[-1 :: -(1 + len(explorer.grid()) // 4)]


def dragged(explorer):
    """The settings that dragging a point which moves several controls can reach."""
    for view in explorer.views:
        held = {grip.control for grip in view.grips}
        if len(held) > 1:
            rest = explorer.defaults.items()
            yield from (setting for setting in explorer.grid().values()
                        if all(setting[name] == value for name, value in rest if name not in held))


PULLED = {"softmax_scale", "online_softmax", "optimizer_paths", "mix"}  # by tests, along a path


def looked_at(explorer):
    """The settings, by key, that a browser test compares or switches to."""
    settings = [explorer.defaults, *(setting for *_, setting in walk(explorer))]
    if not frames.visited(explorer.name) or explorer.name in PULLED:
        settings += [*(setting for *_, setting in every_value(explorer)), *far(explorer),
                     *dragged(explorer)]
    sliders = [control for control in explorer.controls if control.kind == "slider"]
    settings += [explorer.defaults | {control.name: control.offered(static=True)[0]}
                 for control in sliders[:1]]  # a test of the book presses Home there
    return {explorer.key(setting, static=True): setting for setting in settings}


def stroll(box, explorer):
    """Go through a page's explorer by keyboard and yield each difference found."""
    yield from differences(box, explorer, explorer.defaults)
    last = None
    for control, start, setting in walk(explorer):
        if control is not last:  # it keeps the focus while we go through its values
            focus(box, control)
        last = control
        press(box, control, start, setting[control.name], static=True)
        yield from differences(box, explorer, setting)
