"""A loss of two settings, searched by a grid, at random and by a Gaussian process."""

import math
from functools import lru_cache

import torch

from dlsys_helpers.explorers import Choice, Heatmap, Lines, Points, Slider, explorer

BEST = (0.63, 0.29)                 # where the loss is 0
WIDTH = 0.15                        # of the dip along the first setting
BUDGETS, WEIGHTS, SEEDS = (4, 9, 16, 25), (0, 0.3, 1), (0, 1, 2, 3)
STARTS, CELLS, LOWEST = 4, 40, 1e-4
LENGTHS = (0.1, 0.3, 1.0, 3.0)      # of the process, along each setting
GRID, DICE, PROCESS = METHODS = ("grid", "dice", "Gaussian process")


def loss(x, y, weight):
    """0 to 1 by the first setting, a narrow dip; on top of it `weight` times the second's."""
    dip = 1 - torch.exp(-((x - BEST[0]) / WIDTH) ** 2)
    return (dip + weight * (1 - torch.exp(-((y - BEST[1]) / WIDTH) ** 2))) / (1 + weight)


def lattice(n):
    """The middles of n x n cells (n * n, 2) of the unit square, the first setting fastest."""
    middles = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    return torch.cartesian_prod(middles, middles).flip(1)


def rolled(seed):
    """Random places, as many as the largest budget."""
    return torch.rand(BUDGETS[-1], 2, dtype=torch.float64,
                      generator=torch.Generator().manual_seed(seed))


def kernel(a, b):
    """Squared exponential of places divided by their lengths."""
    return (-((a[:, None] - b) ** 2).sum(2) / 2).exp()


def improvement(x, y, new):
    """Expected improvement at new (M, 2) by the process with the most likely two lengths."""
    z, fits = (y - y.mean()) / y.std(), []
    for lengths in torch.cartesian_prod(*[torch.tensor(LENGTHS, dtype=torch.float64)] * 2):
        root = torch.linalg.cholesky(kernel(x / lengths, x / lengths)
                                     + 1e-6 * torch.eye(len(x), dtype=x.dtype))
        weights = torch.cholesky_solve(z[:, None], root)[:, 0]
        size = z @ weights / len(z)
        likely = -len(z) / 2 * size.log() - root.diagonal().log().sum()
        fits.append((likely.item(), lengths, root, weights, size))
    _, lengths, root, weights, size = max(fits, key=lambda fit: fit[0])
    k = kernel(new / lengths, x / lengths)
    known = torch.linalg.solve_triangular(root, k.T, upper=False).square().sum(0)
    std = (size * (1 - known)).clamp(min=1e-12).sqrt()
    gain = (z.min() - k @ weights) / std
    density = torch.exp(-gain * gain / 2) / math.sqrt(2 * math.pi)
    return std * (gain * torch.special.ndtr(gain) + density)


@lru_cache
def guided(seed, weight):
    """Four runs of random search, then each time the place of largest expected improvement."""
    x, new = rolled(seed)[:STARTS], lattice(CELLS)
    while len(x) < BUDGETS[-1]:
        chosen = improvement(x, loss(*x.T, weight), new).argmax()
        x = torch.cat([x, new[chosen][None]])
    return x


def runs(method, weight, budget, seed):
    """The places (budget, 2) of a method's runs, in order."""
    if method == GRID:
        return lattice(math.isqrt(budget))
    return (rolled(seed) if method == DICE else guided(seed, weight))[:budget]


@explorer(
    title="The same runs, spent in three ways",
    controls=[
        Choice("method", "Show", METHODS, GRID),
        Slider("budget", "Runs", BUDGETS, 9),
        Slider("weight", "Weight of the second setting", WEIGHTS, 0),
        Slider("seed", "Seed of the dice", SEEDS, 0),
    ],
    views=[
        Heatmap("z", title="Where the runs are", xlabel="first setting", ylabel="second setting",
                vmin=0, vmax=1, label="loss", xlim=(0, 1), ylim=(0, 1),
                points=Points("x", "y", "best", ("runs", "the best run"),
                              colours=("#4c7be0", "#129065"))),
        Lines("run", {method: method for method in METHODS}, title="Best loss so far",
              xlabel="run", ylabel="loss (log)", ylim=(LOWEST, 1), ylog=True),
    ],
)
def search_surface(method, budget, weight, seed):
    """The runs of one method on the surface, and the best loss so far of all three."""
    places = {name: runs(name, weight, budget, seed) for name in METHODS}
    losses = {name: loss(*where.T, weight) for name, where in places.items()}
    tried = {name: len(where[:, 0].unique()) for name, where in places.items()}
    ends = ", ".join(f"{name} {losses[name].min().item():.2g} ({tried[name]})"
                     for name in METHODS)
    x, y = places[method].T
    sentence = (f"Best loss of {budget} runs, and values of the first setting that were tried: "
                f"{ends}. The map shows the {method}'s runs.")
    return {"z": loss(*lattice(CELLS).T, weight).view(CELLS, CELLS), "x": x, "y": y,
            "best": torch.arange(budget) == losses[method].argmin(), "run": range(1, budget + 1),
            **{name: torch.cummin(losses[name], 0).values.clamp(min=LOWEST) for name in METHODS}
            }, sentence
