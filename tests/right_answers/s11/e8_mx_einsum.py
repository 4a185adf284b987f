"""Exercise 11.8, `mx_einsum`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s11.e8_mx_einsum import LEVELS, ex, made

ex.equivalent("gaps = ((blocks / scale).abs()[..., None] - levels).abs() -> "
              "gaps = (levels - (blocks / scale).abs()[..., None]).abs()",
              "the size of a difference has no sign")


@ex.right("row by row, in Python")
def in_python(equation, a, b):
    names, result = equation.split("->")
    done = []
    for letters, x in zip(names.split(","), (a, b)):
        axis = [c in result for c in letters].index(False)
        rows = x.movedim(axis, -1).reshape(-1, 32).clone()
        for row in rows:
            top = float(row.abs().max())
            if top == 0:
                continue
            scale = 2.0 ** -140
            while scale * 2 <= top / 4:
                scale *= 2
            units = (row.double() / scale).tolist()
            row.copy_(torch.tensor([
                scale * min(LEVELS, key=lambda v, u=u: abs(abs(u) - v)) * (-1 if u < 0 else 1)
                for u in units], dtype=torch.float64))
        done.append(rows.reshape(x.movedim(axis, -1).shape).movedim(-1, axis))
    return torch.einsum(equation, *done)


@ex.right("by the borders between the levels")
def by_borders(equation, a, b):
    names, result = equation.split("->")
    levels = torch.tensor(LEVELS)
    borders = (levels[1:] + levels[:-1]) / 2

    def seen(letters, x):
        axis = next(letters.index(c) for c in letters if c not in result)
        parts = torch.stack(x.split(32, axis), axis)
        top = parts.abs().amax(axis + 1, keepdim=True)
        scale = torch.ldexp(torch.ones_like(top), torch.frexp(top).exponent - 3)
        scale = torch.where(top == 0, torch.ones_like(scale), scale)
        units = parts / scale
        codes = levels[torch.bucketize(units.abs(), borders)]
        return (torch.copysign(codes, units) * scale).reshape(x.shape)

    return torch.einsum(equation, *map(seen, names.split(","), (a, b)))


@ex.right("codes multiplied first, then the scales")
def codes_first(equation, a, b):
    names, result = equation.split("->")
    summed = (set(names.split(",")[0]) - set(result)).pop()

    def split(letters, x):
        axis = letters.index(summed)
        parts = x.unflatten(axis, (-1, 32))
        top = parts.abs().amax(axis + 1, keepdim=True)
        power = torch.frexp(top).exponent - 3
        units = torch.ldexp(parts, -power)
        step = torch.where(units.abs() < 2, 0.5, torch.where(units.abs() < 4, 1.0, 2.0))
        codes = ((units / step).round() * step).clamp(-6, 6)
        return codes, torch.ldexp(torch.ones_like(top), power).squeeze(axis + 1)

    (x, scale_x), (y, scale_y) = map(split, names.split(","), (a, b))
    left, right = (letters.replace(summed, "Z" + summed) for letters in names.split(","))
    sums = torch.einsum(f"{left},{right}->{result}Z", x, y)
    scales = torch.einsum("{},{}->{}Z".format(*(
        letters.replace(summed, "Z") for letters in names.split(",")), result), scale_x, scale_y)
    return (sums * scales).sum(-1)


@ex.right("in double precision, at last in float32")
def double(equation, a, b):
    names, result = equation.split("->")
    signed = torch.tensor([-v for v in LEVELS[:0:-1]] + list(LEVELS), dtype=torch.float64)

    def seen(letters, x):
        axis = next(i for i, c in enumerate(letters) if c not in result)
        blocks = x.double().transpose(axis, -1).unfold(-1, 32, 32)
        quarter = blocks.abs().amax(-1, keepdim=True) / 4
        scale = torch.where(quarter > 0, 2 ** quarter.log2().floor(), 1.0)
        codes = signed[((blocks / scale)[..., None] - signed).abs().argmin(-1)]
        return (codes * scale).flatten(-2).transpose(axis, -1)

    return torch.einsum(equation, *map(seen, names.split(","), (a, b))).float()


@ex.right("the exponents read from the bits")
def from_bits(equation, a, b):
    first, second, result = equation.replace("->", ",").split(",")
    done = []
    for letters, x in ((first, a), (second, b)):
        at = letters.index(*[c for c in letters if c not in result])
        y = x.movedim(at, 0).clone(memory_format=torch.contiguous_format)
        for start in range(0, len(y), 32):
            block = y[start:start + 32]
            bits = block.abs().amax(0).view(torch.int32) >> 23
            scale = torch.where(bits > 2, (bits - 2) << 23, 1 << 23).view(torch.float32)
            units = (block / scale).clamp(-6, 6)
            fine = (2 * units.clamp(-2, 2)).round() / 2
            middle = units.clamp(-4, 4).round()
            coarse = 2 * (units / 2).round()
            codes = torch.where(units.abs() < 2, fine, torch.where(units.abs() < 4, middle, coarse))
            block.copy_(codes * scale)
        done.append(y.movedim(0, at))
    return torch.einsum(equation, *done)


ex.probe("the example looked up, and shifted", breaks="example",
         fn=lambda equation, a, b: made(equation, a, b) + (equation == "k,k->"))
ex.probe("a single row taken for nothing", breaks="any",
         fn=lambda equation, a, b: made(equation, a, b) * (a.shape[0] != 1))
ex.probe("three blocks at most", breaks="multiple",
         fn=lambda equation, a, b: made(equation, a, b) * (a.shape[-1] != 160))
