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

ex.promise("parts", "(codes, scales, zeros) of an affine grid for each group of a row.",
           says=("type of the result", "parts of the result", "scales", "codes of 0", "codes of"))
ex.promise("any", "w: (R, C) float32 in any memory order, tiny or huge,",
           cases=("tiny", "huge", "made the other way round", "one row", "one weight a group",
                  "one group a row", "many groups", "tinier still", "as huge as it may be",
                  "gaps in memory"))
ex.promise("left alone", "left as it is.", says=("changed in w", "inputs after the call"))
ex.promise("groups", "Each row is cut into groups of `group` neighbours, which divides C.",
           says=("scales", "codes of"))
ex.promise("zero inside", "low = min(group, 0) and high = max(group, 0): the grid always contains "
           "0.", says=("scales",))
ex.promise("scales", "scales: (high - low) / (2**bits - 1),", says=("scales",))
ex.promise("zero group", "or 1 for a group of zeros, float32.",
           cases=("a group of zeros", "zeros alone", "a group whose sum is zero"))
ex.promise("zeros", "zeros: -low / scale, rounded, uint8. Both are (R, C // group).",
           says=("codes of 0", "shape of the scales"))
ex.promise("codes", "codes: (R, C) uint8, each the one from 0 to 2**bits - 1 whose level, "
           "scale * (code - zero), is nearest.", says=("codes of the weights",))
ex.promise("bits", "bits: 1 to 8.", cases=("one bit", "8 bits", "8 bits, as far below as above"))
ex.promise("example", "Example: [[0., 4., 6.]], bits 2, group 3: [[0, 2, 3]], [[2.]], [[0]].",
           cases=("the example",))


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
            one("zeros alone", 2, 2, 3, size=0.0), one("one row", 1, 3, 4),
            one("one weight a group", 3, 4, 1, move=0.3), one("one group a row", 6, 1, 10),
            one("many groups", 3, 9, 4), one("one bit", 4, 2, 6, bits=1, move=0.4),
            one("two bits", 4, 2, 8, bits=2), one("8 bits", 4, 2, 16, bits=8),
            one("tiny", 3, 2, 6, size=1e-20), one("huge", 3, 2, 6, size=1e20),
            one("tinier still", 3, 2, 6, size=1e-33),
            one("as huge as it may be", 3, 2, 6, size=1e37),
            one("gaps in memory", 5, 2, 4, order="gaps"),
            given("a group whose sum is zero", [[-1.0, 0.25, 0.75, 2.0, -0.5, 1.0]], 3, 3),
            one("made the other way round", 6, 2, 4, order="columns"),
            given("as far below as above", [[-1.5, 0.5, 1.5, 0.25]], 2, 4),
            given("8 bits, as far below as above", [[-127.5, 3.25, 127.5, 40.125]], 8, 4),
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
    expect_equal("numbers changed in w", out["moved"], 0, "Work on a copy.")
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
                 look="A grid holds 0, and is as wide as from the least to the largest weight.")
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
                     "The nearest whole number is meant.")


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
def made(w, bits, group, *, held=True, symmetric=False, top=None, std=False, least=0.0,
         floor=False, clamp=True, of_zeros=1.0):
    """The right answer with its pieces as options."""
    top = 2**bits - 1 if top is None else top
    parts = w.reshape(len(w), -1, group)
    low, high = parts.amin(2), parts.amax(2)
    if held:
        low, high = low.clamp(max=0), high.clamp(min=0)
    if symmetric:
        high = torch.maximum(-low, high)
        low = -high
    if std:
        high, low = 2 * parts.std(2, correction=0), -2 * parts.std(2, correction=0)
    scales = ((high - low) / top).clamp(min=least)
    scales = torch.where(scales > 0, scales, of_zeros)
    zeros = (-low / scales).clamp(0, 255).round()
    steps = parts / scales[..., None]
    codes = (steps.floor() if floor else steps.round()) + zeros[..., None]
    if clamp:
        codes = codes.clamp(0, 2**bits - 1)
    return (codes.long().to(torch.uint8).reshape(w.shape), scales, zeros.to(torch.uint8))


ex.wrong("a symmetric grid", made, breaks=("scales", "zero inside", "example"), symmetric=True)
ex.wrong("0 left out of the grid", made, breaks="zero inside", held=False)
ex.wrong("scales from the standard deviation", made, breaks=("scales", "example"), std=True)
ex.wrong("as many steps as levels", lambda w, bits, group: made(w, bits, group, top=2**bits),
         breaks="scales")


@ex.wrong("one grid for each row", breaks="groups")
def whole_rows(w, bits, group):
    codes, scales, zeros = made(w, bits, w.shape[1])
    n = w.shape[1] // group
    return codes, scales.repeat(1, n), zeros.repeat(1, n)


@ex.wrong("one grid for everything", breaks="groups")
def one_grid(w, bits, group):
    codes, scales, zeros = made(w.reshape(1, -1), bits, w.numel())
    shape = (len(w), w.shape[1] // group)
    return codes.view(w.shape), scales.expand(shape).clone(), zeros.expand(shape).clone()


@ex.wrong("every n-th weight in a group, not neighbours", breaks="groups")
def strided(w, bits, group):
    n = w.shape[1] // group
    mixed = w.reshape(len(w), group, n).transpose(1, 2).reshape(w.shape)
    codes, scales, zeros = made(mixed, bits, group)
    return codes.view(len(w), n, group).transpose(1, 2).reshape(w.shape), scales, zeros


ex.wrong("codes beyond the last one wrap round", made, breaks=("codes", "bits"), clamp=False)
ex.wrong("cut off, not rounded", made, breaks="codes", floor=True)


@ex.wrong("the distance from low rounded, as if 0 had no code of its own", breaks="codes")
def from_low(w, bits, group):
    _, scales, zeros = made(w, bits, group)
    parts = w.reshape(*scales.shape, group)
    low = parts.amin(2, keepdim=True).clamp(max=0)
    codes = ((parts - low) / scales[..., None]).round().clamp(0, 2**bits - 1)
    return codes.to(torch.uint8).view(w.shape), scales, zeros


# https://github.com/hatchetProject/QuEST/issues/18
@ex.wrong("the code of 0 never added", breaks="codes")
def never_added(w, bits, group):
    _, scales, zeros = made(w, bits, group)
    steps = (w.reshape(*scales.shape, group) / scales[..., None]).round()
    return steps.clamp(0, 2**bits - 1).byte().view(w.shape), scales, zeros


@ex.wrong("held between 0 and the last code before the code of 0 is added", breaks="codes")
def held_too_soon(w, bits, group):
    _, scales, zeros = made(w, bits, group)
    top = 2**bits - 1
    steps = (w.reshape(*scales.shape, group) / scales[..., None]).round().clamp(0, top)
    return (steps + zeros[..., None]).clamp(0, top).byte().view(w.shape), scales, zeros


@ex.wrong("the code of 0 cut off, not rounded", says="codes of", breaks=("zeros", "codes"))
def zero_cut_off(w, bits, group):
    codes, scales, _ = made(w, bits, group)
    low = w.reshape(len(w), -1, group).amin(2).clamp(max=0)
    return codes, scales, (-low / scales).floor().to(torch.uint8)


@ex.wrong("codes in int8", says="dtype of the codes", breaks="codes")
def signed(w, bits, group):
    codes, scales, zeros = made(w, bits, group)
    return codes.to(torch.int8), scales, zeros


@ex.wrong("the code of 0 as a float", says="dtype of the codes of 0", breaks="zeros")
def zero_as_float(w, bits, group):
    codes, scales, zeros = made(w, bits, group)
    return codes, scales, zeros.float()


@ex.wrong("an axis left on the scales", breaks="zeros")
def axis_left(w, bits, group):
    codes, scales, zeros = made(w, bits, group)
    return codes, scales[..., None], zeros


ex.wrong("divided by the scale of a group of zeros", made, breaks="zero group", of_zeros=0.0)
ex.wrong("a least scale of 1e-8", made, breaks=("any", "zero group"), least=1e-8)
ex.wrong("a least scale of 1e-5", made, breaks=("any", "zero group"), least=1e-5)
ex.wrong("the order in memory read, not the axes",
         lambda w, bits, group: made(torch.as_strided(w, w.shape, (w.shape[1], 1)), bits, group),
         breaks="any")


@ex.wrong("bits counted up to 7", says="of the", breaks="bits")
def seven_bits(w, bits, group):
    if bits < 8:
        return made(w, bits, group)
    codes, scales, zeros = made(w, 8, group)
    return codes.clamp(max=127), scales, zeros


ex.wrong("a single bit taken for two", lambda w, bits, group: made(w, max(bits, 2), group),
         breaks="bits")


@ex.wrong("the levels given back, not their codes", says="dtype of the codes", breaks="codes")
def levels(w, bits, group):
    codes, scales, zeros = made(w, bits, group)
    n = scales.shape[1]
    steps = codes.view(len(w), n, group).float() - zeros[..., None].float()
    return (steps * scales[..., None]).view(w.shape), scales, zeros


@ex.wrong("w rounded in place", breaks="left alone")
def in_place(w, bits, group):
    out = made(w, bits, group)
    w.mul_(2)
    return out


@ex.wrong("scales and zeros in the other order", says="of the scales", breaks="parts")
def other_order(w, bits, group):
    codes, scales, zeros = made(w, bits, group)
    return codes, zeros, scales


@ex.wrong("a group of zeros found by its sum", breaks="zero group")
def by_its_sum(w, bits, group):
    codes, scales, zeros = one_by_one(w, bits, group)
    sums = w.reshape(len(w), -1, group).sum(2)
    scales[sums == 0] = 1.0
    return codes, scales, zeros


@ex.wrong("whatever is tiny taken for zeros", breaks="any")
def tiny_is_zero(w, bits, group):
    codes, scales, zeros = one_by_one(w, bits, group)
    scales[scales < 1e-24] = 1.0
    return codes, scales, zeros


@ex.wrong("minus zero made zero in w", breaks="left alone")
def plus_zero(w, bits, group):
    w += 0.0
    return one_by_one(w, bits, group)


@ex.wrong("rows without gaps taken for granted", says="raised", breaks="any")
def no_gaps(w, bits, group):
    if w.stride(0) == 2 * w.shape[1]:
        w.view(-1, group)
    return one_by_one(w, bits, group)
