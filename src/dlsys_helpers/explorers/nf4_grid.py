"""Sixteen levels for weights: NF4's quantiles of N(0, 1), and levels at even distances."""

import torch

from dlsys_helpers.explorers import Bars, Choice, Heatmap, Slider, explorer

EDGE = 0.9677083  # the outermost quantile of NF4; the next one, 1, would be infinite
WEIGHTS = ("normal", "uniform", "one outlier in 256")
BLOCKS = (16, 32, 64, 128, 256)
COUNT = 4096
LEVELS = [f"level {k}" for k in range(1, 17)]
GRIDS = ("NF4", "even")


def nf4():
    """NF4's 16 levels (16,), float64, from -1 to 1: quantiles of N(0, 1), and zero."""
    def quantiles(n):
        p = torch.linspace(EDGE, 0.5, n + 1, dtype=torch.float64)[:-1]
        return 2 ** 0.5 * torch.erfinv(2 * p - 1)
    levels = torch.cat([quantiles(8), -quantiles(7), torch.zeros(1, dtype=torch.float64)])
    return (levels / levels.max()).sort().values


def even():
    """16 levels (16,) at even distances from -1 to 1, float64; zero is none of them."""
    return torch.linspace(-1, 1, 16, dtype=torch.float64)


def weights(kind, spread):
    """COUNT weights, float64: spread times a fixed draw; an outlier is eight times as large."""
    g = torch.Generator().manual_seed(0)
    if kind == "uniform":
        return (torch.rand(COUNT, generator=g, dtype=torch.float64) * 2 - 1) * spread
    drawn = torch.randn(COUNT, generator=g, dtype=torch.float64) * spread
    if kind == "one outlier in 256":
        drawn[::256] = 8 * spread
    return drawn


def nearest(grid, w, block):
    """Number of the level nearest to each weight (COUNT,), and the weights it stands for."""
    blocks = w.view(-1, block)
    scale = blocks.abs().amax(1, keepdim=True)
    index = ((blocks / scale)[..., None] - grid).abs().argmin(-1)
    return index.flatten(), (grid[index] * scale).flatten()


def error(w, rounded):
    """Norm of the error over the norm of the weights."""
    return float((rounded - w).norm() / w.norm())


@explorer(
    title="Sixteen levels for the weights of a block",
    controls=[
        Choice("kind", "Weights", WEIGHTS, "normal"),
        Choice("grid", "Levels", GRIDS, "NF4"),
        Slider("block", "Weights in a block", BLOCKS, 64),
    ],
    views=[
        Bars("used", LEVELS, title="Share of the weights at each level, %", limit=100),
        Bars("errors", ["NF4", "even levels"], title="Error over the size of the weights, %",
             limit=60),
        Heatmap("levels", title="Where the levels lie: 0 NF4, 1 even",
                xlabel="level, from the lowest", ylabel="grid", vmin=-1, vmax=1, label="level"),
    ],
)
def nf4_grid(kind, grid, block):
    """How many weights each of sixteen levels stands for, and the error of both grids."""
    w, grids = weights(kind, 0.02), {"NF4": nf4(), "even": even()}
    index, _ = nearest(grids[grid], w, block)
    used = torch.bincount(index, minlength=16).double() / COUNT * 100
    errors = {name: 100 * error(w, nearest(g, w, block)[1]) for name, g in grids.items()}
    better = min(errors, key=errors.get)
    return {"used": used.tolist(), "errors": list(errors.values()),
            "levels": torch.stack([grids["NF4"], grids["even"]])}, (
        f"Error with NF4 {errors['NF4']:.1f} %, with even levels {errors['even']:.1f} %: "
        f"{better} levels fit these weights better. The level used least stands for "
        f"{used.min():.1f} % of them.")
