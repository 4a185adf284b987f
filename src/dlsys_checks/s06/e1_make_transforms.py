"""Exercise 06.1, `make_transforms`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("06.1", "make_transforms", seen=("setups", "calls"))

ex.promise_table("""
pair       | Return (train, evaluate), two functions of a float32 batch x (N, 1, H, W). | number of
             functions; evaluate's answer; train's answer
scale      | Both subtract mean and divide by std. | evaluate's answer; train's answer
left alone | The result has the shape and dtype of x, and x does not change. | changed x; shape of;
             dtype of
fixed      | evaluate does nothing else and draws no random number. | evaluate's answer; random
             numbers
crop       | train first pads each image with pad zeros on every side and crops it back to H by W
             pixels. | train's answer
own place  | At each call, train draws a crop position for each image, without a seed, and every
             position is equally likely. | fraction of images; set a seed
example    | Example: with pad 0, both functions return the same values. | case the example
""")


@ex.cases
def cases(g):
    number = integers(g)

    def setup(pad):
        return {"pad": pad, "mean": 0.2 + 0.3 * float(torch.rand((), generator=g)),
                "std": 0.2 + 0.5 * float(torch.rand((), generator=g))}

    def batch(rows, height, width):
        # Each image has brightness of its own in every pixel, so that it betrays its place.
        return 0.1 + 0.9 * torch.rand(rows, 1, height, width, generator=g)

    def one(name, pad, *shapes):
        return name, {"setups": [setup(pad)], "calls": [[0, batch(*s)] for s in shapes]}

    pair, again = [setup(1), setup(2)], batch(450, 4, 5)
    return [one("square images", 1, (450, 6, 6)), one("wide images", 1, (450, 4, number(6, 9))),
            one("two pixels", 2, (1000, 5, 5)), one("one image", 1, (1, 7, 6)),
            one("a batch of another size after the first", 1, (450, 5, 7), (470, 6, 4)),
            ("two pairs in turn", {"setups": pair, "calls": [
                [0, batch(450, 5, 5)], [1, batch(1000, 5, 4)], [0, batch(450, 4, 5)]]}),
            ("the same images again", {"setups": [pair[0]] * 2, "calls": [
                [0, again], [1, again], [0, again]]}),
            one("many small batches", 1, *[(2, 4, 4)] * 80),
            one("the example", 0, (number(3, 9), 5, 6))]


@ex.act
def act(fn, setups, calls):
    import random

    import numpy

    def generators():
        return (torch.get_rng_state().tolist(), random.getstate(),
                numpy.random.get_state()[1].tolist(), numpy.random.get_state()[2])

    found = {"functions": [], "train": [], "evaluate": [], "changed": 0, "draws": 0}
    pairs = {}
    torch.default_generator.manual_seed(60_116)  # one that no answer sets by chance
    for place, (which, x) in enumerate(calls):
        if which not in pairs:  # made when it is needed: a seed set by the second one shows
            s = setups[which]
            pairs[which] = fn(s["pad"], s["mean"], s["std"])
            found["functions"].append(len(pairs[which]))
        train, evaluate = pairs[which][:2]
        given = x.clone()
        found["train"].append(train(given))
        before = generators() if place < 3 else None
        found["evaluate"].append(evaluate(given))
        found["draws"] += int(place < 3 and generators() != before)
        found["changed"] += int((given != x).any())
    found["seeded"] = int(torch.initial_seed() != 60_116)
    return found


def windows(x, pad):
    """All cut-outs of the padded images: (places, N, 1, H, W)."""
    height, width = x.shape[-2:]
    wide = F.pad(x, (pad,) * 4)
    return torch.stack([wide[..., i:i + height, j:j + width]
                        for i in range(2 * pad + 1) for j in range(2 * pad + 1)])


OWN_PLACE = "At each call, draw a row and a column separately for each image."


def six_deviations(n, places):
    """How far the share of n images at one of these places may be off: six standard deviations."""
    return 6 * (1 / places * (1 - 1 / places) / n) ** 0.5


def expect_share(what, count, n, places):
    """Of n images 1 / places."""
    margin = six_deviations(n, places)
    if abs(count / n - 1 / places) > margin:
        raise Broken(f"fraction of images {what}", count / n,
                     f"{1 / places:.3g}, give or take {margin:.2g}", OWN_PLACE)


def expect_uniform(what, found, places):
    """Each place has its share of the images; all of them count as seen, to tell mistakes apart."""
    shares = (torch.bincount(found.flatten(), minlength=places) / found.numel()).tolist()
    margin = six_deviations(found.numel(), places)
    for k, share in enumerate(shares):
        if abs(share - 1 / places) > margin:
            raise Broken(f"fraction of images {what}at each of {places} positions", shares, None,
                         OWN_PLACE, shown=(f"{share:.4g} at position {k}",
                                           f"{1 / places:.3g}, give or take {margin:.2g}"))


def expect_drawn(table, places):
    """table (calls, N): where each image of each call was cut; where there are enough of them."""
    for lag in range(1, min(3, len(table))):
        same = (table[lag:] == table[:-lag]).flatten()
        if len(same) >= 400:
            later = "one call" if lag == 1 else "two calls"
            expect_share(f"at the same position as {later} before", int(same.sum()),
                         len(same), places)
    if table.numel() >= 400:
        same = (table[:, 1:] == table[:, :-1]).flatten()
        expect_share("at the same position as the previous image", int(same.sum()), len(same),
                     places)
        expect_uniform("", table, places)
    if len(table) >= 80:
        expect_uniform("first in their batch, ", table[:, 0], places)
        expect_uniform("last in their batch, ", table[:, -1], places)


def nearest_place(x, answer, pad, mean, std):
    """All right cut-outs; how far each image of the answer is from the nearest, and which it is."""
    wanted = (windows(x.double(), pad) - mean) / std
    off = (wanted - answer.double()).abs().flatten(2).amax(2)
    return wanted, *off.nan_to_num(nan=9.0).min(0)


def expect_still(x, scored, pad, mean, std):
    """The image as it is, in the middle of the padded one."""
    expect_like("evaluate's answer", scored, x)
    _, off, place = nearest_place(x, scored, pad, mean, std)
    if off.max() < 1e-5 and (place != ((2 * pad + 1) ** 2 - 1) / 2).any():
        raise Broken("evaluate's answer", "images shifted, as train does", "no image shifted",
                     "evaluate only subtracts mean and divides by std.")
    expect_close("evaluate's answer", scored, ((x.double() - mean) / std).float(), rtol=1e-5,
                 atol=1e-5, look="evaluate only subtracts mean and divides by std.")


def place_of(x, trained, pad, mean, std):
    """The place each image was cut at; Broken where there is none."""
    expect_like("train's answer", trained, x)
    wanted, nearest, place = nearest_place(x, trained, pad, mean, std)
    row = int(nearest.argmax())
    expect_close("train's answer", trained[row], wanted[place[row], row].float(), rtol=1e-5,
                 atol=1e-5, look="Pad with zeros, crop, then subtract mean and divide by std.")
    return place


@ex.law
def law(out, setups, calls):
    expect_parts(out, "functions", "train", "evaluate", "changed", "draws", "seeded")
    expect_equal("number of functions", out["functions"], [2] * len(setups))
    for part in ("train", "evaluate"):
        expect_length(f"answers of {part}", out[part], len(calls))
    tables = {}
    for (which, x), trained, scored in zip(calls, out["train"], out["evaluate"], strict=True):
        pad, mean, std = (setups[which][k] for k in ("pad", "mean", "std"))
        expect_still(x, scored, pad, mean, std)
        place = place_of(x, trained, pad, mean, std)
        tables.setdefault((pad, x.shape), []).append(place)
    for (pad, _), places in tables.items():
        if pad:
            expect_drawn(torch.stack(places), (2 * pad + 1) ** 2)
    expect_equal("calls that changed x", out["changed"], 0, "Work on a copy.")
    expect_equal("calls of evaluate that drew random numbers", out["draws"], 0,
                 "evaluate must not use random numbers, seeded or not.")
    expect_equal("runs that set a seed", out["seeded"], 0, "Do not set a seed.")


# ---- wrong, by name

@not_an_answer
def pair(pad, mean, std):
    def train(x):
        h, w = x.shape[-2:]
        wide = F.pad(x, (pad,) * 4, value=0.0)
        offsets = torch.randint(2 * pad + 1, (len(x), 2))
        cut = torch.stack([wide[n, :, i:i + h, j:j + w]
                           for n, (i, j) in enumerate(offsets.tolist())])
        return (cut - mean) / std
    out = train, lambda x: (x - mean) / std
    return out


wrong = ex.edits(pair)
wrong("drawing one position for the whole batch", "own place",
      "torch.randint(2 * pad + 1, (len(x), 2))",
      "torch.randint(2 * pad + 1, (1, 2)).expand(len(x), 2)")
wrong("using one offset for both row and column", "own place",
      "torch.randint(2 * pad + 1, (len(x), 2))",
      "(lambda n: torch.randint(2 * pad + 1, (n, 1)).expand(n, 2))(len(x))")
wrong("never drawing the largest offset", "own place", "2 * pad + 1", "max(1, 2 * pad)")
wrong("always cropping the middle, without a shift", "own place",
      ".randint", ".full", "2 * pad + 1, (len(x), 2)", "(len(x), 2), pad")
wrong("drawing one position for each pair of images", "own place",
      "torch.randint(2 * pad + 1, (len(x), 2))",
      "(lambda n: torch.randint(2 * pad + 1, ((n + 1) // 2, 2)).repeat_interleave(2, "
      "0)[:n])(len(x))")
wrong("using every position once before repeating any", "own place",
      "def train",
      "side = 2 * pad + 1\n    def places(n): deck = torch.cat([torch.randperm(side ** 2) for _ "
      "in range(n // side ** 2 + 1)])[:n]; return torch.stack([deck // side, deck % side], 1)\n  "
      "  def train", "torch.randint(2 * pad + 1, (len(x), 2))", "places(len(x))")
wrong("never moving the first image of a batch", "own place",
      "def train",
      "def places(n): drawn = torch.randint(2 * pad + 1, (n, 2)); drawn[0] = pad; return drawn\n "
      "   def train", "torch.randint(2 * pad + 1, (len(x), 2))", "places(len(x))")
wrong("drawing the positions once, when the two functions are made", "own place",
      "def train", "table = torch.randint(2 * pad + 1, (3000, 2))\n    def train",
      "torch.randint(2 * pad + 1, (len(x), 2))", "table[:len(x)]")
wrong("seeding a generator when the two functions are made", "own place",
      "def train", "own = torch.Generator().manual_seed(0)\n    def train",
      "(len(x), 2)", "(len(x), 2), generator=own")
wrong("seeding a generator in each call", "own place",
      "(len(x), 2)", "(len(x), 2), generator=torch.Generator().manual_seed(0)")
wrong("returning float64", "left alone",
      "return out", "train, scale = out; return train, lambda x: scale(x.double())")
wrong("returning the training pipeline, with a fixed seed, as evaluate", "fixed",
      "return out",
      "train, _ = out\n    def evaluate(x):\n        with torch.random.fork_rng(): "
      "torch.manual_seed(0); return train(x)\n    return train, evaluate")
wrong("returning the training pipeline as evaluate", "fixed",
      "return out", "train, _ = out; return train, train")
wrong("drawing a random number in evaluate without using it", "fixed",
      "return out",
      "train, scale = out\n    def evaluate(x): torch.rand(1); return scale(x)\n    return "
      "train, evaluate")
wrong("padding the normalized image with zeros", "crop",
      "x, (pad,)", "(x - mean) / std, (pad,)", "(cut - mean) / std", "cut")


@ex.wrong("padding with the edge pixels instead of zeros", breaks="crop")
def edges(pad, mean, std):
    def train(x):
        wide = F.pad(x, (pad,) * 4, mode="replicate")
        cuts = wide.unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)
        i, j = torch.randint(2 * pad + 1, (2, len(x)))
        return (cuts[torch.arange(len(x)), :, i, j] - mean) / std
    return train, lambda x: (x - mean) / std


wrong("multiplying by std instead of dividing by it", ("scale", "pair", "fixed"),
      "(cut - mean) / std", "(cut - mean) * std", "(x - mean) / std", "(x - mean) * std")
ex.wrong("leaving mean and std out of train",
         lambda pad, mean, std: (pair(pad, 0.0, 1.0)[0], lambda x: (x - mean) / std),
         breaks="scale")
wrong("returning the two functions in the wrong order", ("pair", "fixed"), "return out",
      "return out[::-1]")
wrong("returning three functions instead of two", "pair",
      "return out", "train, evaluate = out; return train, evaluate, evaluate")
wrong("normalizing x in place", "left alone",
      "return out",
      "train, scale = out\n    def evaluate(x): y = scale(x); x.sub_(mean); return y\n    return "
      "train, evaluate")
wrong("shifting images in train although pad is 0", "example",
      "return out",
      "train, evaluate = out; return (lambda x: train(x) if pad else evaluate(x.roll(1, -1))), "
      "evaluate", says="train's answer")
