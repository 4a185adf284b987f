"""Exercise 11.9, `nvfp4_scales`."""

from __future__ import annotations

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("11.9", "nvfp4_scales", seen=("parts", "order"), says="scale of")

SEVERAL = ("q, k and v", "the second is the largest", "the last is the largest", "the example",
           "two sizes far apart")

ex.promise("pair", "Compute the NVFP4 scales of matrices that are multiplied as one.",
           says=("result", "scale of"))
ex.promise("parts", "Args: parts: one or more matrices, such as the weights of q, k and v, which "
           "a server stacks for a single product.", cases=("one part", *SEVERAL))
ex.promise_table("""
any        | Each is (R, C) float32, finite and in any memory order. | case stored by columns; gaps
             in memory; tiny; huge
left alone | All are left as they are. | values changed
sizes      | Each has its own R; C is a multiple of 16. | case q, k and v; one row; one block per
             row; many blocks
shared     | They share one tensor scale. | scale of the whole; scale of part
whole      | Returns (whole, scales): whole: float32 of shape (), the largest absolute value in any
             part / (6 * 448). | scale of the whole
all zeros  | whole is 1 if all values are zero. | case only zeros
scales     | scales: a list with a float8_e4m3fn tensor (R, C // 16) for each part. | scales; scale
             of part; float8
blocks     | A scale is the largest absolute value among 16 neighbours of a row / 6 / whole. | scale
             of part
nearest    | The scale is rounded to the nearest float8. | scale of part
zeros      | A block of zeros has the scale 0. | case blocks of zeros; only zeros
example    | Example: parts [[2688., 0., ..., 0.]] and [[0., ..., 0., -6.]], with 16 numbers each,
             give 1. and the scales [[448.]] and [[1.]]. | case the example
""")


@ex.cases
def cases(g):
    def one(name, *rows, blocks=3, sizes=None, order="rows"):
        sizes = sizes or [1.0] * len(rows)
        parts = []
        for r, size in zip(rows, sizes):
            part = torch.randn(r, 16 * blocks, generator=g)
            spread = torch.exp(torch.randn(r, blocks, 1, generator=g))   # blocks unlike in size
            parts.append(size * (part.view(r, blocks, 16) * spread).view(r, -1))
        return name, {"parts": parts, "order": order}

    empty = one("blocks of zeros", 3, 2)
    empty[1]["parts"][0][1, 16:32] = 0.0
    empty[1]["parts"][1][0, :16] = -0.0
    below = one("the largest is negative", 4, 3)
    below[1]["parts"][1][0, 5] = -9.0 * below[1]["parts"][0].abs().max()
    lone = one("one large value among small values", 9, 1, sizes=[1.0, 1e-2])
    lone[1]["parts"][1][0, 20] = 1.5 * lone[1]["parts"][0].abs().max()
    signs = one("blocks of negative values", 3, 2)
    signs[1]["parts"][0][:, 16:] = -signs[1]["parts"][0][:, 16:].abs()
    example = [torch.zeros(1, 16), torch.zeros(1, 16)]
    example[0][0, 0], example[1][0, 15] = 2688.0, -6.0
    return [one("one part", 5), one("q, k and v", 6, 2, 2),
            one("the second is the largest", 3, 4, 2, sizes=[0.1, 3.0, 0.5]),
            one("the last is the largest", 3, 2, 5, 4, sizes=[0.2, 1.0, 0.7, 6.0]),
            one("two sizes far apart", 4, 3, sizes=[1.0, 1e-3]),
            one("scales at the lower end of float8", 6, 5, blocks=4, sizes=[1.0, 1e-5]),
            below, lone, signs, empty, one("only zeros", 3, 2, sizes=[0.0, 0.0]),
            one("one row", 1, 1), one("one block per row", 4, 3, blocks=1),
            one("many blocks", 2, 3, blocks=11), one("as a gradient", 5, 4, sizes=[1e-4, 2e-4]),
            one("tiny", 4, 2, sizes=[1e-25, 3e-25]), one("huge", 4, 2, sizes=[1e25, 1e24]),
            one("stored by columns", 16, 32, blocks=2, order="columns"),
            one("gaps in memory", 4, 3, order="gaps"),
            ("the example", {"parts": example, "order": "rows"})]


@ex.act
def act(fn, parts, order):
    given = []
    for part in parts:
        mine = part.clone()
        if order == "columns":
            mine = part.T.contiguous().T
        if order == "gaps":
            mine = torch.cat([part, part + 1], 1)[:, :part.shape[1]]
        given.append(mine)
    handed = list(given)
    out = fn(handed)
    moved = abs(len(handed) - len(parts))
    for mine, part in zip(given, parts):
        same = mine.shape == part.shape and mine.dtype == part.dtype
        moved += int((mine.view(torch.int32) != part.view(torch.int32)).sum()) if same else 1
    kinds = []                      # of the scales; float8 itself can hardly be compared

    def plain(value):
        if isinstance(value, torch.Tensor):
            kinds.append(str(value.dtype))
            return value.float() if value.dtype.itemsize == 1 else value
        if isinstance(value, list | tuple):
            return type(value)(plain(each) for each in value)
        kinds.append("no tensor")
        return value

    out = plain(out)
    return {"out": out, "kinds": kinds, "moved": moved}


@ex.law
def law(out, parts, order):
    expect_parts(out, "out", "kinds", "moved")
    expect_equal("values changed in parts", out["moved"], 0, "Work on copies.")
    expect_type("result", out["out"], tuple)
    if len(out["out"]) != 2:
        raise Broken("parts of the result", len(out["out"]), 2)
    whole, scales = out["out"]
    top = max(max(abs(v) for v in part.flatten().tolist()) for part in parts)
    wanted = top / 2688 if top else 1.0
    expect_close("scale of the whole", whole, torch.tensor(wanted), rtol=1e-5, atol=0.0,
                 look="Divide the largest absolute value in any part by 6 * 448.")
    expect_length("scales", scales, len(parts))
    for number, found in enumerate(scales):
        expect_type(f"scale of part {number}", found, torch.Tensor)
    expect_length("dtypes of the tensors", out["kinds"], 1 + len(parts))
    expect_equal("dtype of the scale of the whole", out["kinds"][0], "torch.float32")
    for number, (found, kind, part) in enumerate(zip(scales, out["kinds"][1:], parts)):
        of = f"scale of part {number}"
        blocks = part.double().unfold(1, 16, 16)
        ratios = torch.maximum(blocks.amax(-1), -blocks.amin(-1)) / (6 * wanted)
        expect_equal(f"dtype of the float8 {of}", kind, "torch.float8_e4m3fn")
        expect_like(of, found, ratios.float())
        near(of, found.double(), ratios)


def near(what, found, ratios):
    """Raise Broken unless each scale is the float8 nearest to its ratio; ties go either way.

    Single precision moves a ratio by less than a millionth part of it.
    """
    known = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    least = (ratios[..., None] - known).abs().amin(-1)
    gap = (found - ratios).abs() - least - 1e-6 * ratios
    if not (gap <= 0).all():
        worst = int(gap.nan_to_num(float("inf")).argmax())
        raise Broken(what, float(found.flatten()[worst]),
                     f"the float8 nearest to {float(ratios.flatten()[worst]):.4g}",
                     "Divide the largest absolute value of the 16 neighbours by 6 and by whole.")


# ---- wrong, by name

def cut_down(s):
    """The largest float8 that is not above each number."""
    known = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    at = torch.bucketize(s * (1 + 1e-6), known, right=True) - 1
    return known[at.clamp(0, 126)].to(torch.float8_e4m3fn)


@not_an_answer
def made(parts):
    top = max(part.abs().max() for part in parts)
    whole = top / (6 * 448) if top > 0 else torch.tensor(1.0)
    scales = []
    for part in parts:
        high = part.abs().unflatten(1, (-1, 16)).amax(2) / 6
        scales.append((high / whole).to(torch.float8_e4m3fn))
    return whole, scales


wrong = ex.edits(made)
START, SIZES, TOP = "top =", "part.abs().max() for part in parts", "part.abs().max()"
WHOLE, OR_ONE = "top / (6 * 448)", " if top > 0 else torch.tensor(1.0)"
LARGEST, SCALE, FLOAT8 = ".unflatten(1, (-1, 16)).amax(2)", "(high / whole)", "torch.float8_e4m3fn"
END, OF_PART, OF_WHOLE = "return whole, scales", "scale of part", "type of the scale of the whole"
wrong("using 1 as the tensor's scale", ("whole", "shared"),
      f"{WHOLE}{OR_ONE}", "torch.tensor(1.0)")
# https://github.com/pytorch/ao/pull/2604
wrong("not dividing the tensor's scale by 6", ("whole", "example"), "(6 * 448)", "448")
wrong("not dividing the tensor's scale by 448", ("whole", "example"), "(6 * 448)", "6")
# https://github.com/vllm-project/vllm/pull/20578
wrong("ignoring negative values in the tensor's scale", ("whole", "any"),
      TOP, "part.max()")
wrong("ignoring negative values in a block's scale", ("blocks", "example"),
      "part.abs().unflatten", "part.unflatten")
wrong("giving each part its own tensor scale", ("shared", "example"),
      SCALE, f"(high / ({TOP} / 2688 if part.any() else 1.0))")
wrong("taking the tensor's scale from the first part only",
      "shared", f"max({SIZES})", "parts[0].abs().max()")
wrong("taking the tensor's scale from the last part only",
      "shared", f"max({SIZES})", "parts[-1].abs().max()")
wrong("averaging the parts' largest absolute values", "shared",
      f"max({SIZES})", f"sum({SIZES}) / len(parts)")
wrong("taking the tensor's scale from the part with the largest norm", "shared",
      f"max({SIZES})", "max(parts, key=torch.norm).abs().max()")
# https://github.com/vllm-project/vllm/pull/47515
wrong("using the smallest of the parts' scales", "shared", f"max({SIZES})", f"min({SIZES})")
wrong("returning the inverse of the tensor's scale", ("whole", "pair"),
      END, "return 1 / whole, scales")
wrong("multiplying a block's scale by the tensor's scale instead of dividing", "blocks",
      SCALE, "(high * whole)", says=OF_PART)
wrong("not dividing a block's scale by the tensor's scale", "blocks", SCALE, "high", says=OF_PART)
wrong("not dividing a block's scale by 6", ("blocks", "example"),
      f"{LARGEST} / 6", LARGEST, says=OF_PART)
wrong("making a block of every n-th number in a row, not of 16 neighbours", ("blocks", "sizes"),
      LARGEST, ".unflatten(1, (16, -1)).amax(1)", says=OF_PART)
wrong("using one scale for a whole row, not one per block", ("blocks", "sizes"),
      LARGEST, ".amax(1, keepdim=True).expand(-1, part.shape[1] // 16)", says=OF_PART)
wrong("returning scales in float32", "scales", f".to({FLOAT8})", "", says="dtype of the float8")
wrong("returning scales in the other float8 format, e5m2", "scales", FLOAT8, "torch.float8_e5m2",
      says="dtype of the float8")
wrong("rounding a block's scale to bfloat16 first", "nearest",
      SCALE, "(high / whole * 0.97).bfloat16()", says=OF_PART)
wrong("rounding a block's scale to a power of two, as in MXFP4", "nearest",
      SCALE, "(2.0 ** (high / whole).log2().floor())", says=OF_PART)
wrong("rounding a block's scale down", "nearest", SCALE, "cut_down(high / whole)", says=OF_PART)
wrong("clamping the blocks' scales to at least 1 / 64", ("nearest", "zeros"),
      SCALE, "(high / whole).clamp(min=2.0 ** -6)", says=OF_PART)
wrong("clamping the blocks' scales to at least the smallest float8", ("nearest", "zeros"),
      SCALE, "(high / whole).clamp(min=2.0 ** -9)", says=OF_PART)
wrong("returning the scale 1 for a block of zeros", "zeros",
      SCALE, "torch.where(high == 0, 1.0, high / whole)", says=OF_PART)
wrong("dividing 0 by 0 if all values are zero", "all zeros", OR_ONE, "")
wrong("clamping the tensor's scale to at least 1e-12", ("any", "all zeros"),
      WHOLE, f"({WHOLE}).clamp(min=1e-12)", OR_ONE, "")


@ex.wrong("following the order in memory instead of the axes", says="scale of part", breaks="any")
def in_memory(parts):
    whole, scales = made(parts)
    for i, part in enumerate(parts):
        if part.stride(0) == 1 and part.shape[0] % 16 == 0:
            scales[i] = (part.T.reshape(-1, 16).abs().amax(1) / 6 / whole).to(
                torch.float8_e4m3fn).view(scales[i].shape)
    return whole, scales


wrong("returning the tensor's scale with an extra axis",
      "whole", END, "return whole.view(1), scales",
      says="shape of the scale of the whole")
wrong("returning the tensor's scale as a Python number",
      "whole", END, "return whole.item(), scales",
      says=OF_WHOLE)
wrong("returning the tensor's scale in float64", "whole", END, "return whole.double(), scales",
      says="dtype of the scale of the whole")
wrong("swapping the blocks' scales and the tensor's scale",
      "pair", END, "return scales, whole", says=OF_WHOLE)
wrong("returning all scales in one tensor", "scales", f".to({FLOAT8})", "",
      END, f"return whole, torch.cat(scales).to({FLOAT8})", says="type of the scales")
wrong("returning the scales in a tuple, not in a list",
      "scales", END, "return whole, tuple(scales)",
      says="type of the scales")
wrong("leaving an axis of size 1 on the scales", "scales",
      END, "return whole, [s[..., None] for s in scales]", says="shape of the scale of part")
wrong("returning only the first part's scales", "scales", END, "return whole, scales[:1]",
      says="number of scales")
wrong("replacing the parts by their absolute values, in place", "left alone",
      START, "parts = [part.abs_() for part in parts]; top =")
wrong("removing parts from the caller's list", "left alone",
      START, "parts = [parts.pop(0) for _ in range(len(parts))]; top =")
