"""Exercise 11.8, `mx_einsum`."""

from __future__ import annotations

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_like, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("11.8", "mx_einsum", seen=("equation", "a", "b", "order"), says="entries of the")

ALONG_OTHERS = ("summed in front", "attention's weights and values", "gradient of a weight",
                "summed in the middle", "as a product of matrices")

ex.promise("device", "Compute einsum(equation, a, b) as a device does in MXFP4.",
           says=("of the result", "entries of the"))
ex.promise("equation", 'Args: equation: two operands and a result, such as "td,od->to".',
           says=("of the result", "entries of the"))
ex.promise("summed", "One letter is summed: it is in both operands but not in the result.",
           cases=ALONG_OTHERS)
ex.promise_table("""
others     | All other letters are in the result; some can be in both operands. | case attention's
             queries and keys; attention's weights and values; four axes; entry by entry
any        | a, b: float32, in any memory order. | case stored by columns; gaps in memory; tiny;
             huge; one row
left alone | a and b are left as they are. | values changed
multiple   | The number of entries along the summed axis is a multiple of 32. | case 32 entries;
             five blocks; one block of large values
both       | First, a and b are rounded. | entries of the
blocks     | Each block of 32 neighbours along the summed axis shares a scale. | entries of the
power      | The scale is the largest power of two that is at most a quarter of the block's largest
             absolute value. | entries of the
levels     | A number becomes the nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 times the scale, with its
             sign. | entries of the
zeros      | 32 zeros stay zeros. | case a block of zeros; only zeros
float32    | Then a and b are multiplied and added in float32. | dtype of the; type of the; entries
             of the
example    | Example: "k,k->" with [33., 1., ..., 1.] and 32 ones gives 32., not 64. | case the
             example
""")


@ex.cases
def cases(g):
    def one(name, equation, loud=40.0, size=1.0, order="rows", **axes):
        names, _ = equation.split("->")
        a, b = (torch.randn([axes[c] for c in letters], generator=g) for letters in
                names.split(","))
        if a.dim() > 1:            # one column of a is loud, at a place of its own
            summed = next(i for i, c in enumerate(names.split(",")[0])
                          if c not in equation.split("->")[1])
            at = int(torch.randint(a.shape[summed], (), generator=g))
            a.select(summed, at).mul_(loud)
        return name, {"equation": equation, "a": size * a, "b": b / 8, "order": order}

    empty = one("a block of zeros", "td,od->to", t=5, o=4, d=96)
    empty[1]["a"][1, 32:64] = 0.0
    empty[1]["b"][2, :32] = -0.0
    lone = one("one block of large values", "td,od->to", loud=1.0, t=4, o=3, d=128)
    lone[1]["a"][:, 40] *= -300.0
    below = one("the largest values are negative", "td,od->to", loud=1.0, t=4, o=5, d=64)
    below[1]["a"] = below[1]["a"].abs() / 4
    below[1]["a"][:, ::9] *= -30.0
    just = one("the largest just below a power of two", "td,od->to", loud=1.0, t=4, o=3, d=64)
    just[1]["a"][:, ::32] = torch.nextafter(torch.tensor(8.0), torch.tensor(0.0))
    example = torch.ones(32)
    example[0] = 33.0
    made = [one("a layer", "td,od->to", t=6, o=5, d=64), one("32 entries", "td,od->to", t=4, o=3,
                                                             d=32),
            one("five blocks", "td,od->to", t=3, o=4, d=160), lone, below, just,
            one("as a product of matrices", "ij,jk->ik", i=5, j=64, k=32),
            one("summed in front", "ki,kj->ij", k=96, i=4, j=32),
            one("gradient of a weight", "to,td->od", t=64, o=32, d=5),
            one("summed in the middle", "akb,ck->abc", a=3, k=64, b=32, c=2),
            one("attention's queries and keys", "bqd,bkd->bqk", b=32, q=4, k=3, d=64),
            one("attention's weights and values", "bqk,bkd->bqd", b=2, q=3, k=64, d=32),
            one("four axes", "bhqd,bhkd->bhqk", b=2, h=3, q=4, k=2, d=32),
            one("entry by entry", "td,td->t", t=32, d=64),
            one("the result turned", "td,od->ot", t=6, o=5, d=64),
            one("other letters", "xz,yz->xy", x=4, y=3, z=64),
            one("no large column", "td,od->to", loud=1.0, t=5, o=4, d=64),
            one("tiny", "td,od->to", size=1e-20, t=4, o=3, d=64),
            one("huge", "td,od->to", size=1e20, t=4, o=3, d=64),
            one("one row", "td,od->to", t=1, o=1, d=64), empty,
            one("only zeros", "td,od->to", size=0.0, t=3, o=2, d=32),
            one("stored by columns", "td,od->to", order="columns", t=32, o=64, d=32),
            one("gaps in memory", "td,od->to", order="gaps", t=4, o=5, d=64)]
    return [(name, inputs | {"a": odd(inputs["a"]), "b": odd(inputs["b"])})
            for name, inputs in made] + [
        ("the example", {"equation": "k,k->", "a": example, "b": torch.ones(32), "order": "rows"})]


def odd(x):
    """x with its last bit set, so that no entry lies halfway between two levels; zeros stay."""
    return torch.where(x == 0, x, (x.view(torch.int32) | 1).view(torch.float32))


@ex.act
def act(fn, equation, a, b, order):
    given = []
    for x in (a, b):
        mine = x.clone()
        if order == "columns":
            mine = x.mT.contiguous().mT
        if order == "gaps":
            mine = torch.cat([x, x + 1], -1)[..., :x.shape[-1]]
        given.append(mine)
    out = fn(equation, *given)
    moved = 0
    for mine, x in zip(given, (a, b)):
        same = mine.shape == x.shape and mine.dtype == x.dtype
        moved += int((mine.view(torch.int32) != x.view(torch.int32)).sum()) if same else x.numel()
    return {"out": out, "moved": moved}


@ex.law
def law(out, equation, a, b, order):
    expect_parts(out, "out", "moved")
    expect_equal("values changed in a and b", out["moved"], 0, "Work on copies.")
    names, result = equation.split("->")
    first, second = (stepped(x.double(), letters.index(next(iter(set(letters) - set(result)))))
                     for x, letters in zip((a, b), names.split(",")))
    exact = torch.einsum(equation, first, second)
    reach = torch.einsum(equation, first.abs(), second.abs())
    expect_like("result", out["out"], exact.float())
    gap = (out["out"].double() - exact).abs() - 1e-5 * reach
    if not (gap <= 0).all():
        worst = int(gap.nan_to_num(float("inf")).argmax())
        raise Broken("entries of the result", float(out["out"].flatten()[worst]),
                     float(exact.flatten()[worst]),
                     "Round both operands: each block of 32 neighbours along the summed axis "
                     "shares a power of two as its scale.")


@not_an_answer
def stepped(x, axis):
    """x in MXFP4 along the axis, by the spacing of the levels, in float64."""
    flat = x.movedim(axis, -1)
    out = torch.empty_like(flat)
    for place in range(0, flat.shape[-1], 32):
        block = flat[..., place:place + 32]
        power = torch.frexp(block.abs().amax(-1, keepdim=True)).exponent - 3
        unit = torch.ldexp(block, -power)
        step = torch.ldexp(torch.ones_like(unit), torch.frexp(unit.abs()).exponent.clamp(1, 3) - 2)
        out[..., place:place + 32] = torch.ldexp(
            ((unit / step).round() * step).clamp(-6.0, 6.0), power)
    return out.movedim(-1, axis)


# ---- wrong, by name

LEVELS = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


@not_an_answer
def blockwise(x, axis, block, power, levels, size, sign, floor, zeros, least, hold):
    """x in blocks along the axis; whole axes where they are no multiple of the block."""
    moved = x.movedim(axis, -1)
    n = moved.shape[-1]
    parts = moved.reshape(*moved.shape[:-1], -1, block if n % block == 0 else n)
    top = size(parts).amax(-1, keepdim=True)
    scale = 2.0 ** power(top.clamp(min=least))
    units = parts / scale
    if zeros:
        units = torch.where(top > 0, units, 0.0)
        scale = torch.where(top > 0, scale, 1.0)
    gaps = units.abs()[..., None] - levels
    if floor:
        gaps = torch.where(gaps < 0, torch.inf, gaps)
    codes = levels[gaps.abs().argmin(-1)]
    codes = torch.where(units.isnan(), units, codes)
    codes = codes * units.sign() if sign else codes
    return (codes * scale if hold else codes).reshape(moved.shape).movedim(-1, axis)


@not_an_answer
def first_shared(letters, result):
    """The axis of the first letter in both operands, where the letters of the cases tell it."""
    summed = next(i for i, c in enumerate(letters) if c not in result)
    shared = [i for i, c in enumerate(letters) if c in "bh" and len(letters) > 2]
    if len(letters) == 2 and result == letters[0]:
        shared = [0]
    return shared[0] if shared and letters != "akb" else summed


@not_an_answer
def made(equation, a, b, *, multiply=torch.einsum):
    names, result = equation.split("->")
    rounded = []
    for letters, x, wanted in zip(names.split(","), (a, b), (True, True)):
        axis = next(i for i, c in enumerate(letters) if c not in result)
        rounded.append(blockwise(x, axis, 32, lambda top: top.frexp().exponent - 3,
            torch.tensor(LEVELS), lambda x: x.abs(), True, False, True, 0.0, True) if wanted else x)
    out = multiply(equation, *rounded)
    return out


wrong = ex.edits(made)
RESULT = "names, result ="
FLOOR = "top.frexp().exponent - 3"
wrong("taking blocks along the last axis, whichever axis is summed", "summed",
      "rounded.", "axis = len(letters) - 1; rounded.")
wrong("taking blocks along the first axis", ("blocks", "others", "multiple"),
      "rounded.", "axis = 0; rounded.")
wrong("taking blocks along an axis that is not summed", ("blocks", "summed"),
      "rounded.", "axis = next((i for i, c in enumerate(letters) if c in result), 0); rounded.")
wrong("taking blocks along the first axis that both operands share", "others",
      "rounded.", "axis = first_shared(letters, result); rounded.")
wrong("making blocks of neighbours in memory, not along an axis", "any",
      RESULT,
      "own_x, y = (stepped(t.mT.double(), 1).float().mT if t.stride(0) == 1 and t.dim() == 2 "
      "else t for t in (a, b)); names, result =",
      "return out", "return out if own_x is a and y is b else torch.einsum(equation, own_x, y)")
wrong("using one scale for the whole axis", "blocks",
      RESULT, f"block = 10**9; {RESULT}", "axis, 32", "axis, block")
wrong("using blocks of 16, as in NVFP4", "blocks", "axis, 32", "axis, 16")
wrong("taking the exponent from float32's log2, which rounds up just below a power of two",
      "power", FLOOR, "top.log2().floor() - 2")
wrong("using a scale that is not a power of two", "power", FLOOR, "(top / 6).log2()")
wrong("choosing as the scale a sixth of the largest value, rounded up to a power of two",
      "power", FLOOR, "(top / 6).log2().ceil()")
wrong("choosing as the scale the power of two nearest to a sixth of the largest value",
      "power", FLOOR, "(top / 6).log2().round()")
wrong("allowing a scale up to the largest value, not a quarter of it", ("power", "example"),
      "exponent - 3", "exponent - 1")
wrong("allowing a scale up to half of the largest value, not a quarter", ("power", "example"),
      "exponent - 3", "exponent - 2")
wrong("allowing a scale up to an eighth of the largest value, not a quarter", ("power", "example"),
      "exponent - 3", "exponent - 4")
wrong("multiplying codes without their scales", ("device", "example"), "0.0, True", "0.0, False")
wrong("computing a scale from the largest value, not the largest absolute value",
      ("power", "zeros"),
      "x.abs()", "x.clamp(min=0.0)", says="entries of the")
wrong("rounding only the first operand", "both", "True, True", "True, False")
wrong("rounding only the second operand", ("both", "example"), "b), (True", "b), (False")
wrong("rounding neither operand", ("both", "device", "example"), "(True, True)", "(False, False)")
wrong("using the integers from 0 to 7 as levels", "levels", "LEVELS", "(0, 1, 2, 3, 4, 5, 6, 7)")
wrong("using all multiples of 0.5 up to 6", "levels",
      RESULT, f"levels = [n / 2 for n in range(13)]; {RESULT}", "LEVELS", "levels")
wrong("adding a level of 8 above 6", "levels",
      "LEVELS", "levels", RESULT, f"levels = *LEVELS, 8; {RESULT}")
wrong("leaving out the level of 0.5", "levels", "LEVELS", "(0, 1, 1.5, 2, 3, 4, 6)")
wrong("rounding toward 0 instead of to the nearest level", "levels", "False", "True")
wrong("dropping the signs of the numbers", "levels", "(), True", "(), False")
wrong("dividing by the scale of a block of zeros", "zeros",
      "True, 0.0", "False, 0.0", FLOOR, f"torch.where(top > 0, {FLOOR}, -torch.inf)")
wrong("clamping scales to at least 1e-8", "any", "True, 0.0", "True, 1e-8")
wrong("rounding the result to bfloat16", "float32", "return out", "return out.bfloat16().float()")
ex.wrong("multiplying in bfloat16", lambda equation, a, b: made(
    equation, a, b, multiply=lambda eq, x, y: torch.einsum(eq, x.bfloat16(), y.bfloat16())),
    says="dtype of the", breaks="float32")
wrong("returning float64", "float32", "return out", "return out.double()", says="dtype of the")
ex.wrong("returning a Python number if the result has one entry", lambda equation, a, b: made(
    equation, a, b).item() if equation == "k,k->" else made(equation, a, b), says="type of the",
    breaks="example")
wrong("ordering the result's axes as in the operands", "equation",
      RESULT, f'equation = "td,od->to" if equation == "td,od->ot" else equation; {RESULT}',
      says="of the result")
wrong("rounding the result to MXFP4 as well", "device",
      "return out",
      "if out.dim() != 2 or out.shape[-1] != 32: return out\n    return stepped(out.double(), "
      "1).float()")


@ex.wrong("rounding the operands in place", breaks="left alone")
def in_place(equation, a, b):
    names, result = equation.split("->")
    for letters, x in zip(names.split(","), (a, b)):
        axis = next(i for i, c in enumerate(letters) if c not in result)
        x.copy_(stepped(x.double(), axis).float())
    return torch.einsum(equation, a, b)
