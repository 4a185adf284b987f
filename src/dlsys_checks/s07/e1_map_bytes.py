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
    whole = integers(g)

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


# ---- wrong, by name

@not_an_answer
def sized(size, batch, layers, *, each=BYTES,
          places=lambda n, k, s, p: (n + 2 * p - k) // s + 1, square=False):
    """The right answer with its pieces as options."""
    h, w = (size[0], size[0]) if square else size
    found = []
    for channels, kernel, stride, padding in layers:
        h, w = (places(n, kernel, stride, padding) for n in (h, w))
        found.append(int(each * batch * channels * h * w))
    return found


ex.wrong("numbers counted, not bytes", sized, breaks="bytes", each=1)


@ex.wrong("four bytes a number" if BYTES == 2 else "two bytes a number", says="bytes of layer",
          breaks="bytes")
def other_dtype(size, batch, layers):
    return sized(size, batch, layers, each=4 if BYTES == 2 else 2)


ex.wrong("channels left out",
         lambda size, batch, layers: sized(size, batch, [(1, *row[1:]) for row in layers]),
         breaks="bytes")
ex.wrong("weights in place of maps",
         lambda size, batch, layers: [BYTES * row[0] * row[1] ** 2 for row in layers],
         breaks="bytes")
ex.wrong("the sum of all layers", lambda size, batch, layers: sum(sized(size, batch, layers)),
         breaks="each")


@ex.wrong("the last layer first", breaks="each")
def reverse(size, batch, layers):
    return sized(size, batch, layers)[::-1] if len(layers) > 1 else sized(size, batch, layers)


@ex.wrong("a square image taken for granted", breaks=("size", "example"))
def square(size, batch, layers):
    return sized(size, batch, layers, square=True)


@ex.wrong("a tall image turned on its side, and cut", breaks="size")
def cut(size, batch, layers):
    tall = size[0] > size[1]
    return sized((size[1], size[1]) if tall else size, batch, layers)


ex.wrong("one image, whatever the batch", lambda size, batch, layers: sized(size, 1, layers),
         breaks="batch")
ex.wrong("padding on one side only", sized, breaks="bytes",
         places=lambda n, k, s, p: (n + p - k) // s + 1)


@ex.wrong("padding beyond half a window cut off", breaks="layers")
def cut_padding(size, batch, layers):
    return sized(size, batch, [(c, k, s, min(p, k // 2)) for c, k, s, p in layers])


ex.wrong("strides left out", sized, breaks=("bytes", "rounding", "example"),
         places=lambda n, k, s, p: n + 2 * p - k + 1)
ex.wrong("padding left out", sized, breaks="bytes",
         places=lambda n, k, s, p: max(0, n - k) // s + 1)
ex.wrong("the size divided by the stride, window and padding left out", sized, breaks="bytes",
         places=lambda n, k, s, p: n // s)
# What askers of forums write most often: https://datascience.stackexchange.com/q/40906 and
# https://discuss.pytorch.org/t/93850.
ex.wrong("no 1 added: (size + 2 * padding - kernel) / stride", sized, breaks="bytes",
         places=lambda n, k, s, p: (n + 2 * p - k) // s)
ex.wrong("the padding alone divided by the stride", sized, breaks="bytes",
         places=lambda n, k, s, p: n - k + 2 * p // s + 1)
ex.wrong("padding that keeps the size taken for granted: size / stride, rounded up", sized,
         breaks="bytes", places=lambda n, k, s, p: -(-n // s))
ex.wrong("every layer on the input's size",
         lambda size, batch, layers: [sized(size, batch, [row])[0] for row in layers],
         breaks="bytes")
ex.wrong("places rounded up", sized, breaks="rounding",
         places=lambda n, k, s, p: -((k - n - 2 * p) // s) + 1)
ex.wrong("places never rounded", sized, breaks="rounding",
         places=lambda n, k, s, p: (n + 2 * p - k) / s + 1)


@ex.wrong("layers changed in place", breaks="left alone")
def emptied(size, batch, layers):
    found = sized(size, batch, layers)
    layers.clear()
    return found


@ex.wrong("layers really run on tensors", says="raised RuntimeError", breaks="counted")
def really_run(size, batch, layers):
    torch.empty(batch, *size)
    return sized(size, batch, layers)


@ex.wrong("counted in 32 bits", breaks="counted")
def in_32_bits(size, batch, layers):
    return [(n + 2**31) % 2**32 - 2**31 for n in sized(size, batch, layers)]


ex.wrong("counted in floats, which hold 53 bits",
         lambda size, batch, layers: [int(float(n)) for n in sized(size, batch, layers)],
         breaks="counted")
