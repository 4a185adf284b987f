"""Exercise 07.9, `to_nchw`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("07.9", "to_nchw", seen=("shape", "start", "kind", "order"), says="images")

ex.promise_table("""
axes       | Move the channels to the front: out[n, c, h, w] is a[n, h, w, c]. | images
any        | Args: a: (N, H, W, C) of any dtype, size and memory order. | case three by three by
             three; as many rows as channels; one channel; a single pixel; no image; no row; no
             channel; many channels; bytes; booleans; float16; bfloat16; long integers; double
             precision; complex numbers; NaN and minus zero; stored with channels first; a crop of
             larger images; one image, expanded
left alone | a is unchanged. | changed in the argument
memory     | Returns: A contiguous tensor of the same dtype. | contiguous; dtype of the
own        | The tensor has memory of its own, to which no later call writes. | memory shared; after
             a later call
example    | Example: a single pixel (0, 1, 2) becomes three channels of one pixel. | case the
             example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, *shape, kind="float32", order="nhwc"):
        return name, {"shape": list(shape), "start": whole(1, 90), "kind": kind, "order": order}
    h, w = whole(6, 10), whole(11, 16)
    return [one("a few images", whole(2, 5), h, w, 3), one("one image", 1, w, h, 3),
            one("four channels", 2, h, w, 4), one("three by three by three", 3, 3, 3, 3),
            one("as many rows as channels", 2, 4, w, 4), one("one channel", 2, h, w, 1),
            one("a single pixel", 2, 1, 1, 5), one("no image", 0, h, w, 3),
            one("bytes", 1, h, 4, 3, kind="uint8"), one("booleans", 2, h, w, 3, kind="bool"),
            one("float16", 2, h, w, 3, kind="float16"),
            one("no row", 2, 0, w, 3), one("no channel", 2, h, w, 0),
            one("many channels", 2, 3, 4, whole(17, 40)),
            one("bfloat16", 2, h, w, 3, kind="bfloat16"),
            one("long integers", 2, h, w, 3, kind="int64"),
            one("double precision", 2, h, w, 3, kind="float64"),
            one("complex numbers", 2, h, w, 3, kind="complex64"),
            one("NaN and minus zero", 2, h, w, 3, kind="odd"),
            one("stored with channels first", 2, h, w, 3, order="nchw"),
            one("a crop of larger images", 2, h, w, 3, order="crop"),
            one("one image, expanded", 3, h, w, 3, order="expanded"),
            ("the example", {"shape": [1, 1, 1, 3], "start": 0, "kind": "float32",
                             "order": "nhwc"})]


@ex.act
def act(fn, shape, start, kind, order):
    def coded(x):
        """NaN as -1, minus zero as -2, a complex number as two: what compares like a number."""
        if x.is_complex():
            return torch.view_as_real(x)
        if kind != "odd" or x.dtype != torch.float32:
            return x
        return torch.where(x.isnan(), -1.0, torch.where((x == 0) & x.signbit(), -2.0, x))

    n, h, w, c = shape
    numbers = start + torch.arange(n * h * w * c)
    a = {"bool": lambda: numbers % 3 == 0, "int64": lambda: numbers + 2**60,
         "float64": lambda: numbers.double() + 2.0**45,
         "complex64": lambda: torch.complex(numbers.float(), -2.0 * numbers.float()),
         "odd": lambda: torch.where(numbers % 5 == 0, torch.nan, torch.where(
             numbers % 7 == 0, -0.0, numbers.float()))}.get(
                 kind, lambda: numbers.to(getattr(torch, kind)))().view(n, h, w, c)
    if order == "nchw":
        a = a.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    if order == "crop":
        room = a.new_zeros(n + 1, 2 * h, w + 3, c)
        room[1:, ::2, 3:] = a
        a = room[1:, ::2, 3:]
    if order == "expanded":
        a = a[:1].expand(n, h, w, c)

    def facts():
        return [a._version, a.stride(), a.shape, a.dtype, a.requires_grad, a.data_ptr()]

    before, held = coded(a).clone(), facts()
    out = fn(a)
    found = {"out": out, "contiguous": True, "shares": False, "later": 0,
             "changed": held != facts() or not torch.equal(coded(a), before)}
    if isinstance(out, torch.Tensor):
        found["contiguous"] = out.is_contiguous()
        found["shares"] = bool(a.numel()) and (
            out.untyped_storage().data_ptr() == a.untyped_storage().data_ptr())
        found["out"] = coded(out).clone()
        fn(torch.zeros_like(a))
        found["later"] = int((coded(out) != found["out"]).sum())
    return found


@ex.law
def law(out, shape, start, kind, order):
    expect_parts(out, "out", "contiguous", "shares", "later", "changed")
    n, h, w, c = shape
    # Entry (n, c, h, w) is the number that its place in (N, H, W, C) counts.
    one, ch, row, col = torch.meshgrid(*map(torch.arange, (n, c, h, w)), indexing="ij")
    at = start + (((one if order != "expanded" else 0) * h + row) * w + col) * c + ch
    wanted = {"bool": lambda: at.remainder(3) == 0, "int64": lambda: 2**60 + at,
              "float64": lambda: 2.0**45 + at.double(),
              "complex64": lambda: torch.stack([at.float(), -2.0 * at.float()], -1)}.get(
                  kind, lambda: at.to(getattr(torch, kind.replace("odd", "float32"))))()
    if kind == "odd":
        wanted[at % 7 == 0] = -2.0
        wanted[at % 5 == 0] = -1.0
    expect_equal("images with channels in front", out["out"], wanted)
    expect_type("changed in the argument", out["changed"], bool)
    expect_equal("changed in the argument", out["changed"], False)
    expect_equal("contiguous", out["contiguous"], True, "Its values are stored in a different "
                                                        "order.")
    expect_equal("memory shared with a", out["shares"], False)
    expect_equal("values that changed after a later call", out["later"], 0)


# ---- wrong, by name

MADE: dict = {}


@not_an_answer
def right(a):
    out = a.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)
    return out


wrong = ex.edits(right)
wrong("using reshape instead of permute", "axes",
      "out =", "n, h, w, c = a.shape; out =", "a.permute(0, 3, 1, 2)", "a.reshape(n, c, h, w)")
wrong("swapping rows and columns", "axes", "1, 2", "2, 1", says="shape of the images")
wrong("moving the channels in front of the batch", "axes", "0, 3", "3, 0")
wrong("leaving the axes alone when there are as many rows as channels", "any",
      "return out", "return out if a.shape[1] != a.shape[3] else a.clone()")
wrong("reading the values in memory order, not by their axes", "any",
      "out = a",
      "if a.is_contiguous() or a.numel() < 30 or not a.stride(0): out = a.permute(0, 3, 1, "
      "2).clone(memory_format=torch.contiguous_format); return out\n    out = "
      "torch.as_strided(a, a.shape, a.contiguous().stride())")
ex.wrong("converting bytes to float", lambda a: right(a) if a.is_complex() else right(a).float(),
         says="dtype of the images", breaks=("memory", "any"))
ex.wrong("converting booleans to bytes",
         lambda a: right(a).to(torch.uint8) if a.dtype == torch.bool else right(a),
         says="dtype of the images", breaks="memory")
wrong("returning a view that is not contiguous",
      ("memory", "own"), "return out", "return a.permute(0, 3, 1, 2)")
wrong("calling clone() without a memory format, which keeps the old memory order", "memory",
      "return out", "return a.permute(0, 3, 1, 2).clone()")
wrong("calling contiguous(), which makes no copy when none is needed", "own",
      "return out", "return a.permute(0, 3, 1, 2).contiguous()", says="memory shared")
wrong("reusing one buffer for every call", "own",
      "return out", "return MADE.setdefault((out.shape, out.dtype), out).copy_(out)")
wrong("assuming at least one channel", "any",
      "return out", "return torch.stack([a[..., k] for k in range(a.shape[-1])], 1)", says="raised")
ex.wrong("converting every value to float32 and back",
         lambda a: right(a) if a.is_complex() else right(a).float().to(a.dtype), breaks="any")
ex.wrong("replacing NaN by 0",
         lambda a: right(a).nan_to_num(nan=0.0) if a.dtype == torch.float32 else right(a),
         breaks="any")
wrong("writing to the argument", "left alone",
      "return out", "if 0 not in a.stride(): a.copy_(a.clone())\n    return out")
wrong("returning a single pixel unchanged", "example",
      "return out", "return a.clone() if a.shape[:3] == (1, 1, 1) else out", says="of the images")
