"""Activation functions, their derivatives, and what a layer of units does with them."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.explorers import Bars, Choice, Lines, Slider, explorer

FUNCTIONS = {"ReLU": F.relu, "leaky ReLU": partial(F.leaky_relu, negative_slope=0.01),
             "GELU": F.gelu, "SiLU": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
INITS = {"PyTorch default": lambda w, g: nn.init.kaiming_uniform_(w, a=5**0.5, generator=g),
         "Xavier": lambda w, g: nn.init.xavier_normal_(w, generator=g),
         "He": lambda w, g: nn.init.kaiming_normal_(w, nonlinearity="relu", generator=g)}
N_INPUTS, N_UNITS = 512, 128
SATURATED = 0.05  # a derivative smaller than this passes under 5 % of the gradient on
REACH = 8  # the curves go from -REACH to REACH


def derivative(f, x):
    """df/dx at every element of x, by autograd; same shape and dtype as x."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x)[0]


def preactivations(init, bias, scale):
    """Pre-activations (N_INPUTS, N_UNITS) of a fresh layer fed with scale * N(0, 1)."""
    g = torch.Generator().manual_seed(0)
    x = scale * torch.randn(N_INPUTS, N_UNITS, generator=g)
    weight = INITS[init](torch.empty(N_UNITS, N_UNITS), g)
    return F.linear(x, weight, torch.full((N_UNITS,), float(bias)))


def signed(number):
    """The number with one decimal and a real minus sign, never as minus zero."""
    return f"{number:z.1f}".replace("-", "\N{MINUS SIGN}")


@explorer(
    title="Activations: value, derivative, and how many units still learn",
    controls=[
        Choice("function", "Function", FUNCTIONS, "ReLU"),
        Choice("init", "Weights start as", INITS, "PyTorch default"),
        Slider("bias", "Bias of every unit", [-5, -4, -3, -2, -1, 0, 1, 2], 0),
        Slider("scale", "Scale of the inputs", [0.1, 0.3, 1, 3, 10], 1),
    ],
    views=[
        Lines("x", {"value": "value", "slope": "derivative"}, title="The function",
              xlabel="pre-activation", ylabel="f and its derivative",
              xlim=(-REACH, REACH), ylim=(-1.25, 3)),
        Lines("x_bin", {"share": "share"}, title="Where the layer's pre-activations fall",
              xlabel="pre-activation", ylabel="share of all (%)", xlim=(-REACH, REACH), step=True),
        Bars("shares", ["units dead: derivative 0 on every input",
                        f"derivatives smaller than {SATURATED} in size"],
             title=f"{N_UNITS} units, {N_INPUTS} inputs", limit=100, unit=" %"),
    ],
)
def activations(function, init, bias, scale):
    """The function and its derivative, and the state of a fresh layer of units."""
    f = FUNCTIONS[function]
    x = torch.linspace(-REACH, REACH, 161)
    z = preactivations(init, bias, scale)
    slope = derivative(f, z)
    dead = (slope == 0).all(0).float().mean() * 100
    small = (slope.abs() < SATURATED).float().mean() * 100
    counts, edges = torch.histogram(z, 64, range=(-REACH, REACH))  # leaves out values beyond
    share = torch.cat([counts, counts[-1:]]) / z.numel() * 100
    sentence = (f"{function}: {dead:.0f} % of the units are dead, {small:.0f} % of the derivatives "
                f"are smaller than {SATURATED}. Pre-activations: mean {signed(z.mean())}, "
                f"standard deviation {z.std():.2f}.")
    return {"x": x, "value": f(x), "slope": derivative(f, x), "x_bin": edges,
            "share": share, "shares": torch.stack([dead, small])}, sentence
