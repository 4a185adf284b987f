"""The perceptron's learning rule, correction by correction, and a point that can be dragged."""

from functools import lru_cache

import torch

from dlsys_helpers.explorers import DIVERGING, Grip, Heatmap, Lines, Points, Slider, explorer

EACH, EDGE, CELLS = 12, 2.0, 48  # points of a class; the plane from -EDGE to EDGE
PASSES = 12  # through all points, unless one of them has no mistake
LEFT_TO_RIGHT, UP = (-1.6, -1.0, -0.4, 0.2, 0.8, 1.4), (-1.2, -0.4, 0.4, 1.2)  # of that point
CORRECTIONS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30)


@lru_cache(maxsize=32)
def points(across, up):
    """Two clouds (2 * EACH + 1, 2) in the order in which they are shown, and their labels.

    Point 0, of class 1, is the one that is dragged.
    """
    g = torch.Generator().manual_seed(4)
    x = torch.randn(2 * EACH + 1, 2, generator=g) * torch.tensor([0.3, 0.6])
    y = torch.arange(2 * EACH + 1) % 2 == 0
    x[:, 0] += y.float() * 1.5 - 0.4 + 0.4 * x[:, 1]  # two slanting clouds, not about the origin
    x[0] = torch.tensor([across, up])
    return x, y.long()


@lru_cache(maxsize=32)
def learn(across, up):
    """The weights (2,) and bias before each correction and after the last, and mistakes by pass."""
    x, y = points(across, up)
    w, b = torch.zeros(2), torch.tensor(0.0)
    states, mistakes = [(w, b)], []
    for _ in range(PASSES):
        wrong = 0
        for row, label in zip(x, y, strict=True):
            error = label - (row @ w + b > 0).float()
            if error != 0:
                w, b, wrong = w + error * row, b + error, wrong + 1
                states.append((w, b))
        mistakes.append(wrong)
    return states, mistakes


def after(made, total):
    """After which corrections the line is shown, as the beginning of a sentence."""
    if made == 0:
        return "Before the first correction"
    return f"After all {total} corrections" if made == total else (
        f"After {made} of {total} corrections")


@explorer(
    title="A perceptron corrects its line",
    controls=[
        Slider("corrections", "Corrections so far", CORRECTIONS, 3),
        Slider("across", "The point you drag: left to right", LEFT_TO_RIGHT, 0.8),
        Slider("up", "The point you drag: up", UP, 0.4),
    ],
    views=[
        Heatmap("side", title="On which side the perceptron says yes", xlabel="first input",
                ylabel="second input", vmin=-1, vmax=1, label="no ... yes", ramp=DIVERGING,
                xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE),
                points=Points("x1", "x2", "y", ("should be no", "should be yes")),
                grips=[Grip("across", x=float), Grip("up", y=float)]),
        Lines("pass", {"mistakes": "mistakes"}, title="Mistakes in each pass",
              xlabel="pass through all points", ylabel="mistakes", xlim=(1, PASSES), ylim=(0, 8)),
    ],
)
def perceptron(corrections, across, up):
    """The line after some corrections, the points, and the mistakes of every pass."""
    states, mistakes = learn(across, up)
    made = min(corrections, len(states) - 1)
    (w, b), (x, y) = states[made], points(across, up)
    middles = (torch.arange(CELLS) + 0.5) / CELLS * 2 * EDGE - EDGE
    grid = torch.cartesian_prod(middles, middles).flip(1)  # row = second input, column = first
    # The distance to the line in cells, so that the line itself is a soft edge one cell wide.
    side = (grid @ w + b) / w.norm().clamp(min=1e-6) * CELLS / (2 * EDGE)
    right = int(((x @ w + b > 0) == y.bool()).sum())
    quiet = next((n for n, wrong in enumerate(mistakes, 1) if wrong == 0), 0)
    sentence = f"{after(made, len(states) - 1)}, {right} of {len(x)} points are on their side. "
    if not quiet:
        sentence += f"The perceptron makes mistakes in all {PASSES} passes."
    elif made < len(states) - 1:
        sentence += f"Pass {quiet} will be the first without a mistake."
    else:
        sentence += f"Pass {quiet} makes no mistake, so the line stays where it is."
    return {"side": side.view(CELLS, CELLS).clamp(-1, 1), "x1": x[:, 0], "x2": x[:, 1],
            "y": y.byte(), "pass": range(1, PASSES + 1), "mistakes": mistakes}, sentence
