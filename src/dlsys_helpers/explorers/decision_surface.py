"""The decision surface of a small MLP: what width, depth and the nonlinearity buy."""

from functools import lru_cache
from itertools import pairwise
from math import log

import torch
from sklearn.datasets import make_circles, make_moons
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.explorers import DIVERGING, Choice, Heatmap, Lines, Points, Slider, explorer

N_POINTS, EDGE, CELLS = 160, 1.5, 40  # the plane from -EDGE to EDGE, in CELLS x CELLS
STEPS = (10, 25, 50, 100, 200)
EVERY = 5  # steps between two points of the loss curve
GUESSING = log(2)  # the loss of answering one half for every point
ACTIVATIONS = {"none": nn.Identity, "ReLU": nn.ReLU, "tanh": nn.Tanh}


def _xor():
    g = torch.Generator().manual_seed(0)
    x = torch.rand(N_POINTS, 2, generator=g) * 2.6 - 1.3
    return x, (x[:, 0] * x[:, 1] > 0).long()


def _fitted(points):
    """The points moved and scaled so that the largest coordinate is 1.4, inside the picture."""
    x, y = (torch.as_tensor(a) for a in points)
    x = x - (x.amax(0) + x.amin(0)) / 2
    return (x / x.abs().max() * 1.4).float(), y


DATA = {"XOR quadrants": _xor,
        "circles": lambda: _fitted(make_circles(N_POINTS, noise=0.1, factor=0.45, random_state=0)),
        "moons": lambda: _fitted(make_moons(N_POINTS, noise=0.15, random_state=0))}


def build(activation, width, depth):
    """An MLP 2 -> width (depth times) -> 1 with He weights and zero biases, the same each time."""
    g = torch.Generator().manual_seed(1)
    sizes = [2, *[width] * depth, 1]
    layers = []
    for fan_in, fan_out in pairwise(sizes):
        layer = nn.utils.skip_init(nn.Linear, fan_in, fan_out)
        nn.init.kaiming_normal_(layer.weight, generator=g)
        nn.init.zeros_(layer.bias)
        layers += [layer, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


@lru_cache(maxsize=64)
def train(data, activation, width, depth):
    """Losses of every step, and logits by step: on the grid (CELLS, CELLS) and on the points.

    Full-batch Adam, learning rate 0.05, binary cross-entropy on the logits.
    """
    x, y = DATA[data]()
    middles = (torch.arange(CELLS) + 0.5) / CELLS * 2 * EDGE - EDGE
    grid = torch.cartesian_prod(middles, middles).flip(1)  # row = second input, column = first
    model = build(activation, width, depth)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, fused=True)
    losses, logits_at = [], {}
    for step in range(max(STEPS) + 1):
        logits = model(x).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits, y.float())
        losses.append(loss.item())
        if step in STEPS:
            with torch.no_grad():
                logits_at[step] = model(grid).view(CELLS, CELLS), logits.detach()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, logits_at


@explorer(
    title="Decision surface of an MLP",
    controls=[
        Choice("data", "Points", DATA, "XOR quadrants"),
        Choice("activation", "Activation", ACTIVATIONS, "ReLU"),
        Slider("width", "Units per hidden layer", [2, 3, 4, 8, 16, 32], 8, static=[2, 4, 8]),
        Slider("depth", "Hidden layers", [1, 2, 3], 2, static=[1, 2]),
        Slider("steps", "Training steps", STEPS, 200, static=[10, 50, 200]),
    ],
    views=[
        Heatmap("p", title="Probability of class 1", xlabel="first input", ylabel="second input",
                vmin=0, vmax=1, label="P(class 1)", ramp=DIVERGING, xlim=(-EDGE, EDGE),
                ylim=(-EDGE, EDGE), points=Points("x1", "x2", "y", ("class 0", "class 1"))),
        Lines("step", {"loss": "loss", "guessing": "guessing"}, title="Training loss",
              xlabel="training step", ylabel="cross-entropy (nats, log)", xlim=(0, max(STEPS)),
              ylim=(1e-4, 4), ylog=True),
    ],
)
def decision_surface(data, activation, width, depth, steps):
    """Train the MLP and show P(class 1) over the plane, with the points on it."""
    losses, logits_at = train(data, activation, width, depth)
    on_grid, on_points = logits_at[steps]
    x, y = DATA[data]()
    right = ((on_points > 0) == y.bool()).float().mean() * 100
    shape = "is a straight line" if activation == "none" else "can bend"
    sentence = (f"{data}: {right:.0f} % of {N_POINTS} points on the right side after {steps} "
                f"steps, loss {losses[steps]:.3f}. With activation {activation} the boundary "
                f"{shape}.")
    shown = range(0, steps + 1, EVERY)
    return {"p": on_grid.sigmoid(), "x1": x[:, 0], "x2": x[:, 1], "y": y.byte(), "step": shown,
            "loss": losses[:steps + 1:EVERY], "guessing": [GUESSING] * len(shown)}, sentence
