"""Exercise 07.5, `layout`."""

from __future__ import annotations

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length
from dlsys_helpers.judging import not_an_answer

ex = exercise("07.5", "layout", seen=("tensors",), says="layout of")

ex.promise_table("""
answer  | Name the dense memory layout of a tensor with axes (N, C, H, W). | layout of
first   | Returns: "NCHW": torch's default, with W innermost. | case as torch makes it; a wide
          image; one image; small tensors of all kinds
last    | "NHWC": channels last, with C innermost. | case channels last; channels last, one image;
          the example; small tensors of all kinds
both    | "both": the strides fit both layouts. | case one channel; one pixel; a single value; one
          channel, odd stride; small tensors of all kinds
neither | "neither": the strides fit neither. | case rows and columns swapped; every second column;
          a crop of a larger image; two images with a gap between them; the batch innermost;
          expanded from one image; small tensors of all kinds
ones    | An axis of length 1 has a single entry, so its stride does not matter. | case one image,
          odd stride; one row, odd stride; channels last, one image, odd stride; one channel, odd
          stride; small tensors of all kinds
sizes   | No axis has length 0. | case a single row; a single column; small tensors of all kinds
example | Example: shape (2, 3, 4, 5) with strides (60, 1, 15, 3) gives "NHWC". | case the example
""")


@ex.cases
def cases(g):
    def size():
        return [2 + int(k) for k in torch.randint(7, (4,), generator=g)]

    def dense(shape, order):
        strides, step = [0] * 4, 1
        for axis in order:
            strides[axis], step = step, step * shape[axis]
        return strides

    def one(name, order=(3, 2, 1, 0), change=None, **lengths):
        shape = size()
        for axis, length in lengths.items():
            shape["nchw".index(axis)] = length
        strides = dense(shape, order)
        for axis, factor in (change or {}).items():
            strides["nchw".index(axis)] *= factor
        return name, {"tensors": [(tuple(shape), tuple(strides))]}

    def any_kind():
        """A layout with its axes in some order; lengths of 1 and one odd stride are common."""
        shape = [1 + int(k) for k in torch.randint(3, (4,), generator=g)]
        order = [(3, 2, 1, 0), (1, 3, 2, 0), torch.randperm(4, generator=g).tolist()]
        strides = dense(shape, order[int(torch.randint(3, (), generator=g))])
        for axis in range(4):
            if shape[axis] == 1 and torch.rand((), generator=g) < 0.5:
                strides[axis] = int(torch.randint(40, (), generator=g))
        if torch.rand((), generator=g) < 0.3:
            strides[int(torch.randint(4, (), generator=g))] = int(torch.randint(9, (), generator=g))
        return tuple(shape), tuple(strides)
    last, odd = (1, 3, 2, 0), 7 + int(torch.randint(9, (), generator=g))
    return [one("as torch makes it"), one("a wide image", w=40), one("channels last", last),
            one("one image", n=1), one("channels last, one image", last, n=1),
            one("one channel", c=1), one("one pixel", h=1, w=1),
            one("a single value", n=1, c=1, h=1, w=1),
            one("a single row", h=1), one("a single column", last, w=1),
            one("one image, odd stride", n=1, change={"n": odd}),
            one("one row, odd stride", h=1, change={"h": odd}),
            one("channels last, one image, odd stride", last, n=1, change={"n": odd}),
            one("rows and columns swapped", (2, 3, 1, 0)),
            one("every second column", change={"w": 2}),
            one("a crop of a larger image", change={"n": 3, "c": 2}),
            one("two images with a gap between them", n=2, change={"n": 2}),
            one("the batch innermost", (0, 3, 2, 1)),
            one("expanded from one image", change={"n": 0}),
            one("one channel, odd stride", c=1, change={"c": odd}),
            ("the example", {"tensors": [((2, 3, 4, 5), (60, 1, 15, 3))]}),
            ("small tensors of all kinds", {"tensors": [any_kind() for _ in range(400)]})]


@ex.act
def act(fn, tensors):
    return [fn(shape, strides) for shape, strides in tensors]


@not_an_answer
def by_torch(shape, strides):
    """What torch itself says of a tensor with these strides and no numbers."""
    tensor = torch.empty_strided(shape, strides, device="meta")
    first = tensor.is_contiguous()
    last = tensor.permute(0, 2, 3, 1).is_contiguous()
    names = {(1, 1): "both", (1, 0): "NCHW", (0, 1): "NHWC", (0, 0): "neither"}
    return names[int(first), int(last)]


@ex.law
def law(out, tensors):
    expect_length("answers", out, len(tensors))
    for got, (shape, strides) in zip(out, tensors, strict=True):
        expect_equal(f"layout of {shape} with strides {strides}", got, by_torch(shape, strides))


NAMES = {(True, True): "both", (True, False): "NCHW", (False, True): "NHWC",
         (False, False): "neither"}


# ---- wrong, by name

@not_an_answer
def judged(shape, strides, *, ones=True):
    def dense(order):
        step = 1
        for axis in order:
            if strides[axis] != step and (shape[axis] > 1 or not ones):
                return False
            step *= shape[axis]
        return True
    out = NAMES[dense((3, 2, 1, 0)), dense((1, 3, 2, 0))]
    return out


wrong = ex.edits(judged)
wrong("swapping the names 'NCHW' and 'NHWC'", "answer",
      "NAMES", '{**NAMES, (True, False): "NHWC", (False, True): "NCHW"}')
wrong("swapping H and W when the channels are last", ("answer", "last"), "1, 3, 2", "1, 2, 3")
wrong("swapping H and W when the channels come first", ("answer", "first"), "3, 2, 1", "2, 3, 1")


@ex.wrong("checking only which axis has stride 1", breaks=("answer", "both"))
def innermost(shape, strides):
    return "NHWC" if strides[1] == 1 else "NCHW" if strides[3] == 1 else "neither"


@ex.wrong("checking only which axis has stride 1, apart from axes of length 1",
          breaks=("neither", "ones"))
def stride_of_one(shape, strides):
    if shape[1] == 1 or shape[2] == shape[3] == 1:
        return "both"
    return "NCHW" if strides[3] == 1 else "NHWC" if strides[1] == 1 else "neither"


@ex.wrong("comparing the order of the strides, but not their sizes", breaks="neither")
def ordered(shape, strides):
    def rising(order):
        held = [strides[axis] for axis in order if shape[axis] > 1]
        return held == sorted(held)
    return NAMES[rising((3, 2, 1, 0)), rising((1, 3, 2, 0))]


wrong("answering 'both' only for a single channel", "both",
      "return out", 'return "NCHW" if out == "both" and shape[1] > 1 else out')
wrong("sorting the axes by their strides, ignoring gaps and lengths",
      ("both", "neither", "ones", "sizes"), "def dense",
      'order = sorted(range(4), key=lambda axis: -strides[axis]); return {(0, 1, 2, 3): "NCHW", '
      '(0, 2, 3, 1): "NHWC"}.get(tuple(order), "neither")\n    def dense')
wrong("answering 'neither' for a single image with channels last", "last",
      "def dense", "n, c, h, w = shape\n    def dense", "return out",
      'return "neither" if out == "NHWC" and n == 1 and (strides[0] == c * h * w) else out')
wrong("recognizing the layout 'NHWC' only with three channels", ("last", "ones", "sizes"),
      "return out",
      'return "neither" if out == "NHWC" and (shape[1] != 3 or shape[0] == 1) else out')
wrong("answering 'NCHW' instead of 'both'", "both", "NAMES", '{**NAMES, (True, True): "NCHW"}')
wrong("answering 'NHWC' instead of 'both'", "both", "NAMES", '{**NAMES, (True, True): "NHWC"}')
wrong("answering 'NCHW' instead of 'neither'", "neither",
      "NAMES", '{**NAMES, (False, False): "NCHW"}')
wrong("overlooking gaps between images or channels", "neither",
      "return out",
      "plain = strides[3] == 1 and strides[2] == shape[3] and strides[1] >= shape[2] * shape[3]; "
      'return "NCHW" if out == "neither" and plain and (strides[0] > 0) else out')


@ex.wrong("comparing the strides of axes of length 1 as well", breaks=("ones", "both"))
def counts_ones(shape, strides):
    found = judged(shape, strides, ones=False)
    return judged(shape, strides) if found == "NHWC" else found


wrong("mistaking the odd batch stride of a single image for a gap", "ones",
      "def dense", "n, c, h, w = shape\n    def dense",
      "return out", 'return "neither" if n == 1 and strides[0] > c * h * w else out')
wrong("answering 'neither' for a single row or column", ("sizes", "ones", "both"),
      "return out", 'return "neither" if 1 in shape[2:] else out')
wrong("answering 'neither' for a single column", "sizes",
      "return out", 'return "neither" if shape[3] == 1 and out == "NHWC" else out')
