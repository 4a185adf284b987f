"""What a fresh network does to its input: the forward pass, layer by layer, before any training."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.explorers import Choice, Lines, Slider, explorer

ROWS, DEPTH = 128, 20
SATURATED = 0.05                 # a derivative smaller than this passes under 5 % on
FLOOR, TOP = 1e-12, 1e12         # one window for all settings; values beyond are drawn on its edge
ACTIVATIONS = {"linear": lambda z: z, "ReLU": F.relu, "tanh": torch.tanh, "GELU": F.gelu}
KEPT = {"linear": 1.0, "ReLU": 0.5}  # share of the second moment that passes, at any size


INITS = {
    "Xavier": lambda w, g: nn.init.xavier_normal_(w, generator=g),
    "He": lambda w, g: nn.init.kaiming_normal_(w, nonlinearity="relu", generator=g),
    "orthogonal": lambda w, g: nn.init.orthogonal_(w, generator=g),
    "PyTorch default": lambda w, g: nn.init.kaiming_uniform_(w, a=5**0.5, generator=g),
    "std 0.01": lambda w, g: nn.init.normal_(w, std=0.01, generator=g),
    "std 1": lambda w, g: nn.init.normal_(w, generator=g),
}


def variances(init, n):
    """The variance of a weight and of a bias in a layer of n inputs and n units."""
    return {"Xavier": (1 / n, 0), "He": (2 / n, 0), "orthogonal": (1 / n, 0),
            "PyTorch default": (1 / (3 * n), 1 / (3 * n)), "std 0.01": (1e-4, 0),
            "std 1": (1, 0)}[init]


def preactivations(init, activation, width):
    """An N(0, 1) input and the pre-activations of DEPTH layers, each (ROWS, width) float64."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, width, generator=g, dtype=torch.float64)
    h, seen, edge = x, [], math.sqrt(3 * variances(init, width)[1])
    for _ in range(DEPTH):
        weight = INITS[init](torch.empty(width, width, dtype=torch.float64), g)
        bias = torch.empty(width, dtype=torch.float64).uniform_(-edge, edge, generator=g)
        seen.append(F.linear(h, weight, bias))
        h = ACTIVATIONS[activation](seen[-1])
    return x, seen


def predicted(init, activation, width):
    """The second moment of the input and after each layer, as an average over weights.

    If z ~ N(0, q), E[f(z) ** 2] is an integral; q = width * Var(w) * moment + Var(b).
    """
    of_weight, of_bias = variances(init, width)
    z = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    density = (-z * z / 2).exp() / (-z * z / 2).exp().sum()
    moments = [torch.ones((), dtype=torch.float64)]
    for _ in range(DEPTH):
        q = width * of_weight * moments[-1] + of_bias
        moments.append((density * ACTIVATIONS[activation](q.sqrt() * z).square()).sum())
    return torch.stack(moments)


def slopes(activation, z):
    """The activation's derivative at every element of z."""
    z = z.detach().requires_grad_()
    return torch.autograd.grad(ACTIVATIONS[activation](z).sum(), z)[0]


def between_rows(h):
    """How far two inputs still differ: standard deviation over rows, RMS over units."""
    return h.var(0, correction=0).mean().sqrt()


def closed_form(init, activation, width):
    """The factor per layer in words, where there is one."""
    of_weight, of_bias = variances(init, width)
    if activation not in KEPT:
        return f"For {activation} no single factor holds: it depends on the size that comes in."
    factor = math.sqrt(width * of_weight * KEPT[activation])
    until = ", until the biases hold it up" if of_bias else ""
    return f"Closed form: {factor:.3g} per layer{until}."


def told(init, activation, width, size, small, dead):
    """The sentence: sizes (DEPTH + 1,), shares in percent of the last layer."""
    per_layer = (size[-1] / size[0]) ** (1 / DEPTH)
    return (f"{init}, {activation}, width {width}: after {DEPTH} layers the root mean square is "
            f"{size[-1]:.2g}, a factor of {per_layer:.3g} per layer. "
            f"{closed_form(init, activation, width)} In the last layer {small:.0f} % of the "
            f"derivatives are below {SATURATED}; {dead:.0f} % of the units are dead, their "
            f"derivative 0 on all {ROWS} inputs.")


@explorer(
    title="What a fresh network does to its input",
    controls=[
        Choice("init", "Weights start as", INITS, "PyTorch default"),
        Choice("activation", "Activation", ACTIVATIONS, "ReLU"),
        Slider("width", "Width of every layer", [16, 64, 256], 64),
    ],
    views=[
        Lines("layer", {"size": "measured", "predicted": "predicted", "rows": "between rows"},
              title="Size of the activations", xlabel="layer; 0 is the input",
              ylabel="root mean square (log)", xlim=(0, DEPTH), ylim=(FLOOR, TOP), ylog=True),
        Lines("hidden", {"small": f"slope < {SATURATED}", "dead": "dead units"},
              title="Where little or no gradient passes", xlabel="layer", ylabel="share (%)",
              xlim=(1, DEPTH), ylim=(0, 100)),
    ],
)
def init_depth(init, activation, width):
    """Sizes, spread between rows, small derivatives and dead units, layer by layer."""
    x, seen = preactivations(init, activation, width)
    layers = [x, *(ACTIVATIONS[activation](z) for z in seen)]
    size = torch.stack([h.square().mean().sqrt() for h in layers])
    rows = torch.stack([between_rows(h) for h in layers])
    slope = torch.stack([slopes(activation, z) for z in seen])
    small = (slope.abs() < SATURATED).double().mean((1, 2)) * 100
    dead = (slope == 0).all(1).double().mean(1) * 100
    curves = {"size": size, "predicted": predicted(init, activation, width).sqrt(), "rows": rows}
    return {"layer": range(DEPTH + 1), "hidden": range(1, DEPTH + 1), "small": small, "dead": dead,
            **{name: curve.clamp(FLOOR, TOP) for name, curve in curves.items()},
            }, told(init, activation, width, size, small[-1], dead[-1])
