"""The paths of five optimizers on a surface of two weights, from torch's own update rules."""

from functools import lru_cache

import torch
from torch import nn

from dlsys_helpers.explorers import Choice, Grip, Heatmap, Lines, Slider, Ways, explorer

STEPS, CELLS = 60, 40
EDGES = (2.0, 4.0, 8.0)         # of the frame: the smallest that holds the paths
FAR = 1e3                       # where a path that overflows is drawn: outside any frame
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
HEAVY = "SGD + momentum"
OPTIMIZERS = {
    "SGD": lambda p, lr, _: torch.optim.SGD(p, lr=lr),
    HEAVY: lambda p, lr, momentum: torch.optim.SGD(p, lr=lr, momentum=momentum),
    "Adam": lambda p, lr, _: torch.optim.Adam(p, lr=lr),
    "AdamW": lambda p, lr, _: torch.optim.AdamW(p, lr=lr, weight_decay=DECAY),
    "Lion": lambda p, lr, _: Lion(p, lr),
}


@lru_cache(maxsize=2048)
def path(optimizer, surface, rate, scale, start=START, momentum=0.9):
    """Places (STEPS + 1, 2) and heights (STEPS + 1,) in float64; it stops where it overflows."""
    w = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    opt = OPTIMIZERS[optimizer]([w], rate, momentum)
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


def race(surface, rate, scale, start, momentum):
    """Places (STEPS + 1, 2) and heights (STEPS + 1,) of each; one that overflowed stays far off."""
    ways, heights_of = {}, {}
    for name in OPTIMIZERS:
        memory = momentum if name == HEAVY else 0.9  # the others ignore it: one cached path
        places, heights = path(name, surface, rate, scale, start, memory)
        lost = STEPS + 1 - len(heights)
        ways[name] = torch.cat([places, places.new_full((lost, 2), FAR)]).clamp(-FAR, FAR)
        heights_of[name] = torch.cat([heights, heights.new_full((lost,), LOSS_RANGE[1])]).clamp(
            *LOSS_RANGE)
    return ways, heights_of


def edge_for(ways, step):
    """The smallest edge that holds the paths so far, and the names of those that no edge holds."""
    reach = {name: places[:step + 1].abs().max().item() for name, places in ways.items()}
    outside = [name for name, far in reach.items() if far > EDGES[-1]]
    held = max((far for far in reach.values() if far <= EDGES[-1]), default=EDGES[-1])
    return next(edge for edge in EDGES if held <= edge), outside


@lru_cache
def surface_map(surface, edge):
    """log10 of the loss on CELLS x CELLS places between -edge and edge."""
    middles = (torch.arange(CELLS) + 0.5) / CELLS * 2 * edge - edge
    return SURFACES[surface](middles[None, :], middles[:, None]).log10()


def _asides(momentum, scale, outside):
    """What a reader might miss: controls without effect, and paths that leave the picture."""
    if momentum == 0:
        yield "Without momentum the two SGDs walk the same way."
    if scale != 1:
        yield "Adam, AdamW and Lion hardly notice the factor."
    if outside:
        yield f"Out of the picture: {', '.join(outside)}."


@explorer(
    title="One start, five optimizers",
    controls=[
        Choice("surface", "Surface", SURFACES, "valley"),
        Choice("start", "Start", STARTS, "lower left", static=["lower left", "upper left"]),
        Slider("rate", "Learning rate", [0.003, 0.01, 0.03, 0.1, 0.3], 0.03,
               static=[0.01, 0.03, 0.1, 0.3]),
        Slider("momentum", "Momentum of SGD", [0, 0.5, 0.9, 0.99], 0.9,
               static=[0, 0.9, 0.99]),
        Slider("scale", "Multiply the loss by", [0.01, 0.1, 1, 10, 100], 1, static=[0.1, 1, 10]),
        Slider("step", "Step", [0, 2, 5, 10, 20, 40, STEPS], STEPS, static=[5, 20, STEPS]),
    ],
    views=[
        Heatmap("z", title="The way down", xlabel="first weight", ylabel="second weight",
                vmin=-2, vmax=2.3, label="log10 of the loss", xlim=(-EDGES[0], EDGES[0]),
                ylim=(-EDGES[0], EDGES[0]), frame="frame",
                ways=Ways({name: (f"x {name}", f"y {name}") for name in OPTIMIZERS}, at="last"),
                grips=[Grip("start", x=lambda start: STARTS[start][0],
                            y=lambda start: STARTS[start][1])]),
        Lines("steps", {name: name for name in OPTIMIZERS}, title="Height after each step",
              xlabel="step", ylabel="loss (log)", xlim=(0, STEPS), ylim=LOSS_RANGE, ylog=True,
              mark="last", grips=[Grip("step", x=int)]),
    ],
)
def optimizer_paths(surface, start, rate, momentum, scale, step):
    """Where five optimizers are after `step` steps, and their loss after each step."""
    ways, heights = race(surface, rate, scale, STARTS[start], momentum)
    edge, outside = edge_for(ways, step)
    order = sorted(heights, key=lambda name: heights[name][step])
    lowest = f"{order[0]} is lowest with a loss of {heights[order[0]][step]:.3g}" if step else (
        "all five stand at the start")
    sentence = " ".join([f"After {step} steps at rate {rate:g} {lowest}.",
                         *_asides(momentum, scale, outside)])
    arrays = {f"{axis} {name}": places[:, k] for name, places in ways.items()
              for k, axis in enumerate("xy")}
    return {"z": surface_map(surface, edge), "frame": [-edge, edge, -edge, edge], "last": [step],
            "steps": range(STEPS + 1), **arrays, **heights}, sentence
