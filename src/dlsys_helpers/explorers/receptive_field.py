"""The receptive field of a stack of convolutions: by formula, and as the gradient's footprint."""

from functools import lru_cache

import torch
from torch import nn

from dlsys_helpers.explorers import Choice, Heatmap, Lines, Slider, explorer

SIDE, CHANNELS, IMAGES = 65, 8, 4  # pixels of the input; strides of 2 meet its middle, 32
WEIGHTS = ("all equal", "random, ReLU between")


def formula(kernel, stride, dilation, depth):
    """Fields after 0 to `depth` layers: each adds (kernel - 1) * dilation * the strides before."""
    fields, jump = [1], 1
    for _ in range(depth):
        fields.append(fields[-1] + (kernel - 1) * dilation * jump)
        jump *= stride
    return fields


def stack(kernel, stride, dilation, depth, weights):
    """`depth` convolutions in float64, padded so that an odd kernel's output stays centred."""
    g, layers = torch.Generator().manual_seed(0), []
    equal = weights == WEIGHTS[0]
    for k in range(depth):
        # Without torch's own init, which would draw from the lesson's generator.
        conv = nn.utils.skip_init(
            nn.Conv2d, 1 if k == 0 else CHANNELS, CHANNELS, kernel, stride, bias=False,
            padding=dilation * (kernel - 1) // 2, dilation=dilation, dtype=torch.float64)
        if equal:
            nn.init.ones_(conv.weight)
        else:
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu", generator=g)
        layers += [conv] if equal else [conv, nn.ReLU()]
    return nn.Sequential(*layers)


@lru_cache(maxsize=256)
def footprint(kernel, stride, dilation, depth, weights):
    """|gradient| of one output pixel over the input (SIDE, SIDE), its largest value 1.

    The output pixel is the one over the middle of the input; the gradient is summed over inputs.
    """
    x = torch.randn(IMAGES, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1),
                    dtype=torch.float64).requires_grad_()
    out = stack(kernel, stride, dilation, depth, weights)(x)
    middle = (SIDE // 2) // stride**depth
    grad = torch.autograd.grad(out[:, :, middle, middle].sum(), x)[0].abs().sum((0, 1))
    return grad / grad.max().clamp(min=1e-300)


def extent(grad):
    """Pixels from the first to the last column with a gradient that is not 0."""
    columns = (grad > 0).any(0).nonzero()
    return int(columns.max() - columns.min()) + 1


def central(grad):
    """The side of the smallest square around the middle that holds half of the gradient."""
    middle, total = SIDE // 2, grad.sum()
    return next(2 * r + 1 for r in range(middle + 1) if grad[
        middle - r:middle + r + 1, middle - r:middle + r + 1].sum() >= total / 2)


@explorer(
    title="Receptive field: the formula, and what the gradient reaches",
    controls=[
        Slider("kernel", "Kernel", [1, 3, 5, 7], 3, static=[3, 5]),
        Slider("stride", "Stride of every layer", [1, 2], 1),
        Slider("dilation", "Dilation", [1, 2, 3], 1, static=[1, 2]),
        Slider("depth", "Layers", [1, 2, 3, 4, 5], 3, static=[1, 2, 3, 5]),
        Choice("weights", "Weights", WEIGHTS, WEIGHTS[1]),
    ],
    views=[
        Heatmap("grad", title="Gradient of one output pixel", xlabel="input column",
                ylabel="input row", vmin=0, vmax=1, label="share of the largest"),
        Lines("layer", {"formula": "formula", "measured": "measured"},
              title="Field after each layer", xlabel="layers",
              ylabel="pixels across (log)", ylim=(1, 512), ylog=True),
    ],
)
def receptive_field(kernel, stride, dilation, depth, weights):
    """The field by formula and by gradient; where most of the gradient lies."""
    shape = (kernel, stride, dilation)
    fields = formula(*shape, depth)
    grads = [footprint(*shape, k, weights) for k in range(1, depth + 1)]
    measured = [1, *map(extent, grads)]
    beyond = f", cut off by the image of {SIDE}" if fields[-1] > SIDE else ""
    side = central(grads[-1])
    holes = ("Dilation leaves columns between that it never reads. "
             if (grads[-1][SIDE // 2] == 0)[SIDE // 2:SIDE // 2 + measured[-1] // 2].any() else "")
    sentence = (f"{depth} layer{'s' * (depth > 1)} of kernel {kernel}, stride {stride}, dilation "
                f"{dilation}: the formula gives {fields[-1]} pixels, the gradient reaches "
                f"{measured[-1]}{beyond}. {holes}Half of it lies in the central "
                f"{side} \N{MULTIPLICATION SIGN} {side} pixels.")
    return {"grad": grads[-1], "layer": range(depth + 1), "formula": fields,
            "measured": measured}, sentence
