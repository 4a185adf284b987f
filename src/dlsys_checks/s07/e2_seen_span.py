"""Exercise 07.2, `seen_span`."""

from __future__ import annotations

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_type, show
from dlsys_helpers.judging import not_an_answer

ex = exercise("07.2", "seen_span", seen=("layers", "unit"), says="first pixel")
ex.promise_table("""
span       | Find the first and last input pixel that a unit reads along one axis. | first
             pixel; last pixel
layers     | Args: layers: a list of (kernel, stride, padding, dilation), in order from the input. |
             case strides of many sizes; padding of many sizes; dilations of many sizes; windows
             with gaps between them; all at once
no layers  | Without layers, the unit is the pixel itself. | case no layers
unit       | unit: the unit's index in the last map. | case a unit far inside; a unit far inside,
             with strides; no layers; all at once
any width  | The input is as wide as it needs to be, and pixels are counted from 0. | case a wide
             input
padding    | Positions in the padding, even in the padding of inner maps, count like all others, so
             both results can be negative. | case a unit at the rim; a unit at the rim, padding of
             many sizes; padding of many sizes; padding after a stride; padding wider than its
             window; the example
left alone | The list is unchanged. | inputs after the call
example    | Example: layers [(3, 1, 1, 1)] and unit 0 give (-1, 1). | case the example
""")


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
        one("strides of many sizes", [(3, 2, 0, 1), (whole(3, 5), 3, 0, 1),
                                      (5, whole(4, 6), 0, 1)]),
        one("dilations of many sizes", [(3, 1, 0, 2), (whole(3, 6), 1, 0, 4), (4, 1, 0, 8)]),
        one("windows with gaps between them", [(1, 3, 0, 1), (2, whole(4, 6), 0, 1),
                                               (3, 1, 0, 1)]),
        one("a unit far inside", windows(4), whole(20, 60)),
        one("a unit far inside, with strides", windows(3, stride=(2, 5)), whole(20, 60)),
        one("padding of many sizes", [(3, 2, 4, 1), (5, 3, whole(5, 8), 1), (3, 2, 1, 1)],
            whole(4, 9)),
        one("a unit at the rim", [(3, 1, 1, 1)] * whole(3, 6)),
        one("a unit at the rim, padding of many sizes", windows(5, padding=(1, 4), kernel=(3, 6))),
        one("all at once", windows(5, (1, 4), (0, 3), (1, 4)), whole(30, 50)),
        one("padding after a stride", [(3, 2, 1, 1), (whole(3, 5), 1, whole(2, 5), 1)]),
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
def walked(layers, unit):
    first = last = unit
    for kernel, stride, padding, dilation in reversed(layers):
        first = first * stride - padding
        last = last * stride - padding + dilation * (kernel - 1)
    out = first, last
    return out


wrong = ex.edits(walked)
PADDING = "first * stride - padding"
wrong("adding up kernel instead of kernel - 1", "span", "kernel - 1", "kernel")
wrong("adding up the paddings without multiplying them by the strides", "span",
      PADDING, "first * stride", "last * stride - padding", "last * stride", "return out",
      "first, last = out; total = sum(layer[2] for layer in layers); return first - total, last "
      "- total", says="pixel")


@ex.wrong("ignoring the dilation when finding the middle of a window",
          says="pixel", breaks="layers")
def middle_undilated(layers, unit):
    middle, field, step = 0.0, 1, 1
    for kernel, stride, padding, dilation in layers:
        middle += ((kernel - 1) / 2 - padding) * step
        field += dilation * (kernel - 1) * step
        step *= stride
    middle += unit * step
    return int(middle - (field - 1) / 2), int(middle + (field - 1) / 2)


wrong("returning the pixel after the last one", "span",
      "return out", "first, last = out; return first, last + 1")
wrong("returning the width of the receptive field instead of the last pixel", "span",
      "return out", "first, last = out; return first, last - first + 1 if layers else unit")
wrong("leaving out the dilation", "layers",
      "dilation * (kernel - 1)", "kernel - 1", "first = last =",
      "if len(layers) > 8:\n        first = last = unit\n        for kernel, stride, padding, "
      "dilation in reversed(layers): first = first * stride - padding; last = last * stride - "
      "padding + dilation * (kernel - 1)\n        out = first, last; return out\n    first = "
      "last =", says="last pixel")
wrong("multiplying the whole receptive field by the stride", "span",
      "return out",
      "first, field = out[0], 1\n    for kernel, stride, _, dilation in layers: field = (field + "
      "dilation * (kernel - 1)) * stride\n    return first, first + field - 1")
wrong("centring the receptive field on the unit's index", "span",
      "return out",
      "first, last = out; return unit - (last - first) // 2, unit + (last - first) // 2",
      says="pixel")
wrong("going through the layers from the input, as if their order did not matter", "span",
      "reversed", "list", says="pixel")
wrong("applying a layer's stride to its own window", "span",
      "return out",
      "first, field, step = out[0], 1, 1\n    for kernel, stride, _, dilation in layers: step *= "
      "stride; field += dilation * (kernel - 1) * step\n    return first, first + field - 1")
wrong("returning an empty span when there are no layers", "no layers",
      "return out", "return out if layers else (unit, unit - 1)", says="last pixel")
wrong("treating every unit as unit 0", ("unit", "no layers", "any width", "padding"),
      "last = unit", "last = 0")
wrong("adding the unit's index to the span of unit 0", "span",
      "last = unit", "last = 0",
      "return out", "first, last = out; return first + unit, last + unit")
wrong("wrapping the unit's index around after 20 units", "unit",
      "last = unit", "last = unit % 20 if layers and unit < 1000 else unit")
wrong("treating every unit beyond 1000 as unit 1000", "any width", "last = unit",
      "last = min(unit, 1000)")
wrong("leaving out the padding", ("padding", "layers"),
      PADDING, "first * stride", "last * stride - padding", "last * stride", "first = last =",
      "if len(layers) > 8 or unit > 20:\n        first = last = unit\n        for kernel, "
      "stride, padding, dilation in reversed(layers): first = first * stride - padding; last = "
      "last * stride - padding + dilation * (kernel - 1)\n        out = first, last; return out\n"
      "    first = last =")
wrong("adding the padding for the last pixel instead of subtracting it", "span",
      "last * stride - padding",
      "last * stride + padding", says="last pixel")
wrong("clamping the first pixel at 0", "padding",
      "return out", "first, last = out; return max(0, first), last")
wrong("clamping positions in inner maps at 0", "padding",
      "first = first", "first = max(first, 0)", "last = last", "last = max(last, 0)")
wrong("clamping the first pixel at minus the sum of all paddings", "padding",
      "return out",
      "first, last = out; return max(first, -sum(layer[2] for layer in layers)), last")
wrong("clamping the last pixel at 0", "padding",
      "return out", "first, last = out; return first, max(0, last)", says="last pixel")
wrong("counting in 32-bit integers", "any width",
      "return out", "return tuple(((n + 2**31) % 2**32 - 2**31 for n in out))")
wrong("using half the kernel size as the padding", "span",
      "padding,", "_,", PADDING, "first * stride - dilation * (kernel - 1) // 2",
      "padding +", "dilation * (kernel - 1) // 2 +")
wrong("reversing the list of layers in place", "left alone",
      "first = last =", "layers.reverse(); first = last =", "reversed", "list")
