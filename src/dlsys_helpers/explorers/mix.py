"""Mixup and CutMix on two pictures, with the label that the mixture earns."""

from functools import lru_cache

import torch
from sklearn.datasets import load_sample_image
from torch.nn import functional as F

from dlsys_helpers.data import digits
from dlsys_helpers.explorers import Bars, Choice, Grip, Heatmap, Slider, explorer

METHODS = ("Mixup", "CutMix")
PATCH, SIDE = 320, 64  # the photographs' square, in pixels, and what it is averaged to
CORNERS = {"china.jpg": (40, 40), "flower.jpg": (60, 160)}  # upper left of the square


def _photograph(name):
    """A square of one of scikit-learn's photographs, grey, (SIDE, SIDE) from 0 to 1."""
    grey = torch.tensor(load_sample_image(name)).double().mean(2) / 255
    top, left = CORNERS[name]
    square = grey[top:top + PATCH, left:left + PATCH]
    return F.avg_pool2d(square[None], PATCH // SIDE)[0]


def _digit(wanted):
    """The first training digit of this class, 8 x 8 from 0 to 1."""
    x, y, *_ = digits()
    return x[y == wanted][0].view(8, 8).double()


PHOTOGRAPHS = "a temple and a flower"
CREDIT = "Photographs: danielbuechele and vultilion, CC BY 2.0."
PAIRS = {PHOTOGRAPHS: lambda: [_photograph(name) for name in CORNERS],
         "a 3 and an 8": lambda: [_digit(3), _digit(8)]}


@lru_cache(maxsize=len(PAIRS))
def pictures(pair):
    """The two pictures of a pair, stacked (2, H, W), float64."""
    return torch.stack(PAIRS[pair]())


def box(size, lam, across, down):
    """CutMix's box (top, bottom, left, right) for 1 - lam of a picture (H, W), clipped to it.

    across and down place the middle, as shares of the width and the height. Source: Yun et al.
    2019, section 3.1; whole pixels as torchvision's transforms.v2.CutMix takes them.
    """
    ends = []
    for length, share in zip(size, (down, across), strict=True):
        middle, half = int(share * (length - 1)), int(0.5 * (1 - lam) ** 0.5 * length)
        ends += [max(middle - half, 0), min(middle + half, length)]
    return ends


def mixture(method, pair, lam, across, down):
    """The mixed picture (H, W) and the first picture's share of the label."""
    first, second = pictures(pair)
    if method == "Mixup":
        return lam * first + (1 - lam) * second, lam
    top, bottom, left, right = box(first.shape, lam, across, down)
    mixed = first.clone()
    mixed[top:bottom, left:right] = second[top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / mixed.numel()


def told(method, pair, lam, across, down, share):
    """The mixture and its label, in words."""
    if method == "Mixup":
        return (f"Mixup, \N{GREEK SMALL LETTER LAMDA} = {lam:g}: every pixel and the label are "
                f"{lam:g} of the first and {1 - lam:.4g} of the second. Mixup has no box to move.")
    size = pictures(pair)[0].shape
    top, bottom, left, right = box(size, lam, across, down)
    asked = 2 * int(0.5 * (1 - lam) ** 0.5 * size[0])
    less = "" if round(share, 3) == lam else f", not {lam:g}"
    return (f"CutMix, \N{GREEK SMALL LETTER LAMDA} = {lam:g}: a box of {asked} x {asked} pixels, "
            f"{bottom - top} x {right - left} of it inside the picture. The first keeps "
            f"{share:.3f} of the pixels, and as much of the label{less}.")


@explorer(
    title="Mixup and CutMix: two pictures, one label",
    controls=[
        Choice("method", "Method", METHODS, "CutMix"),
        Choice("pair", "Pictures", PAIRS, PHOTOGRAPHS),
        Slider("lam", "\N{GREEK SMALL LETTER LAMDA}: what the first shall keep",
               [0, 0.2, 0.4, 0.5, 0.6, 0.8, 1], 0.5),
        Slider("across", "Middle of the box, from the left", [0, 0.25, 0.5, 0.75, 1], 0.5),
        Slider("down", "Middle of the box, from the top", [0, 0.25, 0.5, 0.75, 1], 0.5,
               static=[0, 0.5, 1]),
    ],
    views=[
        Heatmap("mixed", title="What the network sees", xlabel="pixel column", ylabel="pixel row",
                vmin=0, vmax=1, label="brightness", ramp=("#000000", "#ffffff"),
                grips=[Grip("across", x=float, share=True), Grip("down", y=float, share=True)]),
        Bars("label", ["first: share of the label", "second: share of the label",
                       "first: \N{GREEK SMALL LETTER LAMDA} as it was drawn"],
             title="The label", limit=1),
    ],
)
def mix(method, pair, lam, across, down):
    """The mixed picture and both shares of its label."""
    mixed, share = mixture(method, pair, lam, across, down)
    sentence = told(method, pair, lam, across, down, share)
    if pair == PHOTOGRAPHS:
        sentence += f" {CREDIT}"
    return {"mixed": mixed, "label": [share, 1 - share, lam]}, sentence
