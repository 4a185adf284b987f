"""Exercise 07.1, `map_bytes`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length, show
from dlsys_helpers.judging import not_an_answer

ex = exercise("07.1", "map_bytes", seen=("size", "batch", "layers"), says="bytes of layer")

BYTES = 4
DTYPE = {2: torch.float16, 4: torch.float32, 8: torch.float64}[BYTES]
ex.promise("bytes", f"List the bytes of each layer's {str(DTYPE)[6:]} output.",
           says=("bytes of layer",))
ex.promise_table("""
each       | The first layer comes first. | number of maps; type of the maps; bytes of layer
size       | Args: size: (height, width) of the input. | case a wide image; a tall image
batch      | batch: the number of images. | case a large batch; the example; maps too large for any
             memory
layers     | layers: a list of (channels, kernel, stride, padding), with square windows and dilation
             1. | case no layer; windows of one pixel; wide padding; strides of many sizes; a window
             over the whole map; strides longer than the window; many layers
left alone | The list is unchanged. | inputs after the call
rounding   | The number of positions is rounded down, as in torch. | case sides that the stride does
             not divide; the example; strides of many sizes; strides longer than the window; windows
             of one pixel; maps too large for any memory
counted    | Also count maps that are too large for any memory. | case maps too large for any memory
""")
ex.promise("example", "Example: size (5, 8), batch 2 and layers [(3, 3, 2, 0)] give "
           f"[{36 * BYTES}].",
           cases=("the example",))


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, size, layers, batch=1):
        return name, {"size": size, "batch": batch, "layers": layers}

    def same(n):
        return [(whole(2, 9), 3, 1, 1) for _ in range(n)]
    side = 16 * whole(2, 6)
    return [one("maps of one size", (side, side), same(whole(3, 6))),
            one("maps halved by windows of two", (side, side), [(whole(2, 9), 2, 2, 0)] * 3),
            one("sides that the stride does not divide", (side + 1, side + 1),
                [(4, 2, 2, 0), (whole(5, 9), 2, 2, 0), (2, 3, 1, 1)]),
            one("strides of many sizes", (91, 91), [(whole(2, 9), 7, 2, 3), (8, 3, 2, 1),
                                                 (4, 5, 3, 0)]),
            one("a wide image", (side, 3 * side + 16), same(2)),
            one("a tall image", (2 * side + 32, side), same(3)),
            one("a large batch", (side, side), same(2), batch=whole(30, 90)),
            one("windows of one pixel", (side, side), [(whole(20, 40), 1, 1, 0), (3, 1, 3, 0),
                                                       (4, 1, 1, whole(1, 4))]),
            one("strides longer than the window", (91, 91), [(2, 3, whole(4, 7), 0), (5, 2, 3, 1)]),
            one("many layers", (side, side), same(whole(7, 12))),
            one("wide padding", (10, 10), [(3, 3, 1, whole(3, 6)), (2, 5, 1, 4), (4, 4, 1, 2)]),
            one("no layer", (side, side), []),
            one("a window over the whole map", (side, side), [(3, side, 5, 0), (4, 1, 1, 0)]),
            one("maps too large for any memory", (2**24, 2**24),
                [(1, 3, 1, 1), (whole(3, 6), 3, 2, 0)], batch=2 * whole(500, 900) + 1),
            one("the example", (5, 8), [(3, 3, 2, 0)], batch=2)]


def by_torch(size, batch, layers):
    """Bytes of what torch's own convolution makes, on tensors without numbers."""
    x = torch.empty(batch, 1, *size, dtype=DTYPE, device="meta")
    for channels, kernel, stride, padding in layers:
        weight = x.new_empty(channels, x.shape[1], kernel, kernel)
        x = F.conv2d(x, weight, stride=stride, padding=padding)
        yield x.nbytes


@ex.law
def law(out, size, batch, layers):
    expect_length("maps", out, len(layers))
    for place, (got, wanted) in enumerate(zip(out, by_torch(size, batch, layers), strict=True)):
        given = f"{show(tuple(layers[:place + 1]))}, size {tuple(size)}, batch {batch}"
        expect_equal(f"bytes of layer {place} (from 0) of {given}", got, wanted)


# ---- wrong, by name

@not_an_answer
def sized(size, batch, layers):
    h, w = size
    found = []
    for channels, kernel, stride, padding in layers:
        h, w = ((n + 2 * padding - kernel) // stride + 1 for n in (h, w))
        found.append(int(BYTES * batch * channels * h * w))
    return found


wrong = ex.edits(sized)
PADDING = "(n + 2 * padding - kernel) // stride"
PADDING_2 = "(n + 2 * padding - kernel) // stride + 1"
wrong("counting values, not bytes", "bytes", "BYTES * batch", "batch")
wrong("counting four bytes per value" if BYTES == 2 else "counting two bytes per value", "bytes",
      "BYTES", "each", "h, w = size", "each = 4 if BYTES == 2 else 2; h, w = size",
      says="bytes of layer")
wrong("not multiplying by the number of channels",
      "bytes", "layers:", "[(1, *row[1:]) for row in layers]:")
ex.wrong("counting weights instead of maps",
         lambda size, batch, layers: [BYTES * row[0] * row[1] ** 2 for row in layers],
         breaks="bytes")
wrong("adding up the bytes of all layers", "each", "return found", "return sum(found)")


@ex.wrong("returning the last layer first", breaks="each")
def reverse(size, batch, layers):
    return sized(size, batch, layers)[::-1] if len(layers) > 1 else sized(size, batch, layers)


wrong("assuming a square image", ("size", "example"), "w = size", "w = (size[0], size[0])")
wrong("cropping a tall image to a square", "size",
      "h, w = size",
      "tall = size[0] > size[1]; size = (size[1], size[1]) if tall else size; h, w = size")
wrong("counting one image, whatever the batch size", "batch", "BYTES * batch", "BYTES")
wrong("padding on one side only", "bytes", "2 * padding", "padding")
wrong("limiting the padding to half a window", "layers",
      "layers:", "[(c, k, s, min(p, k // 2)) for c, k, s, p in layers]:")
wrong("leaving out the strides",
      ("bytes", "rounding", "example"), PADDING, "n + 2 * padding - kernel")
wrong("leaving out the padding", "bytes", "n + 2 * padding - kernel", "max(0, n - kernel)")
wrong("dividing the size by the stride, ignoring window and padding", "bytes",
      PADDING_2, "n // stride")
# What askers of forums write most often: https://datascience.stackexchange.com/q/40906 and
# https://discuss.pytorch.org/t/93850.
wrong("leaving out the + 1: (size + 2 * padding - kernel) / stride", "bytes", PADDING_2,
      PADDING + "")
wrong("dividing only the padding by the stride", "bytes",
      PADDING, "n - kernel + 2 * padding // stride")
wrong("assuming padding that keeps the size: size / stride, rounded up", "bytes",
      PADDING_2, "-(-n // stride)")
ex.wrong("computing every layer's map from the image size",
         lambda size, batch, layers: [sized(size, batch, [row])[0] for row in layers],
         breaks="bytes")
wrong("rounding the number of positions up",
      "rounding", PADDING, "-((kernel - n - 2 * padding) // stride)")
wrong("not rounding the number of positions",
      "rounding", PADDING, "(n + 2 * padding - kernel) / stride")
wrong("changing the list of layers in place",
      "left alone", "return found", "layers.clear(); return found")
wrong("running the layers on tensors", "counted",
      "h, w = size", "torch.empty(batch, *size); h, w = size", says="raised RuntimeError")
wrong("counting in 32-bit integers", "counted",
      "return found", "return [(n + 2**31) % 2**32 - 2**31 for n in found]")
wrong("counting in floats, which are exact only up to 2^53", "counted",
      "return found", "return [int(float(n)) for n in found]")
