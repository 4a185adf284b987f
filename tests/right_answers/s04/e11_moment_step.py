"""Exercise 04.11, `moment_step`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s04.e11_moment_step import ex, moment
from dlsys_helpers.judging import edited


@ex.right("noise on the lower half of the bits, which is then cut off")
def on_the_bits(v, grad, beta2, generator):
    x = v.float() * beta2 + grad.float().square() * (1 - beta2)
    noise = torch.randint(0, 1 << 16, x.shape, generator=generator, dtype=torch.int32)
    return ((x.view(torch.int32) + noise) & -65536).view(torch.float32).to(torch.bfloat16)


@ex.right("the neighbours by cutting bits, and by one more")
def by_neighbours(v, grad, beta2, generator):
    x = torch.lerp(grad.float() ** 2, v.float(), beta2)
    low = x.view(torch.int32) & -65536
    high = (low + 65536).view(torch.float32)
    low = low.view(torch.float32)
    chance = (x - low) / (high - low)
    return torch.where(torch.rand(len(x), generator=generator) < chance, high, low).bfloat16()


@ex.right("a whole number of gaps, in float64")
def by_gaps(v, grad, beta2, generator):
    x = v.double() + (1 - beta2) * (grad.double() ** 2 - v.double())
    gap = 2.0 ** (x.clamp(min=1e-35).log2().floor() - 7)
    noise = torch.rand(x.shape, generator=generator, dtype=torch.float64)
    return ((x / gap + noise).floor() * gap).to(torch.bfloat16)


@ex.right("drawn by torch.bernoulli")
def by_bernoulli(v, grad, beta2, generator):
    part, power = torch.frexp(beta2 * v.float() + (1 - beta2) * grad.float() * grad.float())
    part = part * 256
    up = torch.bernoulli(part.frac(), generator=generator)
    return torch.ldexp(part.trunc() + up, power - 8).to(v.dtype)


@ex.right("the nearest, and its other neighbour now and then")
def from_the_nearest(v, grad, beta2, generator):
    x = beta2 * v.float() + (1 - beta2) * grad.float() ** 2
    near = x.bfloat16()
    bits = near.view(torch.int16) + torch.where(x > near.float(), 1, -1).to(torch.int16)
    other = bits.view(torch.bfloat16)
    chance = ((x - near.float()) / (other.float() - near.float()))
    chance = torch.where(x == near.float(), 0.0, chance)
    return torch.where(torch.rand(x.shape, generator=generator) < chance, other, near)


ex.equivalent("up = torch.rand(x.shape, generator=generator) < scaled - low -> "
              "up = torch.rand(x.shape, generator=generator) <= scaled - low",
              "torch.rand draws exactly 0 once in 16 million")


ex.probe("Python's dice", breaks="generator", says="entries that a second generator", fn=edited(
    moment, ("x =", "import random; dice = random.Random(); x =",
             "torch.rand(x.shape, generator=generator)",
             "torch.tensor([dice.random() for _ in range(len(x))])"), "04.11, Python's dice"))
ex.probe("the example looked up", breaks="example", says="fraction rounded up",
         fn=lambda v, grad, beta2, generator: moment(v, grad, beta2, generator)
         if len(v) < 2 or v.tolist() != [1.5] * len(v) else torch.full_like(v, 1.5))
