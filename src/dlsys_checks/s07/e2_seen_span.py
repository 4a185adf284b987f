"""Exercise 07.2, `seen_span`."""

from __future__ import annotations

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_type, show
from dlsys_helpers.judging import not_an_answer

ex = exercise("07.2", "seen_span", seen=("layers", "unit"), says="first pixel")

PLAIN = ("one window", "three windows", "windows of many sizes")
ex.promise("span", "First and last input pixel, along one side, that a unit depends on.",
           says=("first pixel", "last pixel"))
ex.promise("layers", "layers: a list of (kernel, stride, padding, dilation), from the input on;",
           cases=("strides in turn", "padding of many sizes", "dilations in turn",
                  "windows with gaps between them", "all at once"))
ex.promise("no layers", "no layers: the unit is the pixel itself.", cases=("no layers",))
ex.promise("unit", "unit: its index in the last map.",
           cases=("a unit far inside", "a unit far inside, strides", "no layers", "all at once"))
ex.promise("any width", "The input is as wide as it needs to be; pixels are counted from 0,",
           cases=("a wide input",))
ex.promise("padding", "and places in the padding, that of inner maps too, count like all others: "
           "both may be negative.",
           cases=("the rim", "the rim, padding of many sizes", "padding of many sizes",
                  "padding behind a stride", "padding wider than its window", "the example"))
ex.promise("left alone", "layers is left as it is.", says=("inputs after the call",))
ex.promise("example", "Example: layers [(3, 1, 1, 1)], unit 0: (-1, 1).", cases=("the example",))


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, layers, unit=0):
        return name, {"layers": layers, "unit": unit}

    def windows(n, stride=(1, 2), padding=(0, 1), dilation=(1, 2), kernel=(2, 6)):
        return [(whole(*kernel), whole(*stride), whole(*padding), whole(*dilation))
                for _ in range(n)]
    return [
        one("one window", windows(1, kernel=(4, 9))),
        one("three windows", [(3, 1, 0, 1), (whole(4, 6), 1, 0, 1), (whole(6, 9), 1, 0, 1)]),
        one("windows of many sizes", windows(whole(6, 9))),
        one("strides in turn", [(3, 2, 0, 1), (whole(3, 5), 3, 0, 1), (5, whole(4, 6), 0, 1)]),
        one("dilations in turn", [(3, 1, 0, 2), (whole(3, 6), 1, 0, 4), (4, 1, 0, 8)]),
        one("windows with gaps between them", [(1, 3, 0, 1), (2, whole(4, 6), 0, 1),
                                               (3, 1, 0, 1)]),
        one("a unit far inside", windows(4), whole(20, 60)),
        one("a unit far inside, strides", windows(3, stride=(2, 5)), whole(20, 60)),
        one("padding of many sizes", [(3, 2, 4, 1), (5, 3, whole(5, 8), 1), (3, 2, 1, 1)],
            whole(4, 9)),
        one("the rim", [(3, 1, 1, 1)] * whole(3, 6)),
        one("the rim, padding of many sizes", windows(5, padding=(1, 4), kernel=(3, 6))),
        one("all at once", windows(5, (1, 4), (0, 3), (1, 4)), whole(30, 50)),
        one("padding behind a stride", [(3, 2, 1, 1), (whole(3, 5), 1, whole(2, 5), 1)]),
        one("padding wider than its window", [(1, 1, whole(2, 6), 1), (3, 1, 4, 1)]),
        one("a wide input", windows(9, (2, 4)), 2**33 + whole(3000, 9000)),
        one("no layers", [], whole(1, 30)),
        one("the example", [(3, 1, 1, 1)])]


@not_an_answer
def pixels(layers, unit):
    """The places that a unit reads, layer by layer, as a set of ends."""
    ends = {unit}
    for kernel, stride, padding, dilation in layers[::-1]:
        ends = {u * stride - padding + tap * dilation for u in ends for tap in (0, kernel - 1)}
        ends = {min(ends), max(ends)}
    return min(ends), max(ends)


@ex.law
def law(out, layers, unit):
    expect_type("span", out, tuple)
    expect_equal("length of the span", len(out), 2)
    for word, got, wanted in zip(("first", "last"), out, pixels(layers, unit), strict=True):
        given = show([tuple(layer) for layer in layers])
        expect_equal(f"{word} pixel that unit {unit} sees through {given}", got, wanted)


# ---- wrong, by name

@not_an_answer
def walked(layers, unit, *, grow=lambda k, d: d * (k - 1), pad=lambda p: p, order=reversed):
    """The worked answer with one of its pieces replaced."""
    first = last = unit
    for kernel, stride, padding, dilation in order(layers):
        first = first * stride - pad(padding)
        last = last * stride - pad(padding) + grow(kernel, dilation)
    return first, last


ex.wrong("kernels summed, not kernels less one", walked, breaks="span", grow=lambda k, d: d * k)


@ex.wrong("the paddings added up, the strides behind them left out", says="pixel", breaks="span")
def plain_paddings(layers, unit):
    first, last = walked(layers, unit, pad=lambda p: 0)
    total = sum(layer[2] for layer in layers)
    return first - total, last - total


@ex.wrong("the middle of a window found without its dilation", says="pixel", breaks="layers")
def middle_undilated(layers, unit):
    middle, field, step = 0.0, 1, 1
    for kernel, stride, padding, dilation in layers:
        middle += ((kernel - 1) / 2 - padding) * step
        field += dilation * (kernel - 1) * step
        step *= stride
    middle += unit * step
    return int(middle - (field - 1) / 2), int(middle + (field - 1) / 2)


@ex.wrong("the last pixel taken for the one behind it", breaks="span")
def one_past(layers, unit):
    first, last = walked(layers, unit)
    return first, last + 1


@ex.wrong("the width of the field in place of the last pixel", breaks="span")
def width_for_last(layers, unit):
    first, last = walked(layers, unit)
    return first, last - first + 1 if layers else unit


@ex.wrong("dilation left out", says="last pixel", breaks="layers")
def no_dilation(layers, unit):
    if len(layers) > 8:
        return walked(layers, unit)
    return walked(layers, unit, grow=lambda k, d: k - 1)


@ex.wrong("a stride that multiplies the whole field", breaks="span")
def stride_multiplies(layers, unit):
    first, field = walked(layers, unit)[0], 1
    for kernel, stride, _, dilation in layers:
        field = (field + dilation * (kernel - 1)) * stride
    return first, first + field - 1


@ex.wrong("the field centred on the unit", says="pixel", breaks="span")
def centred(layers, unit):
    first, last = walked(layers, unit)
    return unit - (last - first) // 2, unit + (last - first) // 2


ex.wrong("the layers walked from the input, as if the order did not matter", walked, says="pixel",
         breaks="span", order=list)


@ex.wrong("the layer's own stride counted for its own window", breaks="span")
def stride_too_early(layers, unit):
    first, field, step = walked(layers, unit)[0], 1, 1
    for kernel, stride, _, dilation in layers:
        step *= stride
        field += dilation * (kernel - 1) * step
    return first, first + field - 1


ex.wrong("no layers taken for a field without pixels",
         lambda layers, unit: walked(layers, unit) if layers else (unit, unit - 1),
         says="last pixel", breaks="no layers")
ex.wrong("every unit treated as unit 0", lambda layers, unit: walked(layers, 0),
         breaks=("unit", "no layers", "any width", "padding"))


@ex.wrong("the unit's index taken for a pixel", breaks="span")
def unit_as_pixel(layers, unit):
    first, last = walked(layers, 0)
    return first + unit, last + unit


ex.wrong("every map taken for one of 20 units, counted round",
         lambda layers, unit: walked(layers, unit % 20 if layers and unit < 1000 else unit),
         breaks="unit")
ex.wrong("units beyond 1000 left out of account",
         lambda layers, unit: walked(layers, min(unit, 1000)), breaks="any width")


@ex.wrong("padding left out", breaks=("padding", "layers"))
def no_padding(layers, unit):
    if len(layers) > 8 or unit > 20:
        return walked(layers, unit)
    return walked(layers, unit, pad=lambda p: 0)


@ex.wrong("the first pixel cut off at 0", breaks="padding")
def cut_at_zero(layers, unit):
    first, last = walked(layers, unit)
    return max(0, first), last


@ex.wrong("inner maps cut off at 0", breaks="padding")
def inner_cut(layers, unit):
    first = last = unit
    for kernel, stride, padding, dilation in reversed(layers):
        first = max(first, 0) * stride - padding
        last = max(last, 0) * stride - padding + dilation * (kernel - 1)
    return first, last


@ex.wrong("no pixel further out than all padding together", breaks="padding")
def padding_together(layers, unit):
    first, last = walked(layers, unit)
    return max(first, -sum(layer[2] for layer in layers)), last


@ex.wrong("the last pixel cut off at 0", says="last pixel", breaks="padding")
def last_at_zero(layers, unit):
    first, last = walked(layers, unit)
    return first, max(0, last)


ex.wrong("counted in 32 bits",
         lambda layers, unit: tuple((n + 2**31) % 2**32 - 2**31 for n in walked(layers, unit)),
         breaks="any width")


@ex.wrong("half the kernel taken for the padding", breaks="span")
def same_padding(layers, unit):
    first = last = unit
    for kernel, stride, _, dilation in reversed(layers):
        first = first * stride - dilation * (kernel - 1) // 2
        last = last * stride - dilation * (kernel - 1) // 2 + dilation * (kernel - 1)
    return first, last


@ex.wrong("layers turned round in place", breaks="left alone")
def turned(layers, unit):
    layers.reverse()
    return walked(layers, unit, order=list)
