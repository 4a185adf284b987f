"""What reaches each layer: gradients and activations by depth, activation and init."""

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.explorers import Choice, Lines, Slider, explorer

WIDTH, ROWS, CLASSES = 64, 128, 10
FLOOR, TOP = 1e-20, 1e6  # one window for all settings; values below are drawn on its edge
ACTIVATIONS = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "ReLU": F.relu, "GELU": F.gelu}
INITS = {"std 0.01": lambda w, g: nn.init.normal_(w, std=0.01, generator=g),
         "PyTorch default": lambda w, g: nn.init.kaiming_uniform_(w, a=5**0.5, generator=g),
         "Xavier": lambda w, g: nn.init.xavier_normal_(w, generator=g),
         "He": lambda w, g: nn.init.kaiming_normal_(w, nonlinearity="relu", generator=g)}
SKIPS = {"plain": 0, "with skip connections": 1}


def weights(init, depth):
    """`depth` square weights and a head (CLASSES, WIDTH), float64, the same at each call."""
    g = torch.Generator().manual_seed(0)
    shapes = [(WIDTH, WIDTH)] * depth + [(CLASSES, WIDTH)]
    return [INITS[init](torch.empty(s, dtype=torch.float64), g).requires_grad_() for s in shapes]


def forward(x, layers, activation, skip):
    """Activations of the input and of every hidden layer, and the logits; biases are zero."""
    seen = [x]
    for weight in layers[:-1]:
        h = seen[-1]
        seen.append(skip * h + ACTIVATIONS[activation](h @ weight.T))
    return seen, seen[-1] @ layers[-1].T


def measure(activation, init, depth, skip):
    """Gradient norm of every weight (depth + 1,) and RMS of input and hidden layers (depth + 1,).

    One batch of N(0, 1) inputs with random labels, mean cross-entropy, a fresh net.
    """
    g = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, WIDTH, generator=g, dtype=torch.float64)
    y = torch.randint(CLASSES, (ROWS,), generator=g)
    layers = weights(init, depth)
    seen, logits = forward(x, layers, activation, skip)
    grads = torch.autograd.grad(F.cross_entropy(logits, y), layers)
    return (torch.stack([grad.norm() for grad in grads]),
            torch.stack([h.detach().square().mean().sqrt() for h in seen]))


@explorer(
    title="Gradient norm by depth, activation and init",
    controls=[
        Choice("activation", "Activation", ACTIVATIONS, "sigmoid"),
        Choice("init", "Weights start as", INITS, "PyTorch default"),
        Slider("depth", "Hidden layers", [2, 5, 10, 20], 10),
        Choice("layers", "Layers", SKIPS, "plain"),
    ],
    views=[
        Lines("layer", {"gradient": "gradient"}, title="Gradient of each layer's weight",
              xlabel="layer, from the input; the last is the head", ylabel="norm (log)", ylog=True,
              ylim=(FLOOR, TOP)),
        Lines("place", {"size": "activations"}, title="Size of the activations",
              xlabel="layer; 0 is the input", ylabel="root mean square (log)", ylog=True,
              ylim=(FLOOR, TOP)),
    ],
)
def gradient_depth(activation, init, depth, layers):
    """Gradient norms and activation sizes of a fresh net, 64 wide."""
    gradient, size = measure(activation, init, depth, SKIPS[layers])
    per_layer = (gradient[0] / gradient[-1]) ** (1 / depth)
    sentence = (f"{activation}, {init}, {layers}: gradient norm {gradient[0]:.1e} in the first "
                f"layer, {gradient[-1]:.1e} in the head, a factor of {per_layer:.2g} per layer. "
                f"The activations end at {size[-1] / size[0]:.1e} times the size of the input.")
    return {"layer": torch.arange(1, depth + 2), "gradient": gradient.clamp(min=FLOOR),
            "place": torch.arange(depth + 1), "size": size.clamp(min=FLOOR)}, sentence
