"""Quantization: grids for the first layer of a digit classifier, from bits to flipped digits."""

from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.data import digits
from dlsys_helpers.explorers import Bars, Choice, Grip, Lines, Slider, explorer

WIDTH, STEPS, PIXEL = 32, 150, 60  # PIXEL is bright in many digits
BITS = (2, 3, 4, 6, 8)
SCHEMES = ("symmetric", "affine")
GROUPS = {"matrix": 64 * WIDTH, "row": 64, "group of 16": 16}  # weights that share a grid
CLIPS = tuple(k / 20 for k in range(1, 21))  # ends of the grid, as shares of the weights' ends
OUTLIERS = (1, 2, 4, 8, 16)


@lru_cache(maxsize=1)
def reader():
    """Two float64 layers that classify the digits, trained with one seed: (first, head)."""
    g = torch.Generator().manual_seed(0)
    first, head = (nn.utils.skip_init(nn.Linear, i, o, dtype=torch.float64)
                   for i, o in ((64, WIDTH), (WIDTH, 10)))
    for layer in (first, head):
        nn.init.kaiming_normal_(layer.weight, generator=g)
        nn.init.zeros_(layer.bias)
    x, y, *_ = digits()
    opt = torch.optim.Adam([*first.parameters(), *head.parameters()], lr=0.01, fused=True)
    for _ in range(STEPS):
        loss = F.cross_entropy(head(F.relu(first(x.double()))), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return first.requires_grad_(False), head.requires_grad_(False)


@lru_cache(maxsize=len(OUTLIERS))
def layer(outlier):
    """Weights (WIDTH, 64) and test digits (497, 64), float64: one pixel in other units.

    Its weights are `outlier` times as large and its brightness is divided by `outlier`, so the
    product stays the same.
    """
    w, x = reader()[0].weight.clone(), digits().x_test.double()
    w[:, PIXEL] *= outlier
    x[:, PIXEL] /= outlier
    return w, x


def grid(w, bits, scheme, group, clip):
    """Weights after rounding, and as they would be if the grid continued beyond its ends."""
    parts = w.reshape(-1, group)
    low, high = parts.amin(1, keepdim=True).clamp(max=0), parts.amax(1, keepdim=True).clamp(min=0)
    first, last = 0, 2 ** bits - 1
    if scheme == "symmetric":
        last = 2 ** (bits - 1) - 1
        first, high = -last, torch.maximum(-low, high)
        low = -high
    scale = clip * (high - low) / (last - first)
    zero = (first - clip * low / scale).round()
    codes = (parts / scale).round() + zero
    return tuple((scale * (c - zero)).view_as(w) for c in (codes.clamp(first, last), codes))


@lru_cache(maxsize=512)
def consequences(bits, scheme, shared, clip, outlier):
    """Percent: rounding, clipping and both over the weights; error of the output; digits flipped.

    The two parts of the weights' error add up as squares only where no weight has both.
    """
    (w, x), (first, head) = layer(outlier), reader()
    rounded, endless = grid(w, bits, scheme, GROUPS[shared], clip)
    right = x @ w.T
    out = x @ rounded.T
    beyond = rounded != endless  # clipped: all of its error counts as clipping
    gap = rounded - w
    labels = [head(F.relu(z + first.bias)).argmax(1) for z in (right, out)]
    flipped = (labels[0] != labels[1]).double().mean()
    return tuple(100 * float(v) for v in (
        gap[~beyond].norm() / w.norm(), gap[beyond].norm() / w.norm(), gap.norm() / w.norm(),
        (out - right).norm() / right.norm(), flipped))


def curves(bits, scheme, shared, outlier):
    """The five consequences at every clip: five lists."""
    return [list(c) for c in zip(*(consequences(bits, scheme, shared, clip, outlier)
                                   for clip in CLIPS), strict=True)]


@explorer(
    title="Quantization: from bits to digits that flip",
    controls=[
        Slider("bits", "Bits", BITS, 4, static=(2, 3, 4, 8)),
        Choice("scheme", "Grid", SCHEMES, "symmetric"),
        Choice("shared", "Shared by a", GROUPS, "matrix"),
        Slider("clip", "Ends of the grid, share of the largest weight", CLIPS, 1.0,
               static=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),
        Slider("outlier", "Outlier: one pixel's weights, times", OUTLIERS, 1, static=(1, 4, 16)),
    ],
    views=[
        Lines("clips", {"rounding": "rounding", "clipping": "clipping", "weights": "both",
                        "output": "output of the layer"},
              title="Error at every clip", xlabel="ends of the grid, share of the largest weight",
              ylabel="error over size (%)", xlim=(0, 1), ylim=(0, 110), mark="at",
              grips=[Grip("clip", x=float)]),
        Bars("now", ["error of the weights", "error of the output", "digits that flip"],
             title="At this clip, %", limit=130),
    ],
)
def quantization(bits, scheme, shared, clip, outlier):
    """Error of the weights and of the output, and the digits that are classified differently."""
    rounding, clipping, weights, output, flips = curves(bits, scheme, shared, outlier)
    here = CLIPS.index(clip)
    for_weights, for_output = (CLIPS[e.index(min(e))] for e in (weights, output))
    same = "the same clip" if for_weights == for_output else "another clip"
    return {"clips": CLIPS, "rounding": rounding, "clipping": clipping, "weights": weights,
            "output": output, "at": [clip],
            "now": [weights[here], output[here], flips[here]]}, (
        f"{flips[here]:.1f} % of the digits flip. The weights are off by {weights[here]:.1f} %, "
        f"least at a clip of {for_weights:g}; the output is off by {output[here]:.1f} %, least at "
        f"{for_output:g}: {same}.")
