"""Exercise 11.1, `quantise`."""

from __future__ import annotations

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_like,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("11.1", "quantise", seen=("w", "bits", "group", "order"), says="scales")

ex.promise_table("""
parts       | Quantize each group of a row with an affine grid. | type of the result; parts of the
              result; scales; codes of 0; codes of
any         | Args: w: (R, C) float32 in any memory order, with tiny or huge values. | case tiny;
              huge; stored by columns; one row; one weight per group; one group per row; many
              groups; even tinier; nearly as huge as float32 allows; gaps in memory
left alone  | w is left as it is. | changed in w; inputs after the call
groups      | group: a divisor of C; each row is split into groups of this many neighbours. |
              scales; codes of
zero inside | Returns (codes, scales, zeros): In a group, low = min(weights, 0) and high =
              max(weights, 0), so the group's grid contains 0. | scales
scales      | scales: (high - low) / (2**bits - 1), float32. | scales
zero group  | A group of zeros has the scale 1. | case a group of zeros; only zeros; a group whose
              sum is zero
zeros       | zeros: -low / scale, rounded, uint8. scales and zeros have the shape (R, C // group).
              | codes of 0; shape of the scales
codes       | codes: (R, C) uint8, each the code from 0 to 2**bits - 1 whose level, scale * (code -
              zero), is nearest to the weight. | codes of the weights
bits        | bits: 1 to 8. | case one bit; 8 bits; 8 bits, as far below 0 as above
example     | Example: w [[0., 4., 6.]], bits 2 and group 3 give [[0, 2, 3]], [[2.]] and [[0]]. |
              case the example
""")


@ex.cases
def cases(g):
    def one(name, rows, groups, group, bits=None, move=0.0, size=1.0, order="rows"):
        w = torch.randn(rows, groups * group, generator=g) + move
        return name, {"w": size * w, "order": order, "group": group,
                      "bits": bits or int(torch.randint(2, 8, (), generator=g))}

    def given(name, w, bits, group):
        return name, {"w": torch.tensor(w), "bits": bits, "group": group, "order": "rows"}

    empty = one("a group of zeros", 3, 2, 5)
    empty[1]["w"][1, :5] = 0.0
    empty[1]["w"][1, 1:3] = -0.0
    below = one("all below zero", 4, 3, 6)
    below[1]["w"] = -below[1]["w"].abs() - 0.5
    above = one("all above zero", 4, 3, 6)
    above[1]["w"] = above[1]["w"].abs() + 0.5
    return [one("a few rows", 5, 3, 8), one("a shift upwards", 4, 2, 9, move=0.7),
            one("a shift downwards", 4, 2, 9, move=-0.7), below, above, empty,
            one("only zeros", 2, 2, 3, size=0.0), one("one row", 1, 3, 4),
            one("one weight per group", 3, 4, 1, move=0.3), one("one group per row", 6, 1, 10),
            one("many groups", 3, 9, 4), one("one bit", 4, 2, 6, bits=1, move=0.4),
            one("two bits", 4, 2, 8, bits=2), one("8 bits", 4, 2, 16, bits=8),
            one("tiny", 3, 2, 6, size=1e-20), one("huge", 3, 2, 6, size=1e20),
            one("even tinier", 3, 2, 6, size=1e-33),
            one("nearly as huge as float32 allows", 3, 2, 6, size=1e37),
            one("gaps in memory", 5, 2, 4, order="gaps"),
            given("a group whose sum is zero", [[-1.0, 0.25, 0.75, 2.0, -0.5, 1.0]], 3, 3),
            one("stored by columns", 6, 2, 4, order="columns"),
            given("as far below 0 as above", [[-1.5, 0.5, 1.5, 0.25]], 2, 4),
            given("8 bits, as far below 0 as above", [[-127.5, 3.25, 127.5, 40.125]], 8, 4),
            given("the example", [[0.0, 4.0, 6.0]], 2, 3)]


@ex.act
def act(fn, w, bits, group, order):
    mine = w.T.contiguous().T if order == "columns" else w.clone()
    if order == "gaps":
        mine = torch.cat([w, w + 1], 1)[:, :w.shape[1]]
    out = fn(mine, bits, group)
    same = mine.shape == w.shape and mine.dtype == w.dtype
    moved = (mine.view(torch.int32) != w.view(torch.int32)).sum() if same else w.numel()
    return {"out": out, "moved": int(moved)}


@ex.law
def law(out, w, bits, group, order):
    expect_parts(out, "out", "moved")
    expect_equal("values changed in w", out["moved"], 0, "Work on a copy.")
    expect_type("result", out["out"], tuple)
    if len(out["out"]) != 3:
        raise Broken("parts of the result", len(out["out"]), 3)
    codes, scales, zeros = out["out"]
    top, rows = 2**bits - 1, w.shape[0]
    parts = w.double().split(group, 1)
    low = torch.stack([p.min(1).values.minimum(torch.zeros(rows)) for p in parts], 1)
    high = torch.stack([p.max(1).values.maximum(torch.zeros(rows)) for p in parts], 1)
    wanted = (high - low) / top
    wanted[wanted == 0] = 1.0
    expect_close("scales", scales, wanted.float(), rtol=1e-5, atol=0.0,
                 look="A grid contains 0, and extends from the smallest weight to the largest.")
    expect_like("codes of 0", zeros, torch.empty(wanted.shape, dtype=torch.uint8))
    near("codes of 0", zeros, -low / wanted)
    expect_like("codes of the weights", codes, torch.empty(w.shape, dtype=torch.uint8))
    at = w.double() / wanted.repeat_interleave(group, 1)
    near("codes of the weights", codes,
         (at + zeros.double().repeat_interleave(group, 1)).clamp(0, top))


def near(what, codes, places):
    """Raise Broken unless each code is the whole number nearest to its place; ties go either way.

    Single precision moves a place of at most 255 by less than 1e-4.
    """
    gap = (codes.double() - places).abs().flatten()
    if gap.numel() and gap.max() > 0.5 + 1e-4:
        worst = int(gap.argmax())
        raise Broken(what, int(codes.flatten()[worst]), round(float(places.flatten()[worst]), 3),
                     "Round to the nearest whole number.")


@not_an_answer
def one_by_one(w, bits, group):
    top = 2**bits - 1
    codes = torch.empty(w.shape, dtype=torch.uint8)
    scales = torch.empty(len(w), w.shape[1] // group)
    zeros = torch.empty(scales.shape, dtype=torch.uint8)
    for r in range(len(w)):
        for k in range(scales.shape[1]):
            part = w[r, k * group:(k + 1) * group].double()
            low, high = min(0.0, part.min().item()), max(0.0, part.max().item())
            scale = (high - low) / top or 1.0
            zero = round(-low / scale)
            scales[r, k], zeros[r, k] = scale, zero
            codes[r, k * group:(k + 1) * group] = (part / scale + zero).round().clamp(0, top)
    return codes, scales, zeros


# ---- wrong, by name

@not_an_answer
def made(w, bits, group):
    top = 2**bits - 1
    parts = w.reshape(len(w), -1, group)
    low, high = parts.amin(2), parts.amax(2)
    low, high = low.clamp(max=0), high.clamp(min=0)
    scales = ((high - low) / top).clamp(min=0.0)
    scales = torch.where(scales > 0, scales, 1.0)
    zeros = (-low / scales).clamp(0, 255).round()
    steps = parts / scales[..., None]
    codes = steps.round() + zeros[..., None]
    codes = codes.clamp(0, 2**bits - 1)
    out = codes.long().to(torch.uint8).reshape(w.shape), scales, zeros.to(torch.uint8)
    return out


wrong = ex.edits(made)
wrong("using a symmetric grid", ("scales", "zero inside", "example"),
      "scales = (", "high = torch.maximum(-low, high); low = -high; scales = (")
wrong("leaving 0 out of the grid", "zero inside",
      "low, high = low.clamp(max=0), high.clamp(min=0)", "pass")
wrong("computing scales from the standard deviation", ("scales", "example"),
      "scales = (",
      "high, low = 2 * parts.std(2, correction=0), -2 * parts.std(2, correction=0); scales = (")
wrong("dividing by 2**bits instead of 2**bits - 1", "scales", "top = 2**bits - 1", "top = 2**bits")
wrong("using one grid per row, not one per group", "groups",
      "1, group", "1, w.shape[1]", "return out",
      "codes, scales, zeros = out; n = w.shape[1] // group; return codes, scales.repeat(1, n), "
      "zeros.repeat(1, n)")


@ex.wrong("using one grid for all rows, not one per group", breaks="groups")
def one_grid(w, bits, group):
    codes, scales, zeros = made(w.reshape(1, -1), bits, w.numel())
    shape = (len(w), w.shape[1] // group)
    return codes.view(w.shape), scales.expand(shape).clone(), zeros.expand(shape).clone()


@ex.wrong("making a group of every n-th weight instead of neighbours", breaks="groups")
def strided(w, bits, group):
    n = w.shape[1] // group
    mixed = w.reshape(len(w), group, n).transpose(1, 2).reshape(w.shape)
    codes, scales, zeros = made(mixed, bits, group)
    return codes.view(len(w), n, group).transpose(1, 2).reshape(w.shape), scales, zeros


wrong("letting codes above the last one wrap around", ("codes", "bits"),
      "codes = codes.clamp(0, 2**bits - 1)", "pass")
wrong("rounding the codes down instead of to the nearest", "codes", "steps.round", "steps.floor")


@ex.wrong("rounding the distance from low, so that 0 has no code of its own", breaks="codes")
def from_low(w, bits, group):
    _, scales, zeros = made(w, bits, group)
    parts = w.reshape(*scales.shape, group)
    low = parts.amin(2, keepdim=True).clamp(max=0)
    codes = ((parts - low) / scales[..., None]).round().clamp(0, 2**bits - 1)
    return codes.to(torch.uint8).view(w.shape), scales, zeros


# https://github.com/hatchetProject/QuEST/issues/18
wrong("never adding the code of 0", "codes",
      "return out",
      "_, scales, zeros = out; steps = (w.reshape(*scales.shape, group) / scales[..., "
      "None]).round(); return steps.clamp(0, 2**bits - 1).byte().view(w.shape), scales, zeros")
wrong("clamping between 0 and the last code before adding the code of 0", "codes",
      "return out",
      "_, scales, zeros = out; top = 2**bits - 1; steps = (w.reshape(*scales.shape, group) / "
      "scales[..., None]).round().clamp(0, top); return (steps + zeros[..., None]).clamp(0, "
      "top).byte().view(w.shape), scales, zeros")
wrong("truncating the code of 0 instead of rounding", ("zeros", "codes"),
      "return out",
      "codes, scales, _ = out; low = w.reshape(len(w), -1, group).amin(2).clamp(max=0); return "
      "codes, scales, (-low / scales).floor().to(torch.uint8)", says="codes of")
wrong("returning codes in int8", "codes",
      "return out", "codes, scales, zeros = out; return codes.to(torch.int8), scales, zeros",
      says="dtype of the codes")
wrong("returning the code of 0 as a float", "zeros",
      "return out", "codes, scales, zeros = out; return codes, scales, zeros.float()",
      says="dtype of the codes of 0")
wrong("leaving an axis of size 1 on the scales", "zeros",
      "return out", "codes, scales, zeros = out; return codes, scales[..., None], zeros")
wrong("dividing by the scale of a group of zeros", "zero group", "1.0", "0.0")
wrong("clamping scales to at least 1e-8", ("any", "zero group"), "min=0.0", "min=1e-8")
wrong("clamping scales to at least 1e-5", ("any", "zero group"), "min=0.0", "min=1e-5")
wrong("clamping scales to at least 1e-8, except in a group of zeros", "any",
      "min=0.0)", "min=1e-8) * (high > low)")
wrong("following the order in memory instead of the axes", "any",
      "top =", "w = torch.as_strided(w, w.shape, (w.shape[1], 1)); top =")


@ex.wrong("using at most 7 bits", says="of the", breaks="bits")
def seven_bits(w, bits, group):
    if bits < 8:
        return made(w, bits, group)
    codes, scales, zeros = made(w, 8, group)
    return codes.clamp(max=127), scales, zeros


wrong("using two bits when bits is 1", "bits", "top =", "bits = max(bits, 2); top =")
wrong("returning the levels, not their codes", "codes",
      "return out",
      "codes, scales, zeros = out; n = scales.shape[1]; steps = codes.view(len(w), n, "
      "group).float() - zeros[..., None].float(); return (steps * scales[..., "
      "None]).view(w.shape), scales, zeros", says="dtype of the codes")
wrong("changing w in place", "left alone", "return out", "w.mul_(2); return out")
wrong("swapping scales and zeros", "parts",
      "return out", "codes, scales, zeros = out; return codes, zeros, scales", says="of the scales")
wrong("treating a group as all zeros if its sum is 0", "zero group",
      "top =",
      "codes, scales, zeros = one_by_one(w, bits, group); sums = w.reshape(len(w), -1, "
      "group).sum(2); scales[sums == 0] = 1.0; return codes, scales, zeros; top =")
wrong("treating tiny values as zeros", "any",
      "top =",
      "codes, scales, zeros = one_by_one(w, bits, group); scales[scales < 1e-24] = 1.0; return "
      "codes, scales, zeros; top =")
wrong("turning minus zero into zero in w", "left alone",
      "top =", "w += 0.0; return one_by_one(w, bits, group); top =")
wrong("assuming that rows have no gaps in memory", "any",
      "top =",
      "if w.stride(0) == 2 * w.shape[1]: w.view(-1, group)\n    return one_by_one(w, bits, "
      "group); top =", says="raised")
