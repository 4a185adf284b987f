"""A kernel slides over a digit: the window, its nine products, their sum, and the map so far."""

from functools import lru_cache

import torch
from torch.nn import functional as F

from dlsys_helpers.data import digits
from dlsys_helpers.explorers import DIVERGING, Choice, Columns, Grip, Heatmap, Slider, explorer

INK = 16  # the data have seventeen levels, 0 to 16; as whole numbers they stay short
ROW = 3  # of the training digits, the lesson's seven
SIDE, WINDOW = 10, 3  # of the picture with its rim of zeros, and of the kernel
PLACES = SIDE - WINDOW + 1
REACH, NOT_YET = 48, -64  # outputs are coloured from -REACH to REACH, a step below is no output
GAP = -4 / 3  # a step below -1, for the columns between window, kernel and products

KERNELS = {
    "lower edges": [[1, 1, 1], [0, 0, 0], [-1, -1, -1]],
    "right edges": [[1, 0, -1], [1, 0, -1], [1, 0, -1]],
    "blur": [[0, 0.2, 0], [0.2, 0.2, 0.2], [0, 0.2, 0]],
    "sharpen": [[0, -0.25, 0], [-0.25, 2, -0.25], [0, -0.25, 0]],
}
SHIFTS = {"as it is": (0, 0), "one pixel right": (0, 1), "one pixel down": (1, 0)}


def shades(none, full):
    """A colour for each level of ink, from none to INK."""
    ends = [[int(colour[i:i + 2], 16) for i in (1, 3, 5)] for colour in (none, full)]
    return tuple("#" + "".join(f"{round(a + (b - a) * level / INK):02x}"
                               for a, b in zip(*ends, strict=True)) for level in range(INK + 1))


OUTSIDE, INSIDE = shades("#ffffff", "#1d2433"), shades("#ffd9ad", "#7a3300")
# The window is tinted: its ink is drawn TINT higher. With 52 colours each level is one of the 256
# that travel to the front end.
BETWEEN = 9
TINT = INK + 1 + 2 * BETWEEN
SHADES = OUTSIDE + OUTSIDE[-1:] * BETWEEN + INSIDE[:1] * BETWEEN + INSIDE
UNLIKE = ("#8a93a6", *DIVERGING)  # below the two hues, one colour for what is not a number


def kernel_of(name):
    """The kernel (WINDOW, WINDOW), float64."""
    return torch.tensor(KERNELS[name], dtype=torch.float64)


@lru_cache(maxsize=len(SHIFTS))
def picture(shift):
    """The digit on its rim (SIDE, SIDE), moved down and right; its ink never leaves the picture."""
    down, right = SHIFTS[shift]
    digit = (digits()[0][ROW].view(8, 8) * INK).double()
    return F.pad(digit, (1 + right, 1 - right, 1 + down, 1 - down))


def map_of(kernel, shift):
    """All outputs (PLACES, PLACES), by torch's convolution."""
    return F.conv2d(picture(shift)[None, None], kernel_of(kernel)[None, None])[0, 0]


def moved_along(kernel, shift):
    """The largest gap between the shifted picture's map and the old map, shifted as far."""
    down, right = SHIFTS[shift]
    now, before = map_of(kernel, shift), map_of(kernel, "as it is")
    return (now[down:, right:] - before[:PLACES - down, :PLACES - right]).abs().max().item()


def side_by_side(seen, weights):
    """Window, kernel and products with gaps between, (WINDOW, 3 * WINDOW + 2), each as a share of
    the largest number that it can hold.
    """
    gap, most = torch.full((WINDOW, 1), GAP, dtype=seen.dtype), weights.abs().max()
    return torch.cat([seen / INK, gap, weights / most, gap, seen * weights / INK / most], 1)


def written(seen, weights):
    """The sum with its products, as the beginning of a sentence; zero weights are left out."""
    terms = [f"{pixel:g} \N{MULTIPLICATION SIGN} " + (f"{weight:g}" if weight > 0
                                                      else f"({weight:g})")
             for pixel, weight in zip(seen.flatten().tolist(), weights.flatten().tolist(),
                                      strict=True) if weight]
    return " + ".join(terms)


def told(kernel, shift, row, column, seen, out):
    """The sum in the window, how full the map is, and what a shift did to it."""
    reached = row * PLACES + column + 1
    full = "The map is complete." if reached == PLACES**2 else (
        f"Outputs reached: {reached} of {PLACES**2}.")
    products = written(seen, kernel_of(kernel))
    sentence = f"{products} = {out + 0:.4g}, and so says torch's conv2d. {full}"
    if shift != "as it is":
        sentence += (f" With the picture moved {shift}, the new map differs from the old one, "
                     f"moved {shift}, by {moved_along(kernel, shift):.4g} at most.")
    return sentence.replace("-", "\N{MINUS SIGN}")


@explorer(
    title="A kernel slides over a picture",
    controls=[
        Choice("kernel", "Kernel", KERNELS, "lower edges"),
        Choice("shift", "Picture", SHIFTS, "as it is"),
        Slider("row", "First row of the window", range(PLACES), 2),
        Slider("column", "First column of the window", range(PLACES), 4),
    ],
    views=[
        Heatmap("pixels", title="The picture and the window", xlabel="pixel column",
                ylabel="pixel row", vmin=0, vmax=TINT + INK, ramp=SHADES,
                label=f"ink; in the window, {TINT} more",
                grips=[Grip("column", x=lambda at: at + 1), Grip("row", y=lambda at: at + 1)]),
        Heatmap("so_far", title="The map so far", xlabel="output column", ylabel="output row",
                vmin=NOT_YET, vmax=REACH, ramp=UNLIKE, label="output; grey: not yet",
                grips=[Grip("column", x=float), Grip("row", y=float)]),
        Heatmap("shares", title="Window, kernel and products", vmin=GAP, vmax=1, ramp=UNLIKE,
                xlabel="pixels | kernel | products", ylabel="row",
                label="share of the largest"),
        Columns("cell", {"seen": "pixel", "product": "pixel times weight"},
                title="The nine products, row by row", xlabel="cell of the window",
                ylabel="ink", ylim=(-20, 40)),
    ],
)
def sliding_kernel(kernel, shift, row, column):
    """The picture with the window, the products in it, and the outputs up to there."""
    weights, outputs = kernel_of(kernel), map_of(kernel, shift)
    pixels = picture(shift).clone()
    window = pixels[row:row + WINDOW, column:column + WINDOW]
    seen = window.clone()
    window += TINT
    waiting = torch.arange(PLACES**2).view(PLACES, PLACES) > row * PLACES + column
    sentence = told(kernel, shift, row, column, seen, outputs[row, column].item())
    return {"pixels": pixels, "so_far": outputs.masked_fill(waiting, NOT_YET),
            "shares": side_by_side(seen, weights), "cell": range(1, WINDOW**2 + 1),
            "seen": seen.flatten(), "product": (seen * weights).flatten()}, sentence
