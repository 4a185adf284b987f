"""Exercise 03.4, `init_`."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_checks.s03.common import between
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("03.4", "init_", seen=("sizes", "bias", "head", "inplace"), says="mean square after")

ENDS = ("a Linear at the end", "a single Linear")
ex.promise("in place", "Initialize net in place.", says=("modules", "new parameters", "requires"))
ex.promise("size kept", "The signal has to keep its size.", says=("mean square after",))
ex.promise("in turn", "Args: net: alternating nn.Linear and nn.ReLU layers, of any width, even 1.",
           cases=("one layer", "four layers of one width", "ReLU that works in place",
                  "wider, then narrower", "a layer of one unit"))
ex.promise("a Linear may be last", "The last layer can be a Linear.", cases=ENDS)
ex.promise("no bias", "A Linear need not have a bias.", cases=("no biases",))
ex.promise("every ReLU", "For inputs from N(0, 1), the mean square after *every* ReLU is between "
           "0.5 and 2 on average over many nets.", says=("mean square after",))
ex.promise("other widths", "This also holds if layers get wider or narrower.",
           cases=("each layer wider", "each layer narrower", "wider, then narrower", "no biases",
                  "one layer", "the example", "a layer of one unit", *ENDS))
ex.promise("random", "All weights are random, drawn independently around zero with PyTorch's "
           "generator.",
           says=("weights of", "mean weight", "same seed"))
ex.promise("zero biases", "The biases are zero.", says=("largest bias",))
ex.promise("example", "Example: a weight of shape (64, 32) gets a standard deviation of 0.25.",
           cases=("the example",))

NETS = 12  # one net scatters; the mean over twelve stays within a fifth of its expectation


@ex.cases
def cases(g):
    def near(width):
        return between(g, width * 8 // 9, width * 10 // 9)

    def one(name, *widths, bias=True, head=False, inplace=False):
        return name, {"sizes": list(widths), "bias": bias, "head": head, "inplace": inplace}

    start, width = near(24), near(60)
    return [one("four layers of one width", *[width] * 5),
            one("each layer wider", start, 3 * start, 5 * start),
            one("each layer narrower", near(150), near(60), near(28)),
            one("wider, then narrower", near(40), near(100), near(40), near(100), near(40)),
            one("one layer", near(40), near(90)),
            one("ReLU that works in place", near(48), near(48), near(48), inplace=True),
            one("no biases", near(40), near(90), near(40), bias=False),
            one("a Linear at the end", near(48), near(64), 10, head=True),
            one("a single Linear", near(40), near(60), head=True),
            one("a layer of one unit", between(g, 2, 4), near(60), 1, near(60)),
            one("the example", 32, 64)]


@ex.act
def act(fn, sizes, bias, head, inplace):
    def made():
        layers = []
        for i, o in zip(sizes, sizes[1:]):
            layers += [nn.utils.skip_init(nn.Linear, i, o, bias=bias), nn.ReLU(inplace)]
            nn.init.constant_(layers[-2].weight, 0.01)
            if bias:
                nn.init.constant_(layers[-2].bias, 0.5)
        return nn.Sequential(*layers[:-1] if head else layers)

    nets, modules, new, frozen = [], [], 0, 0
    for _ in range(12):
        net = made()
        old = list(net.parameters())
        fn(net)
        nets.append([{"weight": m.weight, "bias": m.bias}
                     for m in net if isinstance(m, nn.Linear)])
        modules.append(len(net))
        new += sum(p is not q for p, q in zip(old, net.parameters()))
        frozen += sum(not p.requires_grad for p in net.parameters())
    twins = [made(), made()]
    for net in twins:
        torch.default_generator.manual_seed(7)
        fn(net)
    apart = sum(int((p != q).sum()) for p, q in zip(*(net.parameters() for net in twins)))
    return {"state": nets, "modules": modules, "new": new, "frozen": frozen, "apart": apart}


def second_moments(net, x):
    """Mean square after every ReLU, in float64."""
    h, found = x, []
    for layer in net:
        h = (h @ layer["weight"].double().T).clamp(min=0)
        found.append(h.square().mean())
    return torch.stack(found)


def largest(tensor):
    """The largest absolute entry; of a tensor with a NaN, infinity."""
    return float(tensor.abs().nan_to_num(nan=math.inf).max())


def expect_nets(out, sizes, bias, head):
    """Raise Broken unless there are NETS nets whose layers have their sizes."""
    expect_parts(out, "state", "modules", "new", "frozen", "apart")
    expect_length("nets", out["state"], NETS)
    for net in out["state"]:
        expect_length("layers of a net", net, len(sizes) - 1, "Keep the layers as they are.")
        for i, o, layer in zip(sizes, sizes[1:], net):
            expect_parts(layer, "weight", "bias")
            expect_like("weight of a layer", layer["weight"], torch.empty(o, i))
            expect_like("bias of a layer", layer["bias"], torch.empty(o) if bias else None)
    length = 2 * (len(sizes) - 1) - head
    expect_equal("modules of the nets", out["modules"], [length] * NETS,
                 "Add no module and remove none.")
    expect_equal("new parameters in place of the old ones", out["new"], 0,
                 "An optimizer created earlier would not know new parameters, so fill the old "
                 "ones.")
    expect_equal("parameters without requires_grad", out["frozen"], 0)


def expect_zero_biases(nets):
    for depth, layers in enumerate(zip(*nets, strict=True), 1):
        worst = max(0.0 if layer["bias"] is None else largest(layer["bias"]) for layer in layers)
        expect_equal(f"largest bias of layer {depth}", worst, 0.0, "Biases start at zero.")


def correlation(a, b):
    """Mean product of two tensors of weights, each brought to a mean square of one."""
    return float((a * b).mean()) / float(a.norm() * b.norm()) * math.sqrt(a.numel() * b.numel())


def expect_random(nets):
    """Raise Broken unless weights differ and scatter around zero: between nets, layers, units."""
    layers = [torch.stack([layer["weight"] for layer in same])
              for same in zip(*nets, strict=True)]
    for w in layers:
        if not 0 < largest(w) < math.inf:
            raise Broken("largest weight", largest(w), "a positive finite number")
        expect_apart("mean weight of a layer, divided by its root mean square", w, torch.ones(()),
                     limit=0.3)
        for axis, name in ((1, "neighbouring units"), (2, "neighbouring inputs"), (0, "two nets")):
            expect_apart(f"correlation between the weights of {name}", w, w.roll(1, axis))
    for one, other in itertools.combinations(layers, 2):
        if one.shape == other.shape:
            expect_apart("correlation between the weights of two layers", one, other)


def expect_apart(what, a, b, limit=None):
    found = correlation(a, b)
    limit = limit or 6 / math.sqrt(a.numel())  # six standard errors
    if not abs(found) <= limit:
        raise Broken(what, found, f"at most {limit:.2g} in absolute value")


@ex.law
def law(out, sizes, bias, head, inplace):
    # The weights are the answer itself: random, so only what they do to x can be expected.
    expect_nets(out, sizes, bias, head)
    nets = out["state"]
    expect_zero_biases(nets)
    tiny = 1 in sizes  # what one unit makes of x scatters too much between nets to be measured
    if not tiny:
        expect_random(nets)
    hidden = [net[:len(net) - head] for net in nets]
    if hidden[0]:
        expect_moments(by_weights(hidden) if tiny else by_inputs(hidden, sizes), sizes)
    if sizes == [32, 64]:
        weights = torch.stack([net[0]["weight"] for net in nets])
        expect_close("standard deviation of the weights", float(weights.std()), 0.25, rtol=0.03)
    expect_equal("weights that differ between two nets drawn after the same seed", out["apart"], 0,
                 "Draw with torch's generator.")


def by_inputs(nets, sizes):
    """The mean over nets of the mean square after each ReLU, measured."""
    # Drawn here, where no answer can see it.
    x = torch.randn(128, sizes[0], generator=torch.Generator().manual_seed(sum(sizes)),
                    dtype=torch.float64)
    return torch.stack([second_moments(net, x) for net in nets]).mean(0).tolist()


def by_weights(nets):
    """Its expectation for symmetric weights: a layer multiplies it by fan_in * Var(w) / 2."""
    squares = [torch.stack([layer["weight"].double() for layer in same]).square().mean()
               * same[0]["weight"].shape[1] / 2 for same in zip(*nets, strict=True)]
    return torch.stack(squares).cumprod(0).tolist()


def expect_moments(moments, sizes):
    for depth, moment in enumerate(moments, 1):
        if not 0.5 <= moment <= 2:
            raise Broken(f"mean square after ReLU {depth} of {len(moments)}, averaged over {NETS} "
                         f"nets of widths {sizes}", moment, "0.5 to 2",
                         "Each layer multiplies the mean square by fan_in * Var(w) / 2.")


def linears(net):
    return [m for m in net if isinstance(m, nn.Linear)]


# ---- wrong, by name

@not_an_answer
def he(net):
    for layer in linears(net):
        sizes = layer.weight.shape[::-1]  # fan_in, fan_out
        nn.init.normal_(layer.weight, std=math.sqrt(2 / sizes[0]))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


wrong = ex.edits(he)
LAYERS, STD, BIAS = "linears(net)", "math.sqrt(2 / sizes[0])", "nn.init.zeros_(layer.bias)"
DRAW, EACH = f"nn.init.normal_(layer.weight, std={STD})", "for layer in"
wrong("using a standard deviation of 0.01 for every layer", "size kept", STD, "0.01")
wrong("using fan_out instead of fan_in", ("size kept", "example"), STD, "math.sqrt(2 / sizes[1])")
wrong("using the larger of fan_in and fan_out instead of fan_in", "other widths",
      STD, "math.sqrt(2 / max(sizes))")
wrong("using the mean of fan_in and fan_out instead of fan_in",
      "other widths", STD, "math.sqrt(4 / sum(sizes))")
wrong("using Xavier init, which ignores the ReLU", "every ReLU", STD, "math.sqrt(2 / sum(sizes))")
wrong("using a standard deviation of 0.02 for every layer", "size kept", STD, "0.02")
wrong("using a variance of 1 / fan_in, as if there were no ReLU", ("every ReLU", "example"),
      STD, "math.sqrt(1 / sizes[0])")
wrong("using uniform Xavier init, which ignores the ReLU", "every ReLU",
      DRAW, "nn.init.xavier_uniform_(layer.weight)")
wrong("passing the gain as the slope: kaiming_normal_(a=sqrt(2))", "every ReLU",
      DRAW, "nn.init.kaiming_normal_(layer.weight, a=math.sqrt(2))")
wrong("using sqrt(2 / fan_in) as the bound of uniform weights", "every ReLU",
      DRAW, f"nn.init.uniform_(layer.weight, -{STD}, {STD})")
wrong("keeping PyTorch's default weights", "every ReLU",
      DRAW, "nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5))")
wrong("keeping the variance at 1 instead of the mean square", ("size kept", "example"),
      STD, "math.sqrt(2 / (1 - 1 / math.pi) / sizes[0])")
wrong("using the variance 2 / fan_in as the standard deviation", "every ReLU", STD, "2 / sizes[0]")
wrong("using the first layer's fan_in for every layer", "other widths",
      STD, "math.sqrt(2 / net[0].in_features)")
wrong("initializing only the first three layers",
      "in turn", LAYERS, "linears(net)[:3]", says="largest bias")
wrong("skipping a Linear that has no ReLU after it", "a Linear may be last",
      LAYERS, "linears(m for m, after in zip(net, net[1:]) if isinstance(after, nn.ReLU))",
      says="largest bias")
wrong("assuming that every Linear has a bias", "no bias",
      "if layer.bias is not None", "if True", BIAS, "layer.bias.data.zero_()",
      says="raised AttributeError")
wrong("leaving the biases as they were", "zero biases", BIAS, "pass")
wrong("setting the biases to 0.01 to avoid dead units", "zero biases",
      BIAS, "nn.init.constant_(layer.bias, 0.01)")
wrong("replacing the parameters with new ones", "in place",
      DRAW, f"layer.weight = nn.Parameter(torch.empty_like(layer.weight)); {DRAW}")
wrong("setting requires_grad to False on all parameters", "in place",
      BIAS, BIAS + "\n    net.requires_grad_(False)", says="requires_grad")
wrong("drawing the same weights for every net, as with a fixed seed", ("random", "in turn"),
      EACH, f"torch.manual_seed(0)\n    {EACH}", says="weights of two nets")


@ex.wrong("drawing from a generator other than PyTorch's, such as NumPy's", says="same seed",
          breaks="random")
def by_numpy(net):
    for layer in linears(net):
        drawn = np.random.normal(0, math.sqrt(2 / layer.in_features), layer.weight.shape)
        layer.weight.data = torch.from_numpy(drawn).float()
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


wrong("setting all weights to the same value",
      "random", DRAW, f"nn.init.constant_(layer.weight, {STD})")
wrong("drawing only positive weights", "random", DRAW, f"{DRAW}; layer.weight.data.abs_()")
wrong("giving all units the same row of weights", "random",
      DRAW, f"{DRAW}; layer.weight.data[:] = layer.weight.data[0].clone()",
      says="weights of neighbouring units")
wrong("giving layers of the same shape the same weights", "random",
      EACH, f"drawn = {{}}\n    {EACH}",
      DRAW, f"{DRAW}; layer.weight.data.copy_(drawn.setdefault(layer.weight.shape, "
      "layer.weight.data))", says="weights of two layers")
wrong("using three quarters of the right variance if the net has one layer", "example",
      STD, "math.sqrt((1.5 if len(net) == 2 else 2) / sizes[0])", says="standard deviation")
