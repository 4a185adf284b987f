"""Exercise 06.9, `augmented_pairs`."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch.nn import functional as F

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_equal, expect_like, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("06.9", "augmented_pairs", seen=("images", "masks", "shift", "ignore", "seed"))

ex.promise_table("""
pair     | Mirror and shift each image at random, and its mask in the same way. | is the old one;
           mask of image
mirrored | With probability 1/2, a pair is mirrored left to right. | pairs that are mirrored; is the
           old one
offsets  | Then the pair moves by a number of rows and a number of columns, drawn independently,
           with every number from -shift to shift equally likely. | pairs that move by
own      | Every pair has its own draws. | pairs that are mirrored; pairs that move by
outside  | Pixels that come in from outside get the value 0 in an image and the value of ignore in
           a mask. | is the old one; mask of image
shapes   | images: (N, C, H, W) float32. masks: (N, H, W) int64. | case one pair; three channels; as
           many channels as pairs; taller than wide
shift    | shift: from 0 to min(H, W) - 1. | case no shift; the largest shift
returns  | Returns: The new images and the new masks, of the same shapes and dtypes. | shape of the
           new; dtype of the new; type of the new
drawn    | Draw from torch's global generator and do not set a seed. | draws from torch's generator;
           calls that return the same; calls that set a seed
left     | images and masks are not changed. | values changed
""")

MANY = 2000


@ex.cases
def cases(g):
    def one(name, n, channels, height, width, shift, ignore=255):
        # Every pixel of the first channel has a number of its own, which tells where it came from.
        images = torch.rand(n, channels, height, width, generator=g) + 0.1
        images[:, 0] = 1 + torch.arange(height * width).view(height, width).float()
        return name, {"images": images, "shift": shift, "ignore": ignore,
                      "masks": torch.randint(1, 6, (n, height, width), generator=g),
                      "seed": int(torch.randint(10**6, (), generator=g))}

    return [one("twelve pairs", 12, 1, 6, 7, 2), one("three channels", 6, 3, 5, 8, 1),
            one("one pair", 1, 1, 5, 6, 2), one("as many channels as pairs", 4, 4, 5, 5, 2),
            one("taller than wide", 8, 2, 9, 4, 2), one("no shift", 12, 1, 5, 6, 0),
            one("the largest shift", 30, 1, 4, 6, 3),
            one("an ignore of -100", 10, 1, 5, 6, 2, -100),
            one("many pairs", MANY, 1, 3, 4, 2)]


@ex.act
def act(fn, images, masks, shift, ignore, seed):
    import random

    def two(result):
        """The images and the masks of a result; where it has not two parts, it is the images."""
        whole = isinstance(result, tuple | list) and len(result) == 2
        return tuple(result) if whole else (result, None)
    torch.manual_seed(seed)
    random.seed(seed)
    given = images.clone(), masks.clone()
    before = torch.get_rng_state()
    first = two(fn(*given, shift, ignore))
    drew = bool((torch.get_rng_state() != before).any())
    again = two(fn(images.clone(), masks.clone(), shift, ignore))
    # Of a few pairs, two calls may draw the same.
    same = len(images) >= 1000 and all(isinstance(part, torch.Tensor) for part in (
        *first, *again)) and all(map(torch.equal, first, again))
    changed = sum(int((a != b).sum()) for a, b in zip(given, (images, masks), strict=True))
    return {"images": first[0], "masks": first[1], "drew": drew, "same": same, "changed": changed,
            "seeded": int(torch.initial_seed() != seed)}


def moved(x, turn, down, right, fill):
    """x (..., H, W), mirrored or not, then moved by rows and columns; fill from outside."""
    height, width = x.shape[-2:]
    out = torch.full_like(x, fill)
    for i in range(max(0, down), min(height, height + down)):
        for j in range(max(0, right), min(width, width + right)):
            k = j - right
            out[..., i, j] = x[..., i - down, width - 1 - k if turn else k]
    return out


@ex.law
def law(out, images, masks, shift, ignore, seed):
    expect_parts(out, "images", "masks", "drew", "same", "changed", "seeded")
    new, new_masks = out["images"], out["masks"]
    expect_like("new images", new, images)
    expect_like("new masks", new_masks, masks)
    expect_equal("values changed in the inputs", out["changed"], 0, "Work on copies.")
    expect_equal("draws from torch's generator", out["drew"], True,
                 "The generator's state is the same as before the call.")
    expect_equal("calls that return the same draws", out["same"], False,
                 "Your function sets a seed.")
    expect_equal("calls that set a seed (1 if any does)", out["seeded"], 0,
                 "Leave the generator as it is.")
    found, expected = [None] * len(images), masks.clone()
    steps = range(-shift, shift + 1)
    for drawn in product((False, True), steps, steps):
        same = (moved(images, *drawn, 0) == new).flatten(1).all(1)
        expected[same] = moved(masks, *drawn, ignore)[same]
        for k in same.nonzero()[:, 0].tolist():
            found[k] = drawn
    for k, drawn in enumerate(found):
        if drawn is None:
            raise Broken(f"image {k} is the old one, mirrored or not and moved", False, True,
                         "No draw produces this image: mirrored or not, moved by at most shift, "
                         "with 0 from outside.")
        turn, down, right = drawn
        if not torch.equal(new_masks[k], expected[k]):
            expect_outside(new_masks[k], expected[k], drawn, ignore)
        expect_equal(f"mask of image {k}", new_masks[k], expected[k],
                     f"The image was {'' if turn else 'not '}mirrored, and moved by {down} rows "
                     f"and {right} columns.")
    if len(images) >= MANY:
        expect_counts(found, shift)


def expect_outside(mask, wanted, drawn, ignore):
    """Raise Broken if only the pixels that came in from outside are wrong."""
    inside = moved(torch.zeros_like(mask), *drawn, 1) == 0
    if torch.equal(mask[inside], wanted[inside]):
        raise Broken("mask of image, its pixels from outside", mask[~inside].unique().tolist(),
                     [ignore])


def expect_counts(found, shift):
    """Raise Broken unless each draw comes about as often as it should, within six deviations."""
    n, options = len(found), 2 * shift + 1

    def near(what, got, chance):
        spread = 6 * math.sqrt(n * chance * (1 - chance))
        if not abs(got - n * chance) <= spread:
            raise Broken(what, got, f"{n * chance:.0f} ± {spread:.0f}",
                         f"Of {n} pairs, each with draws of its own.")

    near("pairs that are mirrored", sum(turn for turn, *_ in found), 0.5)
    for place, name in ((1, "rows"), (2, "columns")):
        never = {*range(-shift, shift + 1)} - {drawn[place] for drawn in found}
        if 0 < len(never) < options - 1:  # where all pairs move alike, the counts say more
            raise Broken(f"pairs that move by each number of {name}: numbers that never occur",
                         sorted(never), [])
        for step in range(-shift, shift + 1):
            near(f"pairs that move by {step} {name}",
                 sum(drawn[place] == step for drawn in found), 1 / options)
    near("pairs that move by as many rows as columns",
         sum(down == right for _, down, right in found), 1 / options)


# ---- wrong, by name

@not_an_answer
def made(images, masks, shift, ignore):
    n, _, h, w = images.shape
    turn = torch.rand(n) < 0.5
    down, right = torch.randint(2 * shift + 1, (2, n))
    old = turn, down, right
    wide = F.pad(images, [shift] * 4)
    wide_masks = F.pad(masks, [shift] * 4, value=ignore)
    new, new_masks = [], []
    for k in range(n):
        image = wide[k].flip(-1) if turn[k] else wide[k]
        new.append(image[:, down[k]:down[k] + h, right[k]:right[k] + w])
    turn, down, right = old  # a wrong answer draws again here
    for k in range(n):
        mask = wide_masks[k].flip(-1) if turn[k] else wide_masks[k]
        new_masks.append(mask[down[k]:down[k] + h, right[k]:right[k] + w])
    return torch.stack(new), torch.stack(new_masks)


wrong = ex.edits(made)
TURN, DRAW = "torch.rand(n) < 0.5", "torch.randint(2 * shift + 1, (2, n))"
AGAIN = "turn, down, right = old"
# https://github.com/albumentations-team/albumentations/issues/1196
wrong("drawing new random numbers for the masks",
      "pair", AGAIN, f"turn = {TURN}; down, right = {DRAW}",
      says="mask of image")
wrong("leaving the masks unchanged", "pair", "torch.stack(new_masks)", "masks.clone()",
      says="mask of image")
wrong("mirroring the images but not the masks",
      "pair", AGAIN, "turn = torch.zeros(n)", says="mask of image")
wrong("shifting the images but not the masks",
      "pair", AGAIN, "down = right = torch.full((n,), shift)",
      says="mask of image")
wrong("moving the masks in the opposite direction", "pair", AGAIN,
      "down, right = 2 * shift - down, 2 * shift - right", says="mask of image")
wrong("swapping rows and columns of the masks", "pair", AGAIN, "down, right = right, down",
      says="mask of image")
wrong("mirroring top to bottom instead of left to right",
      ("mirrored", "pair"), "wide[k].flip(-1)", "wide[k].flip(-2)",
      "wide_masks[k].flip(-1)", "wide_masks[k].flip(-2)", says="is the old one")
wrong("mirroring every pair", "mirrored", TURN, "torch.rand(n) < 2")
wrong("mirroring no pair", "mirrored", TURN, "torch.rand(n) < -1")
wrong("mirroring one pair in four", "mirrored", TURN, "torch.rand(n) < 0.25")
wrong("mirroring the whole batch or none of it", "own", TURN, "torch.rand(1).expand(n) < 0.5",
      says="pairs that are mirrored")
wrong("shifting the whole batch by one offset", "own", DRAW,
      "torch.randint(2 * shift + 1, (2, 1)).expand(2, n)", says="pairs that move by")
wrong("shifting each pair by as many rows as columns", "offsets", DRAW,
      "torch.randint(2 * shift + 1, (1, n)).expand(2, n)")
wrong("never drawing the largest offset", "offsets", DRAW,
      "torch.randint(max(1, 2 * shift), (2, n))")
wrong("shifting only down and right", "offsets", DRAW, "torch.randint(shift + 1, (2, n))")
wrong("drawing the offsets from a normal distribution", "offsets", DRAW,
      "(torch.randn(2, n).round().clamp(-shift, shift) + shift).long()")
wrong("filling masks with 0", "outside", "value=ignore", "value=0", says="mask of image")
wrong("always filling masks with 255", "outside", "value=ignore", "value=255", says="mask of image")
wrong("filling images with their edge pixels", "outside", "F.pad(images, [shift] * 4)",
      "F.pad(images, [shift] * 4, mode='replicate')", says="is the old one")
wrong("returning masks as float32", "returns", "torch.stack(new_masks)",
      "torch.stack(new_masks).float()", says="dtype of the new")
wrong("returning one stacked tensor", "returns", "return torch.stack(new), torch.stack(new_masks)",
      "return torch.cat([torch.stack(new), torch.stack(new_masks)[:, None].float()], 1)",
      says="of the new")
wrong("returning lists", "returns", "torch.stack(new), torch.stack(new_masks)", "new, new_masks",
      says="type of the new")
wrong("returning padded images", "returns", "torch.stack(new), ",
      "F.pad(torch.stack(new), [1] * 4), ", says="shape of the new")
wrong("setting a seed", "drawn", "n, _, h, w = images.shape",
      "n, _, h, w = images.shape; torch.manual_seed(0)",
      says="calls that set a seed")
wrong("drawing with Python's random module", "drawn",
      "n, _, h, w = images.shape", "import random; n, _, h, w = images.shape", TURN,
      "torch.tensor([random.random() < 0.5 for _ in range(n)])", DRAW,
      "torch.tensor([[random.randrange(2 * shift + 1) for _ in range(n)] for _ in '12'])",
      says="draws from torch's generator")
wrong("overwriting images and masks with the results",
      "left", "return torch.stack(new), torch.stack(new_masks)",
      "return images.copy_(torch.stack(new)), masks.copy_(torch.stack(new_masks))",
      says="values changed")
