"""Which numbers a norm averages: found by autograd, on a small block."""

import torch
from torch import nn

from dlsys_helpers.explorers import DIVERGING, Bars, Choice, Heatmap, Slider, explorer

N, C, GROUPS = 3, 4, 2
SIZES = {"images (N, C, H, W)": (3, 3), "sequences (N, T, C)": (4,)}  # what follows N and C
EPS = 1e-5
MODES = {"train": True, "eval": False}
GAP, OTHER, SHARED, CHOSEN = range(4)
MARKS = ("#8a93a6", "#d5dae3", "#f8765c", "#6a1c81")  # one colour for each of the four
REACH = 3  # the numbers are drawn from -REACH to REACH
IMAGES, SEQUENCES = (N * C * torch.Size(size).numel() for size in SIZES.values())


def norms(size):
    """Each norm for channels-first blocks (N, C, *size), with weight 1 and bias 0.

    With (T,) places layer norm and RMS norm take one token's channels, as in a transformer.
    """
    whole = (C,) if len(size) == 1 else (C, *size)
    return {"batch": (nn.BatchNorm1d if len(size) == 1 else nn.BatchNorm2d)(C, eps=EPS),
            "layer": nn.LayerNorm(whole, eps=EPS), "group": nn.GroupNorm(GROUPS, C, eps=EPS),
            "instance": nn.GroupNorm(C, C, eps=EPS), "RMS": nn.RMSNorm(whole, eps=EPS)}


def normed(norm, size, training, x):
    """The norm of x (N, C, *size), in float64; sequences go channels last where it wants them."""
    layer = norms(size)[norm].double().train(training)
    last = len(size) == 1 and norm in ("layer", "RMS")
    return layer(x.movedim(1, -1)).movedim(-1, 1) if last else layer(x)


def block(size):
    """Numbers (N, C, *size), float64; each sample and each channel has its own level."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, C, *size, generator=g, dtype=torch.float64) * 0.6
    ends = [torch.linspace(-1, 1, n, dtype=torch.float64) for n in (N, C)]
    return x + (ends[0][:, None] + ends[1]).view(N, C, *[1] * len(size))


def heard(norm, size, training, at):
    """True if a number of the block moves the normed number `at`: its gradient is not 0."""
    x = block(size).requires_grad_()
    return torch.autograd.grad(normed(norm, size, training, x)[at], x)[0] != 0


def page(x, gap):
    """A block as a matrix: a band of rows per sample, a band of columns per channel, gaps between.

    The tokens of a sequence are drawn below each other.
    """
    x = x.reshape(N, C, x.shape[2], -1)
    wide = torch.full((N, C, x.shape[2] + 1, x.shape[3] + 1), gap, dtype=x.dtype)
    wide[:, :, :-1, :-1] = x
    return wide.transpose(1, 2).reshape(N * wide.shape[2], C * wide.shape[3])[:-1, :-1]


def told(norm, mode, numbers, averages):
    """What the norm does with the numbers it averages, and how many averages it takes."""
    if norm == "batch" and mode == "eval":
        return (f"BatchNorm in eval mode averages nothing: it uses the {C} means and variances "
                "stored in training, here still 0 and 1.")
    moments = f"mean {numbers.mean():.2f}, second moment {numbers.square().mean():.2f}, "
    use = ("RMSNorm divides by the root of the second moment and subtracts nothing."
           if norm == "RMS" else f"The second moment less the squared mean is the variance, "
           f"{numbers.var(correction=0):.2f}.")
    sentence = (f"The chosen number is normed with {len(numbers)} numbers, itself included: "
                f"{moments}{averages} such averages for the block. {use}")
    return sentence.replace("-", "\N{MINUS SIGN}")


@explorer(
    title="Which numbers a norm averages",
    controls=[
        Choice("shape", "Block", SIZES, "images (N, C, H, W)"),
        Choice("norm", "Norm", norms((1,)), "batch"),
        Choice("mode", "Mode", MODES, "train"),
        Slider("sample", "Sample of the chosen number", range(N), 1),
        Slider("channel", "Its channel", range(C), 1),
    ],
    views=[
        Heatmap("mask", title="What is averaged", xlabel="channels, side by side",
                ylabel="samples, one below the other", vmin=GAP, vmax=CHOSEN, ramp=MARKS,
                label="1 not used, 2 averaged, 3 chosen"),
        Heatmap("values", title="After the norm", xlabel="channels, side by side",
                ylabel="samples, one below the other", vmin=-REACH, vmax=REACH, ramp=DIVERGING,
                label="normed number"),
        Bars("counts", ["numbers in one average", "averages for the whole block"],
             title=f"The images are {IMAGES} numbers, the sequences {SEQUENCES}", limit=IMAGES),
    ],
)
def norm_axes(shape, norm, mode, sample, channel):
    """Which numbers share the chosen number's average, and the block after the norm."""
    size, training = SIZES[shape], MODES[mode]
    x, at = block(size), (sample, channel, *[1] * len(SIZES[shape]))
    mask = heard(norm, size, training, at)
    stored = norm == "batch" and not training
    counts = [0, 0] if stored else [int(mask.sum()), x.numel() // int(mask.sum())]
    marks = mask.double() + OTHER
    marks[at] = CHOSEN
    return {"mask": page(marks, GAP), "values": page(normed(norm, size, training, x), 0.0),
            "counts": counts}, told(norm, mode, x[mask], counts[1])
