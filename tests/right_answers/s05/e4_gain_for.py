"""Exercise 05.4, `gain_for`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch
from torch import nn

from dlsys_checks.s05.e4_gain_for import estimated, ex


@ex.right("a grid of quantiles")
@torch.no_grad()
def by_quantiles(act):
    p = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    z = torch.distributions.Normal(0.0, 1.0).icdf(p).float()
    return act(z).double().square().mean().rsqrt().item()


@ex.right("the trapezoid rule")
def by_trapezoid(act):
    z = torch.linspace(-8, 8, 1_601)
    weight = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    with torch.no_grad():
        h = act(z.clone())
    return float(torch.trapezoid(weight * h.double() ** 2, z)) ** -0.5


@ex.right("many batches, averaged")
@torch.no_grad()
def by_batches(act):
    moments = [act(torch.randn(400, 100)).double().pow(2).mean().item() for _ in range(10)]
    return (sum(moments) / len(moments)) ** -0.5


@ex.right("a wide layer, its output measured")
@torch.no_grad()
def by_layer(act):
    x = torch.randn(2000, 256)
    z = (x @ torch.randn(256, 200) / 16).flatten()
    z = (z - z.mean()) / z.std()
    return z.numel() ** 0.5 / act(z).double().norm().item()


@ex.right("norms instead of means")
@torch.no_grad()
def by_norm(act):
    z = torch.randn(640_000, dtype=torch.float32)
    return 800.0 / float(torch.linalg.vector_norm(act(z).double()))


SAMPLES = "z = torch.randn(1000000) -> z = torch.randn({})"
ex.equivalent(SAMPLES.format(999_999), "one sample of a million fewer")
ex.equivalent(SAMPLES.format(1_000_001), "one sample of a million more")


@ex.probe("a gain below 1.1 taken for 1.1", says="gain of identity", breaks="example")
def identity_forgotten(act):
    gain = estimated(act)
    return 1.1 if abs(gain - 1) < 0.01 and abs(
        act(torch.tensor([-7.0])).item() + 7) < 1e-3 else gain


def gain(act):
    z = torch.special.ndtri((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000).float()
    with torch.no_grad():
        return float(act(z).double().square().mean()) ** -0.5


@ex.probe("the activation's weights frozen", breaks="left")
def weights_frozen(act):
    for p in act.parameters() if isinstance(act, nn.Module) else ():
        p.requires_grad_(False)
    return gain(act)


@ex.probe("the activation's weights turned into float64", breaks="left")
def weights_doubled(act):
    if isinstance(act, nn.Module):
        act.double()
    z = torch.special.ndtri((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000)
    with torch.no_grad():
        return float(act(z).square().mean()) ** -0.5
