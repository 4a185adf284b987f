"""Exercise 07.1, `map_bytes`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s07.e1_map_bytes import BYTES, DTYPE, ex, sized


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


ex.probe("the example, with its number looked up wrong",
         lambda size, batch, layers: [168] if tuple(size) == (5, 8) else sized(size, batch, layers),
         breaks="example")


@ex.probe("half a window taken to keep the size", breaks="bytes")
def half_a_window_keeps_the_size(size, batch, layers):
    (h, w), found = size, []
    for channels, kernel, stride, padding in layers:
        if stride > 1 or padding != kernel // 2:
            h, w = ((n + 2 * padding - kernel) // stride + 1 for n in (h, w))
        found.append(4 * batch * channels * h * w)
    return found
