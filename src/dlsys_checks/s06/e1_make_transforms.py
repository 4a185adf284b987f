"""Exercise 06.1, `make_transforms`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_like, expect_parts

ex = exercise("06.1", "make_transforms", seen=("setups", "calls"))

ex.promise("pair", "(train, evaluate): two functions of a batch x (N, 1, H, W) float32.",
           says=("number of functions", "evaluate's answer", "train's answer"))
ex.promise("scale", "Both subtract mean and divide by std,",
           says=("evaluate's answer", "train's answer"))
ex.promise("left alone", "and leave x and its shape as they are.",
           says=("changed x", "shape of"))
ex.promise("fixed", "evaluate does no more than that and draws no random number.",
           says=("evaluate's answer", "random numbers"))
ex.promise("crop", "train first surrounds each image with pad zeros on every side and cuts H by W "
           "pixels out of it:", says=("train's answer",))
ex.promise("own place", "at a place drawn anew for each image of each call, every place with equal "
           "chance.",
           says=("share of images",))
ex.promise("example", "Example: with pad 0 both functions give the same numbers.",
           cases=("the example",))


@ex.cases
def cases(g):
    def number(low, high):
        return int(torch.randint(low, high, (), generator=g))

    def setup(pad):
        return {"pad": pad, "mean": 0.2 + 0.3 * float(torch.rand((), generator=g)),
                "std": 0.2 + 0.5 * float(torch.rand((), generator=g))}

    def batch(rows, height, width):
        # Each image has brightness of its own in every pixel, so that it betrays its place.
        return 0.1 + 0.9 * torch.rand(rows, 1, height, width, generator=g)

    def one(name, pad, *shapes):
        return name, {"setups": [setup(pad)], "calls": [[0, batch(*s)] for s in shapes]}

    pair = [setup(1), setup(2)]
    return [one("square images", 1, (900, 6, 6)), one("wide images", 1, (900, 4, number(6, 9))),
            one("two pixels", 2, (2500, 5, 5)), one("one image", 1, (1, 7, 6)),
            one("a batch of another size after the first", 1, (900, 5, 7), (950, 6, 4)),
            ("two pairs in turn", {"setups": pair, "calls": [
                [0, batch(900, 5, 5)], [1, batch(2500, 5, 4)], [0, batch(900, 4, 5)]]}),
            one("the example", 0, (number(3, 9), 5, 6))]


@ex.act
def act(fn, setups, calls):
    pairs = [fn(s["pad"], s["mean"], s["std"]) for s in setups]
    found = {"functions": [len(pair) for pair in pairs], "train": [], "evaluate": [],
             "changed": 0, "draws": 0}
    for which, x in calls:
        train, evaluate = pairs[which][:2]
        given = x.clone()
        found["train"].append(train(given))
        state = torch.get_rng_state()
        found["evaluate"].append(evaluate(given))
        found["draws"] += int((torch.get_rng_state() != state).any())
        found["changed"] += int((given != x).any())
    return found


def windows(x, pad):
    """All cut-outs of the padded images: (places, N, 1, H, W)."""
    height, width = x.shape[-2:]
    wide = F.pad(x, (pad,) * 4)
    return torch.stack([wide[..., i:i + height, j:j + width]
                        for i in range(2 * pad + 1) for j in range(2 * pad + 1)])


def expect_places(place, places):
    """Each place has its share of images, within five standard deviations."""
    n = len(place)
    share = 1 / places
    margin = 5 * (share * (1 - share) / n) ** 0.5
    for k, count in enumerate(torch.bincount(place, minlength=places).tolist()):
        if abs(count / n - share) > margin:
            raise Broken(f"share of images at place {k} of {places}", count / n,
                         f"{share:.3g}, give or take {margin:.2g}",
                         "Each image draws for itself, row and column apart.")


@ex.law
def law(out, setups, calls):
    expect_parts(out, "functions", "train", "evaluate", "changed", "draws")
    expect_equal("number of functions", out["functions"], [2] * len(setups))
    for (which, x), trained, scored in zip(calls, out["train"], out["evaluate"], strict=True):
        pad, mean, std = (setups[which][k] for k in ("pad", "mean", "std"))
        expect_close("evaluate's answer", scored, ((x.double() - mean) / std).float(), rtol=1e-5,
                     atol=1e-5, look="It subtracts mean and divides by std, nothing else.")
        expect_like("train's answer", trained, x)
        wanted = (windows(x.double(), pad) - mean) / std
        off = (wanted - trained.double()).abs().flatten(2).amax(2)
        nearest, place = off.nan_to_num(nan=9.0).min(0)
        row = int(nearest.argmax())
        expect_close("train's answer", trained[row], wanted[place[row], row].float(), rtol=1e-5,
                     atol=1e-5, look="Zeros around the image, a cut, then mean and std.")
        if len(x) > 100:
            expect_places(place, len(wanted))
    expect_equal("calls that changed x", out["changed"], 0, "Work on a copy.")
    expect_equal("calls of evaluate that drew random numbers", out["draws"], 0,
                 "Nothing in it is random, seeded or not.")


# ---- right by another route

@ex.right("the lesson's pipelines, image by image")
def by_compose(pad, mean, std):
    from torchvision.transforms import v2

    def train(x):
        whole = v2.Compose([v2.RandomCrop(tuple(x.shape[2:]), padding=pad),
                            v2.Normalize([mean], [std])])
        return torch.stack([whole(image) for image in x])
    return train, lambda x: (x - mean) / std


@ex.right("slices of the padded batch")
def by_slices(pad, mean, std):
    def train(x):
        h, w = x.shape[-2:]
        wide = F.pad(x, (pad, pad, pad, pad))
        cut = [wide[n, :, i:i + h, j:j + w] for n, (i, j) in enumerate(
            torch.randint(2 * pad + 1, (len(x), 2)).tolist())]
        return (torch.stack(cut) - mean) / std
    return train, lambda x: x.sub(mean).div(std)


@ex.right("a table of all cut-outs")
def by_unfold(pad, mean, std):
    def train(x):
        wide = F.pad(x, (pad,) * 4)
        cuts = wide.unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)
        n = torch.arange(len(x))
        i, j = torch.randint(cuts.shape[2], (2, len(x)))
        return (cuts[n, :, i, j] - mean) / std
    return train, lambda x: (x - mean) * (1 / std)


@ex.right("normalised first, padded with what zero becomes")
def by_padding(pad, mean, std):
    def evaluate(x):
        return (x - mean) / std

    def train(x):
        wide = F.pad(evaluate(x), (pad,) * 4, value=-mean / std)
        rows = torch.randint(2 * pad + 1, (len(x), 1)) + torch.arange(x.shape[2])
        columns = torch.randint(2 * pad + 1, (len(x), 1)) + torch.arange(x.shape[3])
        n = torch.arange(len(x))[:, None, None]
        return wide[n, 0, rows[:, :, None], columns[:, None, :]][:, None]
    return [train, evaluate]


# ---- wrong, by name

def pair(pad, mean, std, *, places=None, scale=None, value=0.0, after=False):
    """The right pair with the mistakes as options; places: (N, 2) offsets for a batch of N."""
    places = places or (lambda n: torch.randint(2 * pad + 1, (n, 2)))
    scale = scale or (lambda x: (x - mean) / std)

    def train(x):
        h, w = x.shape[-2:]
        wide = F.pad(scale(x) if after else x, (pad,) * 4, value=value)
        cut = torch.stack([wide[n, :, i:i + h, j:j + w]
                           for n, (i, j) in enumerate(places(len(x)).tolist())])
        return cut if after else scale(cut)
    return train, scale


@ex.wrong("one place for the whole batch", says="share of images", breaks="own place")
def one_place(pad, mean, std):
    return pair(pad, mean, std,
                places=lambda n: torch.randint(2 * pad + 1, (1, 2)).expand(n, 2))


@ex.wrong("the same step down as to the right", says="share of images", breaks="own place")
def diagonal(pad, mean, std):
    return pair(pad, mean, std,
                places=lambda n: torch.randint(2 * pad + 1, (n, 1)).expand(n, 2))


@ex.wrong("the last place never drawn", says="share of images", breaks="own place")
def one_short(pad, mean, std):
    return pair(pad, mean, std, places=lambda n: torch.randint(max(1, 2 * pad), (n, 2)))


@ex.wrong("no shift at all, the middle cut out", says="share of images", breaks="own place")
def middle(pad, mean, std):
    return pair(pad, mean, std, places=lambda n: torch.full((n, 2), pad))


@ex.wrong("the training pipeline for both, seeded", says="evaluate's answer", breaks="fixed")
def seeded(pad, mean, std):
    train, _ = pair(pad, mean, std)

    def evaluate(x):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return train(x)
    return train, evaluate


@ex.wrong("the training pipeline for both", says="evaluate's answer", breaks="fixed")
def shared(pad, mean, std):
    train, _ = pair(pad, mean, std)
    return train, train


@ex.wrong("a seed set and a draw thrown away in evaluate", says="random numbers", breaks="fixed")
def draws(pad, mean, std):
    train, scale = pair(pad, mean, std)

    def evaluate(x):
        torch.rand(1)
        return scale(x)
    return train, evaluate


@ex.wrong("zeros put around the normalised image", says="train's answer", breaks="crop")
def padded_late(pad, mean, std):
    return pair(pad, mean, std, after=True)


@ex.wrong("the edge repeated instead of zeros", says="train's answer", breaks="crop")
def edges(pad, mean, std):
    def train(x):
        wide = F.pad(x, (pad,) * 4, mode="replicate")
        cuts = wide.unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)
        i, j = torch.randint(2 * pad + 1, (2, len(x)))
        return (cuts[torch.arange(len(x)), :, i, j] - mean) / std
    return train, lambda x: (x - mean) / std


@ex.wrong("multiplied by std", says="evaluate's answer", breaks=("scale", "pair", "fixed"))
def multiplies(pad, mean, std):
    return pair(pad, mean, std, scale=lambda x: (x - mean) * std)


@ex.wrong("train without mean and std", says="train's answer", breaks="scale")
def train_raw(pad, mean, std):
    return pair(pad, 0.0, 1.0)[0], lambda x: (x - mean) / std


@ex.wrong("the two in the other order", says="evaluate's answer",
          breaks=("pair", "fixed"))
def swapped(pad, mean, std):
    return pair(pad, mean, std)[::-1]


@ex.wrong("a third function on top", says="number of functions", breaks="pair")
def three(pad, mean, std):
    train, evaluate = pair(pad, mean, std)
    return train, evaluate, evaluate


@ex.wrong("x normalised in place", says="changed x", breaks="left alone")
def in_place(pad, mean, std):
    train, scale = pair(pad, mean, std)

    def evaluate(x):
        y = scale(x)
        x.sub_(mean)
        return y
    return train, evaluate


@ex.wrong("train that shifts although pad is 0", says="train's answer", breaks="example")
def never_still(pad, mean, std):
    train, evaluate = pair(pad, mean, std)
    return (lambda x: train(x) if pad else evaluate(x.roll(1, -1))), evaluate


ex.equivalent("crop = v2.RandomCrop(x.shape[-2:], padding=pad) -> "
              "crop = v2.RandomCrop(x.shape[2:], padding=pad)", "x has four axes")
