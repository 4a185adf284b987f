"""Exercise 07.5, `layout`."""

from __future__ import annotations

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length
from dlsys_helpers.judging import not_an_answer

ex = exercise("07.5", "layout", seen=("tensors",), says="layout of")

ex.promise("answer", "How the four axes (N, C, H, W) of a tensor lie in memory, densely.",
           says=("layout of",))
ex.promise("first", '"NCHW": as torch makes tensors, W the innermost.',
           cases=("as torch makes it", "a wide one", "one picture", "small ones of all kinds"))
ex.promise("last", '"NHWC": channels last, C the innermost.',
           cases=("channels last", "channels last, one picture", "the example",
                  "small ones of all kinds"))
ex.promise("both", '"both", where the two cannot be told apart.',
           cases=("one channel", "one pixel", "a single number", "one channel, odd stride",
                  "small ones of all kinds"))
ex.promise("neither", '"neither".',
           cases=("rows and columns swapped", "every second column", "a crop of a larger one",
                  "two pictures with a gap", "the batch innermost", "expanded from one picture",
                  "small ones of all kinds"))
ex.promise("ones", "An axis of length 1 has nobody beside it: its stride does not count.",
           cases=("one picture, odd stride", "one row, odd stride",
                  "channels last, one picture, odd stride", "one channel, odd stride",
                  "small ones of all kinds"))
ex.promise("sizes", "No axis has the length 0.", cases=("a single row", "a single column",
                                                           "small ones of all kinds"))
ex.promise("example", 'Example: shape (2, 3, 4, 5), strides (60, 1, 15, 3): "NHWC".',
           cases=("the example",))


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
    return [one("as torch makes it"), one("a wide one", w=40), one("channels last", last),
            one("one picture", n=1), one("channels last, one picture", last, n=1),
            one("one channel", c=1), one("one pixel", h=1, w=1),
            one("a single number", n=1, c=1, h=1, w=1),
            one("a single row", h=1), one("a single column", last, w=1),
            one("one picture, odd stride", n=1, change={"n": odd}),
            one("one row, odd stride", h=1, change={"h": odd}),
            one("channels last, one picture, odd stride", last, n=1, change={"n": odd}),
            one("rows and columns swapped", (2, 3, 1, 0)),
            one("every second column", change={"w": 2}),
            one("a crop of a larger one", change={"n": 3, "c": 2}),
            one("two pictures with a gap", n=2, change={"n": 2}),
            one("the batch innermost", (0, 3, 2, 1)),
            one("expanded from one picture", change={"n": 0}),
            one("one channel, odd stride", c=1, change={"c": odd}),
            ("the example", {"tensors": [((2, 3, 4, 5), (60, 1, 15, 3))]}),
            ("small ones of all kinds", {"tensors": [any_kind() for _ in range(400)]})]


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
def judged(shape, strides, *, names=NAMES, ones=True, first=(3, 2, 1, 0), last=(1, 3, 2, 0)):
    """The right answer with its pieces as options."""
    def dense(order):
        step = 1
        for axis in order:
            if strides[axis] != step and (shape[axis] > 1 or not ones):
                return False
            step *= shape[axis]
        return True
    return names[dense(first), dense(last)]


ex.wrong("the two names the wrong way round", judged, breaks="answer",
         names={**NAMES, (True, False): "NHWC", (False, True): "NCHW"})
ex.wrong("H and W exchanged where the channels are last", judged, breaks=("answer", "last"),
         last=(1, 2, 3, 0))
ex.wrong("H and W exchanged where the channels come first", judged, breaks=("answer", "first"),
         first=(2, 3, 1, 0))


@ex.wrong("the innermost axis alone decides", breaks=("answer", "both"))
def innermost(shape, strides):
    return "NHWC" if strides[1] == 1 else "NCHW" if strides[3] == 1 else "neither"


@ex.wrong("the axes sorted by their strides, gaps and lengths left aside",
          breaks=("both", "neither", "ones", "sizes"))
def by_order(shape, strides):
    order = sorted(range(4), key=lambda axis: -strides[axis])
    return {(0, 1, 2, 3): "NCHW", (0, 2, 3, 1): "NHWC"}.get(tuple(order), "neither")


@ex.wrong("a single picture with channels last missed", breaks="last")
def batch_only(shape, strides):
    n, c, h, w = shape
    found = judged(shape, strides)
    return "neither" if found == "NHWC" and n == 1 and strides[0] == c * h * w else found


@ex.wrong("channels last known by three channels only", breaks=("last", "ones", "sizes"))
def three_channels(shape, strides):
    found = judged(shape, strides)
    return "neither" if found == "NHWC" and (shape[1] != 3 or shape[0] == 1) else found


ex.wrong("both called NCHW", judged, breaks="both", names={**NAMES, (True, True): "NCHW"})
ex.wrong("both called NHWC", judged, breaks="both", names={**NAMES, (True, True): "NHWC"})
ex.wrong("neither called NCHW", judged, breaks="neither",
         names={**NAMES, (False, False): "NCHW"})


@ex.wrong("gaps between pictures and channels overlooked", breaks="neither")
def gaps(shape, strides):
    found = judged(shape, strides)
    plain = strides[3] == 1 and strides[2] == shape[3] and strides[1] >= shape[2] * shape[3]
    return "NCHW" if found == "neither" and plain and strides[0] > 0 else found


@ex.wrong("strides of axes of length one compared too", breaks=("ones", "both"))
def counts_ones(shape, strides):
    found = judged(shape, strides, ones=False)
    return judged(shape, strides) if found == "NHWC" else found


@ex.wrong("odd strides of a single picture taken for a gap", breaks="ones")
def odd_picture(shape, strides):
    n, c, h, w = shape
    return "neither" if n == 1 and strides[0] > c * h * w else judged(shape, strides)


ex.wrong("a single row or column called neither",
         lambda shape, strides: "neither" if 1 in shape[2:] else judged(shape, strides),
         breaks=("sizes", "ones", "both"))


@ex.wrong("a single column called neither", breaks="sizes")
def thin_column(shape, strides):
    found = judged(shape, strides)
    return "neither" if shape[3] == 1 and found == "NHWC" else found
