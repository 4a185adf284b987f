"""Exercise 07.1, `map_bytes`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_equal, expect_length, show

ex = exercise("07.1", "map_bytes", seen=("size", "batch", "layers"))

BYTES = 4
DTYPE = {2: torch.float16, 4: torch.float32, 8: torch.float64}[BYTES]
ex.promise("bytes", f"Bytes of each layer's {str(DTYPE)[6:]} output,", says=("bytes of layer",))
ex.promise("each", "from the first layer on.", says=("number of maps", "type of the maps",
                                                     "bytes of layer"))
ex.promise("size", "size: (height, width) of the input;", cases=("a wide image", "a tall image"))
ex.promise("batch", "batch: images in it.",
           cases=("a large batch", "the example", "maps too large for any memory"))
ex.promise("layers", "layers: a list of (channels, kernel, stride, padding), windows square, "
           "dilation 1,", cases=("no layer", "windows of one pixel", "wide padding",
                                 "strides in turn", "a window over the whole map",
                                 "strides longer than the window", "many layers"))
ex.promise("left alone", "left as it is.", says=("inputs after the call",))
ex.promise("rounding", "Numbers of places are rounded down, as torch does.",
           cases=("sides that do not divide", "the example", "strides in turn",
                  "strides longer than the window", "windows of one pixel",
                  "maps too large for any memory"))
ex.promise("counted", "Maps too large for any memory are counted as well.",
           cases=("maps too large for any memory",))
ex.promise("example", "Example: size (5, 8), batch 2, layers [(3, 3, 2, 0)]: "
           f"[{36 * BYTES}].",
           cases=("the example",))


@ex.cases
def cases(g):
    def whole(low, high):
        return int(torch.randint(low, high, (), generator=g))

    def one(name, size, layers, batch=1):
        return name, {"size": size, "batch": batch, "layers": layers}

    def same(n):
        return [(whole(2, 9), 3, 1, 1) for _ in range(n)]
    side = 16 * whole(2, 6)
    return [one("maps of one size", (side, side), same(whole(3, 6))),
            one("halved by windows of two", (side, side), [(whole(2, 9), 2, 2, 0)] * 3),
            one("sides that do not divide", (side + 1, side + 1),
                [(4, 2, 2, 0), (whole(5, 9), 2, 2, 0), (2, 3, 1, 1)]),
            one("strides in turn", (91, 91), [(whole(2, 9), 7, 2, 3), (8, 3, 2, 1), (4, 5, 3, 0)]),
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


# ---- right by another route

@ex.right("places counted one by one")
def counted(size, batch, layers):
    found = []
    for channels, kernel, stride, padding in layers:
        size = [len(range(0, n + 2 * padding - kernel + 1, stride)) for n in size]
        found.append(size[0] * size[1] * channels * batch * BYTES)
    return found


@ex.right("by recursion")
def recursive(size, batch, layers):
    if not layers:
        return []
    (channels, kernel, stride, padding), *rest = layers
    sides = tuple(1 + (n - kernel + 2 * padding) // stride for n in size)
    return [BYTES * batch * channels * sides[0] * sides[1], *recursive(sides, batch, rest)]


@ex.right("divmod")
def by_divmod(size, batch, layers):
    h, w = size
    found = []
    for c, k, s, p in layers:
        h, w = (divmod(n + 2 * p - k, s)[0] + 1 for n in (h, w))
        found.append(c * h * w * batch * 8 * BYTES // 8)
    return found


@ex.right("pooling of a meta tensor")
def by_pooling(size, batch, layers):
    x, found = torch.empty(batch, 1, *size, dtype=DTYPE, device="meta"), []
    for channels, kernel, stride, padding in layers:
        x = F.max_pool2d(F.pad(x, [padding] * 4), kernel, stride)
        found.append(x.nbytes * channels)
    return found


# ---- wrong, by name

def sized(size, batch, layers, *, each=BYTES,
          places=lambda n, k, s, p: (n + 2 * p - k) // s + 1, square=False):
    """The right answer with its pieces as options."""
    h, w = (size[0], size[0]) if square else size
    found = []
    for channels, kernel, stride, padding in layers:
        h, w = (places(n, kernel, stride, padding) for n in (h, w))
        found.append(int(each * batch * channels * h * w))
    return found


@ex.wrong("numbers counted, not bytes", says="bytes of layer", breaks="bytes")
def numbers(size, batch, layers):
    return sized(size, batch, layers, each=1)


@ex.wrong("four bytes a number" if BYTES == 2 else "two bytes a number", says="bytes of layer",
          breaks="bytes")
def other_dtype(size, batch, layers):
    return sized(size, batch, layers, each=4 if BYTES == 2 else 2)


@ex.wrong("channels left out", says="bytes of layer", breaks="bytes")
def no_channels(size, batch, layers):
    return sized(size, batch, [(1, *row[1:]) for row in layers])


@ex.wrong("weights in place of maps", says="bytes of layer", breaks="bytes")
def weights(size, batch, layers):
    return [BYTES * row[0] * row[1] ** 2 for row in layers]


@ex.wrong("the sum of all layers", says="type of the maps", breaks="each")
def summed(size, batch, layers):
    return sum(sized(size, batch, layers))


@ex.wrong("the last layer first", says="bytes of layer", breaks="each")
def reverse(size, batch, layers):
    return sized(size, batch, layers)[::-1] if len(layers) > 1 else sized(size, batch, layers)


@ex.wrong("a square image taken for granted", says="bytes of layer", breaks=("size", "example"))
def square(size, batch, layers):
    return sized(size, batch, layers, square=True)


@ex.wrong("a tall image turned on its side, and cut", says="bytes of layer", breaks="size")
def cut(size, batch, layers):
    tall = size[0] > size[1]
    return sized((size[1], size[1]) if tall else size, batch, layers)


@ex.wrong("one image, whatever the batch", says="bytes of layer", breaks="batch")
def one_image(size, batch, layers):
    return sized(size, 1, layers)


@ex.wrong("padding on one side only", says="bytes of layer", breaks="bytes")
def one_side(size, batch, layers):
    return sized(size, batch, layers, places=lambda n, k, s, p: (n + p - k) // s + 1)


@ex.wrong("padding beyond half a window cut off", says="bytes of layer", breaks="layers")
def cut_padding(size, batch, layers):
    return sized(size, batch, [(c, k, s, min(p, k // 2)) for c, k, s, p in layers])


@ex.wrong("strides left out", says="bytes of layer", breaks=("bytes", "rounding", "example"))
def no_stride(size, batch, layers):
    return sized(size, batch, layers, places=lambda n, k, s, p: n + 2 * p - k + 1)


@ex.wrong("padding left out", says="bytes of layer", breaks="bytes")
def no_padding(size, batch, layers):
    return sized(size, batch, layers, places=lambda n, k, s, p: max(0, n - k) // s + 1)


@ex.wrong("the size divided by the stride, window and padding left out", says="bytes of layer",
          breaks="bytes")
def size_over_stride(size, batch, layers):
    return sized(size, batch, layers, places=lambda n, k, s, p: n // s)


@ex.wrong("every layer on the input's size", says="bytes of layer", breaks="bytes")
def each_on_input(size, batch, layers):
    return [sized(size, batch, [row])[0] for row in layers]


@ex.wrong("places rounded up", says="bytes of layer", breaks="rounding")
def rounded_up(size, batch, layers):
    return sized(size, batch, layers, places=lambda n, k, s, p: -((k - n - 2 * p) // s) + 1)


@ex.wrong("places never rounded", says="bytes of layer", breaks="rounding")
def never_rounded(size, batch, layers):
    return sized(size, batch, layers, places=lambda n, k, s, p: (n + 2 * p - k) / s + 1)


@ex.wrong("layers changed in place", says="inputs after the call", breaks="left alone")
def emptied(size, batch, layers):
    found = sized(size, batch, layers)
    layers.clear()
    return found


@ex.wrong("layers really run on tensors", says="raised RuntimeError", breaks="counted")
def really_run(size, batch, layers):
    torch.empty(batch, *size)
    return sized(size, batch, layers)


@ex.wrong("counted in 32 bits", says="bytes of layer", breaks="counted")
def in_32_bits(size, batch, layers):
    return [(n + 2**31) % 2**32 - 2**31 for n in sized(size, batch, layers)]


@ex.wrong("counted in floats, which hold 53 bits", says="bytes of layer", breaks="counted")
def in_floats(size, batch, layers):
    return [int(float(n)) for n in sized(size, batch, layers)]


@ex.wrong("the example, with its number looked up wrong", says="bytes of layer",
          breaks="example")
def looked_up(size, batch, layers):
    return [168] if tuple(size) == (5, 8) else sized(size, batch, layers)
