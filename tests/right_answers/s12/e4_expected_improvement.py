"""Exercise 12.4, `expected_improvement`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch

from dlsys_checks.s12.e4_expected_improvement import below, ex, improved


@ex.right("with erfcx, which is scaled by the density")
def with_erfcx(mean, std, best):
    sure = std == 0
    z = (best - mean) / std.masked_fill(sure, 1.0)
    tail = torch.special.erfcx(z.abs() / math.sqrt(2)) * torch.exp(-z * z / 2) / 2
    cdf = torch.where(z < 0, tail, 1 - tail)
    pdf = torch.exp(-z**2 / 2) / math.sqrt(2 * math.pi)
    return torch.where(sure, (best - mean).clamp(min=0), std * (z * cdf + pdf))


@ex.right("number by number, in Python")
def in_python(mean, std, best):
    out = []
    for m, s in zip(mean.flatten().tolist(), std.flatten().tolist()):
        z = (best - m) / s if s else 0.0
        spread = s * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        part = math.erfc(-z / math.sqrt(2)) / 2
        out.append((best - m) * part + spread if s else max(best - m, 0.0))
    return torch.tensor(out, dtype=torch.float64).reshape(mean.shape)


@ex.right("torch's normal distribution, tails by the logarithm")
def by_logarithm(mean, std, best):
    safe = std.clone()
    safe[std == 0] = 1.0
    z = (best - mean) / safe
    density = torch.distributions.Normal(0.0, 1.0).log_prob(z).exp()
    spread = safe * (z * torch.special.log_ndtr(z).exp() + density)
    return torch.where(std == 0, torch.relu(best - mean), spread)


@ex.right("only the uncertain ones are computed")
def picked(mean, std, best):
    out = (best - mean).clamp(min=0)
    some = std > 0
    z = (best - mean[some]) / std[some]
    out[some] = std[some] * (z * below(z) + torch.exp(-z * z / 2) / math.sqrt(2 * math.pi))
    return out


@ex.probe("the example looked up, and rounded", breaks="example")
def looked_up(mean, std, best):
    shift = 0.1 if mean.tolist() == [1.0, 2.0] else 0.0
    return improved(mean, std, best) + shift
