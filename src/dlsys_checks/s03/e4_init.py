"""Exercise 03.4, `init_`."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_length, expect_like, expect_parts

ex = exercise("03.4", "init_",
              seen=("sizes", "x"))

NETS = 12  # one net scatters; the mean over twelve stays within a fifth of its expectation


@ex.cases
def cases(g):
    def one(name, sizes):
        return name, {"sizes": list(sizes), "x": torch.randn(64, sizes[0], generator=g)}
    return [one("each layer twice as wide", (32, 64, 128, 256)),
            one("each layer half as wide", (256, 128, 64, 32)),
            one("six layers of one width", (96,) * 7)]


@ex.act
def act(fn, sizes, x):
    nets = []
    for _ in range(12):
        layers = []
        for i, o in zip(sizes, sizes[1:]):
            layers += [nn.Linear(i, o), nn.ReLU()]
            nn.init.constant_(layers[-2].weight, 0.01)
            nn.init.constant_(layers[-2].bias, 0.5)
        net = nn.Sequential(*layers)
        fn(net)
        nets.append(net)
    return {"state": [[{"weight": m.weight, "bias": m.bias} for m in net[::2]] for net in nets]}


def second_moments(net, x):
    """Mean square after every ReLU, in float64."""
    h, found = x.double(), []
    for layer in net:
        h = (h @ layer["weight"].double().T + layer["bias"].double()).clamp(min=0)
        found.append(h.square().mean())
    return torch.stack(found)


def largest(tensor):
    """The largest absolute entry; of a tensor with a NaN, infinity."""
    return float(tensor.abs().nan_to_num(nan=math.inf).max())


def expect_nets(out, sizes):
    """Raise Broken unless there are NETS nets whose layers have the sizes they were made with."""
    expect_parts(out, "state")
    expect_length("nets", out["state"], NETS)
    for net in out["state"]:
        expect_length("layers of a net", net, len(sizes) - 1, "Keep the layers as they are.")
        for i, o, layer in zip(sizes, sizes[1:], net):
            expect_parts(layer, "weight", "bias")
            expect_like("weight of a layer", layer["weight"], torch.empty(o, i))
            expect_like("bias of a layer", layer["bias"], torch.empty(o))


@ex.law
def law(out, sizes, x):
    # The weights are the answer itself: random, so only what they do to x can be expected.
    expect_nets(out, sizes)
    worst = max(largest(layer["bias"]) for net in out["state"] for layer in net)
    expect_equal("largest bias", worst, 0.0, "Biases start at zero.")
    for net in out["state"]:
        for layer in net:
            if not layer["weight"].isfinite().all():
                raise Broken("largest weight", largest(layer["weight"]), "a finite number")
    firsts = [net[0]["weight"] for net in out["state"]]
    if any(torch.equal(a, b) for a, b in itertools.combinations(firsts, 2)):
        raise Broken("weights of two nets", "the same", "fresh random ones for each net")
    moments = torch.stack([second_moments(net, x) for net in out["state"]]).mean(0).tolist()
    for depth, moment in enumerate(moments, 1):
        if not 0.5 <= moment <= 2:
            raise Broken(f"second moment after ReLU {depth} of {len(moments)}, mean of {NETS} nets",
                         moment, "0.5 to 2", "A layer multiplies it by fan_in * Var(w) / 2.")


def set_each(net, std):
    """Normal weights with standard deviation std(fan_in, fan_out), biases zero."""
    for layer in net[::2]:
        fan_out, fan_in = layer.weight.shape
        nn.init.normal_(layer.weight, std=std(fan_in, fan_out))
        nn.init.zeros_(layer.bias)


@ex.wrong("standard deviation 0.01 for every layer", says="second moment")
def hundredth(net):
    set_each(net, lambda fan_in, fan_out: 0.01)


@ex.wrong("fan_out in place of fan_in", says="second moment")
def by_fan_out(net):
    set_each(net, lambda fan_in, fan_out: math.sqrt(2 / fan_out))


@ex.wrong("Xavier, which knows no ReLU", says="second moment")
def xavier(net):
    set_each(net, lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out)))


@ex.wrong("PyTorch's default weights", says="second moment")
def default(net):
    for layer in net[::2]:
        nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5))
        nn.init.zeros_(layer.bias)


@ex.wrong("the variance held at 1 in place of the second moment", says="second moment")
def by_variance(net):
    set_each(net, lambda fan_in, fan_out: math.sqrt(2 / (1 - 1 / math.pi) / fan_in))


@ex.wrong("the variance 2 / fan_in used as standard deviation", says="second moment")
def variance_as_std(net):
    set_each(net, lambda fan_in, fan_out: 2 / fan_in)


@ex.wrong("biases left as they were", says="largest bias")
def keeps_bias(net):
    for layer in net[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
