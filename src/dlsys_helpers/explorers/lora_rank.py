"""What a rank leaves out of an update, and how many parameters it takes."""

import torch

from dlsys_helpers.explorers import Bars, Choice, Heatmap, Slider, explorer

SIDE = 32
DECAYS = {"one direction": 3.0, "a few directions": 0.5, "many directions": 0.1, "random": None}
RANKS = (1, 2, 4, 8, 16, 24, 32)
SHARES = ("error left", "numbers, over those of the matrix")


def update(kind):
    """An update (SIDE, SIDE), float64, of norm 1: singular values fall as exp(-decay k)."""
    g = torch.Generator().manual_seed(0)
    drawn = torch.randn(SIDE, SIDE, generator=g, dtype=torch.float64)
    if DECAYS[kind] is not None:
        u, s, v = torch.linalg.svd(drawn)
        s = torch.exp(-DECAYS[kind] * torch.arange(SIDE, dtype=torch.float64))
        drawn = u @ torch.diag(s) @ v
    return drawn / drawn.norm()


def best(matrix, rank):
    """The matrix of this rank that is nearest to matrix: its first singular directions."""
    u, s, v = torch.linalg.svd(matrix)
    return u[:, :rank] * s[:rank] @ v[:rank]


def numbers(rank):
    """The number of parameters in A and B for a matrix of SIDE x SIDE."""
    return 2 * SIDE * rank


@explorer(
    title="What a rank leaves out",
    controls=[
        Choice("kind", "Update", DECAYS, "a few directions"),
        Slider("rank", "Rank r", RANKS, 4),
    ],
    views=[
        Heatmap("wanted", title="The update", xlabel="input", ylabel="output", vmin=-0.15,
                vmax=0.15, label="change of the weight"),
        Heatmap("given", title="What this rank can give", xlabel="input", ylabel="output",
                vmin=-0.15, vmax=0.15, label="change of the weight"),
        Bars("shares", SHARES, title="Error left and numbers needed, %", limit=200),
    ],
)
def lora_rank(kind, rank):
    """The nearest matrix of a rank to an update, what it leaves out and what it costs."""
    wanted = update(kind)
    given = best(wanted, rank)
    left, cost = float((wanted - given).norm()), numbers(rank) / SIDE ** 2
    saved = "fewer numbers than the matrix" if cost < 1 else (
        "as many numbers as the matrix" if cost == 1 else "more numbers than the matrix")
    return {"shares": [100 * left, 100 * cost], "wanted": wanted, "given": given}, (
        f"Rank {rank} leaves {100 * left:.0f} % of the update's size out and takes "
        f"{numbers(rank)} numbers of {SIDE ** 2}: {saved}.")
