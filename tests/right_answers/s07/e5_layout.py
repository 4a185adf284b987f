"""Exercise 07.5, `layout`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s07.e5_layout import NAMES, ex, judged


@ex.right("torch asked on the device meta")
def asked(shape, strides):
    tensor = torch.empty_strided(shape, strides, device="meta")
    return NAMES[tensor.is_contiguous(),
                 tensor.is_contiguous(memory_format=torch.channels_last)]


@ex.right("the strides of both layouts written out")
def written_out(shape, strides):
    _, c, h, w = shape
    first, last = (c * h * w, h * w, w, 1), (h * w * c, 1, w * c, c)

    def agrees(wanted):
        return all(a == b or k == 1 for a, b, k in zip(strides, wanted, shape, strict=True))
    return NAMES[agrees(first), agrees(last)]


@ex.right("the axes of length one taken out first")
def without_ones(shape, strides):
    def dense(order):
        step = 1
        for length, stride in ((shape[a], strides[a]) for a in order if shape[a] > 1):
            if stride != step:
                return False
            step *= length
        return True
    return NAMES[dense([3, 2, 1, 0]), dense([1, 3, 2, 0])]


@ex.right("each stride over the next")
def by_ratios(shape, strides):
    def dense(order):
        left = [(strides[a], shape[a]) for a in order if shape[a] != 1]
        if left and left[0][0] != 1:
            return False
        return all(outer == inner * length
                   for (inner, length), (outer, _) in zip(left, left[1:], strict=False))
    return NAMES[dense((3, 2, 1, 0)), dense((1, 3, 2, 0))]


ex.probe("wide tensors called neither",
         lambda shape, strides: "neither" if shape[3] >= 40 else judged(shape, strides),
         breaks="first")


@ex.probe("the example, looked up wrong", breaks="example")
def looked_up(shape, strides):
    return "NCHW" if tuple(strides) == (60, 1, 15, 3) else judged(shape, strides)
