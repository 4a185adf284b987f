"""Exercise 03.4, `init_`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch
from torch import nn

from dlsys_checks.s03.e4_init import ex, he, linears
from dlsys_helpers.judging import edited


def no_bias(layer):
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)

ex.equivalent("nn.init.kaiming_normal_(layer.weight, nonlinearity='relu') -> "
              "nn.init.kaiming_normal_(layer.weight)",
              "the default, a leaky ReLU of slope 0, is a ReLU")


@ex.right("normal weights by hand")
@torch.no_grad()
def by_normal(net):
    for layer in net[::2]:
        layer.weight.copy_(torch.randn(layer.weight.shape) * (2 / layer.in_features) ** 0.5)
        if layer.bias is not None:
            layer.bias.fill_(0)


@ex.right("uniform weights")
def by_uniform(net):
    for module in net.modules():
        if hasattr(module, "weight"):
            nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
            no_bias(module)


@ex.right("a uniform bound by hand")
def by_bound(net):
    for p in net.parameters():
        if p.dim() == 2:
            bound = math.sqrt(6 / p.shape[1])
            p.data = torch.rand_like(p) * 2 * bound - bound
        else:
            p.data.zero_()


@ex.right("random signs")
@torch.no_grad()
def by_signs(net):
    for layer in linears(net):
        layer.weight.bernoulli_(0.5).mul_(2).sub_(1).mul_(math.sqrt(2 / layer.in_features))
        no_bias(layer)


@ex.right("a truncated normal")
def by_truncation(net):
    def fill(module):
        if isinstance(module, nn.Linear):
            std = math.sqrt(2 / module.in_features)
            nn.init.trunc_normal_(module.weight, std=std, a=-3 * std, b=3 * std)
            no_bias(module)
    net.apply(fill)


STD = "math.sqrt(2 / sizes[0])"
ex.probe("a fan_in of at least 32", breaks="in turn", fn=edited(
    he, (STD, "math.sqrt(2 / max(sizes[0], 32))"), "03.4, at least 32"))
ex.probe("two added to fan_in", breaks="in turn", fn=edited(
    he, (STD, "math.sqrt(2 / (sizes[0] + 2))"), "03.4, two added"))
