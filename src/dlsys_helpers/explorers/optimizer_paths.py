"""The path of an optimizer on a surface of two weights, from torch's own update rules."""

import math
from functools import lru_cache

import torch
from torch import nn

from dlsys_helpers.explorers import Choice, Heatmap, Lines, Points, Slider, explorer

STEPS, CELLS = 60, 40
EDGE = 2.0                      # both weights from -EDGE to EDGE
START, GOAL = (-1.6, -1.2), (1.0, 0.5)
STARTS = {"lower left": START, "upper left": (-1.2, 1.7), "lower right": (1.7, -1.5)}
DECAY = 0.5                     # AdamW's, large enough to see its pull towards (0, 0)
LOSS_RANGE = (1e-6, 1e4)


def valley(x, y):
    """A bowl around GOAL, 25 times steeper in y than in x."""
    return 0.5 * ((x - GOAL[0]) ** 2 + 25 * (y - GOAL[1]) ** 2)


def turned(x, y):
    """The same bowl turned by 45 degrees, so that no weight has a slope of its own."""
    u, v = (x - GOAL[0] + y - GOAL[1]) / 2**0.5, (y - GOAL[1] - x + GOAL[0]) / 2**0.5
    return 0.5 * (u**2 + 25 * v**2)


def bend(x, y):
    """A curved valley in the manner of Rosenbrock; its floor is y = x ** 2 - 0.5."""
    return 0.5 * (x - GOAL[0]) ** 2 + 5 * (y - x**2 + GOAL[0] ** 2 - GOAL[1]) ** 2


class Lion(torch.optim.Optimizer):
    """Sign of an interpolated momentum; Chen et al. 2023, algorithm 2, without decay."""

    def __init__(self, params, lr, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), lr = group["betas"], group["lr"]
            for w in group["params"]:
                m = self.state[w].setdefault("m", torch.zeros_like(w))
                w.sub_(lr * (b1 * m + (1 - b1) * w.grad).sign())
                m.mul_(b2).add_(w.grad, alpha=1 - b2)


SURFACES = {"valley": valley, "turned valley": turned, "bend": bend}
OPTIMIZERS = {
    "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "SGD + momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "Adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
    "AdamW": lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=DECAY),
    "Lion": Lion,
}


@lru_cache(maxsize=1024)
def path(optimizer, surface, rate, scale, start=START):
    """Places (STEPS + 1, 2) and heights (STEPS + 1,) in float64; it stops where it overflows."""
    w = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    opt = OPTIMIZERS[optimizer]([w], rate)
    places, heights = [], []
    for _ in range(STEPS + 1):
        height = SURFACES[surface](*w)
        if not height < 1e12:
            break
        places.append(w.detach().clone())
        heights.append(height.item())
        opt.zero_grad()
        (scale * height).backward()
        opt.step()
    return torch.stack(places), torch.tensor(heights, dtype=torch.float64)


def race(surface, rate, scale, start):
    """Heights (STEPS + 1,) of every optimizer; one that overflowed stays at the upper edge."""
    heights = {name: path(name, surface, rate, scale, start)[1] for name in OPTIMIZERS}
    return {name: torch.cat([h, h.new_full((STEPS + 1 - len(h),), LOSS_RANGE[1])]).clamp(
        *LOSS_RANGE) for name, h in heights.items()}


def _where(places, heights):
    if len(heights) <= STEPS:
        return f"the loss overflows after {len(heights)} steps"
    gap = math.dist(places[-1].tolist(), GOAL)
    return f"{gap:.3g} away from the minimum after {STEPS} steps, loss {heights[-1]:.3g}"


def _outside(places):
    return ", outside of the picture" if places[-1].abs().max() > EDGE else ""


@explorer(
    title="One start, five optimizers",
    controls=[
        Choice("optimizer", "Optimizer", OPTIMIZERS, "SGD + momentum"),
        Choice("surface", "Surface", SURFACES, "valley"),
        Choice("start", "Start", STARTS, "lower left", static=["lower left", "upper left"]),
        Slider("rate", "Learning rate", [0.003, 0.01, 0.03, 0.1, 0.3], 0.03,
               static=[0.01, 0.03, 0.1, 0.3]),
        Slider("scale", "Multiply the loss by", [0.01, 0.1, 1, 10, 100], 1, static=[0.1, 1, 10]),
    ],
    views=[
        Heatmap("z", title="The way down", xlabel="first weight", ylabel="second weight",
                vmin=-2, vmax=2.3, label="log10 of the loss", xlim=(-EDGE, EDGE),
                ylim=(-EDGE, EDGE),
                points=Points("x", "y", "last", ("on the way", "last step"),
                              colours=("#3cb8e6", "#0f8a3c"), joined=True)),
        Lines("step", {name: name for name in OPTIMIZERS}, title="All five, height after each step",
              xlabel="step", ylabel="loss (log)", xlim=(0, STEPS), ylim=LOSS_RANGE, ylog=True),
    ],
)
def optimizer_paths(optimizer, surface, start, rate, scale):
    """Where the optimizer goes on the surface, and how high all five stand after each step."""
    middles = (torch.arange(CELLS) + 0.5) / CELLS * 2 * EDGE - EDGE
    z = SURFACES[surface](middles[None, :], middles[:, None]).log10()
    places, heights = path(optimizer, surface, rate, scale, STARTS[start])
    heights_of = race(surface, rate, scale, STARTS[start])
    ahead = min(heights_of, key=lambda name: heights_of[name][-1])
    last = torch.arange(len(heights)) == STEPS
    sentence = (f"{optimizer} at rate {rate:g}, loss times {scale:g}: {_where(places, heights)}"
                f"{_outside(places)}. Lowest after {STEPS} steps: {ahead}.")
    return {"z": z, "x": places[:, 0], "y": places[:, 1], "last": last.byte(),
            "step": range(STEPS + 1), **heights_of}, sentence
