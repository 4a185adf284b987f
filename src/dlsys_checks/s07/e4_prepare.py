"""Exercise 07.4, `prepare`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("07.4", "prepare", seen=("images", "mean", "std", "order"), says="pixels")

ex.promise_table("""
layout     | Prepare images for a pretrained model, as (N, C, H, W) in float32. | pixels; shape of
             the; dtype of the
any size   | Args: images: (N, H, W, C) uint8 in any memory order, brightness 0 to 255. | case one
             channel; a single row; a single column; four channels; many channels; no image; all
             pixels black; stored with channels first; a crop of larger images; one image, expanded
scale      | Scale brightness to the range 0 to 1. | pixels
channels   | Then subtract each channel's mean and divide by its std. | pixels
lists      | mean, std: C floats each, of any size; every std is above 0. | case as many columns as
             channels; four channels; a mean of zero; a tiny std; means outside 0 to 1
left alone | The arguments are unchanged, and a later call changes no earlier result. | inputs after
             the call; changed by the call; after a later call
example    | Example: a single black pixel with mean [0.5] and std [0.25] becomes -2. | case the
             example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, n, h, w, c, dark=256, zero=False, order="as made", std=(0.1, 0.4),
            mean=(0.2, 0.7)):
        def between(low, high):
            return (low + (high - low) * torch.rand(c, generator=g)).tolist()
        return name, {"images": torch.randint(dark, (n, h, w, c), generator=g).to(torch.uint8),
                      "mean": [0.0] * c if zero else between(*mean), "std": between(*std),
                      "order": order}
    return [one("a few images", whole(2, 5), 6, 9, 3), one("one image", 1, 7, 5, 3),
            one("as many columns as channels", 2, whole(4, 8), 3, 3),
            one("one channel", 3, 5, 4, 1), one("four channels", 2, 5, 7, 4),
            one("a single row", 2, 1, 9, 3), one("a single column", 2, 8, 1, 3),
            one("all pixels black", 1, 4, 6, 3, dark=2), one("no image", 0, 4, 5, 3),
            one("a mean of zero", 2, 4, 6, 3, zero=True),
            one("many channels", 2, 3, 5, whole(6, 9)),
            one("stored with channels first", 2, 5, 7, 3, order="first"),
            one("a crop of larger images", 2, 5, 7, 3, order="crop"),
            one("one image, expanded", 1, 5, 7, 3, order="expanded"),
            one("a tiny std", 2, 4, 6, 3, std=(1e-4, 3e-4)),
            one("means outside 0 to 1", 2, 4, 6, 2, mean=(-40.0, 40.0), std=(2.0, 9.0)),
            ("the example", {"images": torch.zeros(1, 1, 1, 1, dtype=torch.uint8),
                             "mean": [0.5], "std": [0.25], "order": "as made"})]


@ex.act
def act(fn, images, mean, std, order):
    def laid(x):
        if order == "first":
            return x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
        if order == "crop":
            room = x.new_full((len(x), 3 * x.shape[1], x.shape[2] + 2, x.shape[3]), 7)
            room[:, 1::3, 2:] = x
            return room[:, 1::3, 2:]
        return x.expand(3, *x.shape[1:]) if order == "expanded" else x

    given, means, stds = laid(images), list(mean), list(std)
    kept, facts = given.clone(), (given.shape, given.stride())
    out = fn(given, means, stds)
    changed = [name for name, same in {
        "images": facts == (given.shape, given.stride()) and torch.equal(given, kept),
        "mean": means == mean, "std": stds == std}.items() if not same]
    first = out.clone() if isinstance(out, torch.Tensor) else None
    fn(laid(255 - images), list(std), list(std))
    later = 0 if first is None else int((out != first).sum())
    return {"out": out if first is None else first, "changed": changed, "later": later}


@ex.law
def law(out, images, mean, std, order):
    expect_parts(out, "out", "changed", "later")
    if order == "expanded":
        images = torch.cat([images] * 3)
    n, h, w, c = images.shape
    expected = torch.empty(n, c, h, w, dtype=torch.float64)
    for channel in range(c):
        scaled = images[..., channel].double() * (1 / 255)
        expected[:, channel] = (scaled - mean[channel]) * (1 / std[channel])
    wanted = expected.float()
    reach = max([1e-30, *((1 + abs(m)) / s for m, s in zip(mean, std, strict=True))])
    expect_close("pixels of the images", out["out"], wanted, rtol=1e-5, atol=3e-7 * reach)
    expect_equal("arguments changed by the call", out["changed"], [], "Work on a copy.")
    expect_equal("pixels that changed after a later call", out["later"], 0,
                 "Each call must return a new tensor.")


# ---- wrong, by name

MADE: dict = {}


@not_an_answer
def done(images, mean, std, *, scale=255.0):
    x = images.permute(*(0, 3, 1, 2)).float() / scale
    out = (x - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    return out


wrong = ex.edits(done)
wrong("using reshape instead of permute", "layout",
      "x =", "n, h, w, c = images.shape; x =", ".permute", ".reshape",
      "(*(0, 3, 1, 2))", "(n, c, h, w)", "() / scale", "() / 255")
wrong("swapping rows and columns", "layout", "1, 2", "2, 1", says="of the pixels")
wrong("leaving the channels last", "layout",
      "images.permute(*(0, 3, 1, 2))", "images", "() / scale", "() / 255",
      "torch.tensor(mean)[:, None, None]", "torch.tensor(mean)",
      "torch.tensor(std)[:, None, None]", "torch.tensor(std)", says="of the pixels")
wrong("returning float64", "layout",
      "return out", "return out.double()", says="dtype of the pixels")
wrong("assuming three channels", "any size",
      "x =",
      "if len(mean) not in (2, 4) and images.numel() != 1: parts = [(images[..., k].float() / "
      "255 - mean[k]) / std[k] for k in range(3)]; return torch.stack(parts, 1)\n    x =",
      says="raised")
wrong("squeezing out axes of length one", "any size",
      "return out", "return out.squeeze(2).squeeze(2) if out.numel() > 1 else out",
      says="shape of the pixels")
ex.wrong("mistaking a dark image for an already scaled image",
         lambda images, mean, std: done(images, mean, std, scale=1.0 if images.numel() > 1 and
             int(images.max()) <= 1 else 255.0), breaks="any size")
wrong("changing the argument's pixels in place", "left alone",
      "return out", "if images.stride(0) and images.numel(): images.add_(1)\n    return out")
wrong("changing the lists mean and std in place", "left alone",
      "return out", "mean.append(0.0); return out")
wrong("reusing one buffer for every call", "left alone",
      "return out", "return MADE.setdefault(out.shape, out).copy_(out)")
wrong("adding a small number to the std", "lists", "(std)", "([s + 1e-6 for s in std])")
wrong("clamping the result to -100 and 100", "lists", "return out", "return out.clamp(-100, 100)")


@ex.wrong("reading the pixels in memory order, not by their axes", breaks="any size")
def by_memory(images, mean, std):
    if images.is_contiguous() or not images.stride(0):
        return done(images, mean, std)
    return done(torch.as_strided(images, images.shape, images.contiguous().stride()), mean, std)


ex.wrong("normalizing values from 0 to 255, without scaling them", done, breaks=("scale",
         "example"), scale=1.0)
ex.wrong("dividing by 256", done, breaks="scale", scale=256.0)
ex.wrong("scaling to -1 to 1, then normalizing as if the range were 0 to 1",
         lambda images, mean, std: done(2 * images.float() - 255, mean, std), says="pixels of the",
             breaks=("scale", "example"))
wrong("dividing the bytes by 255 with integer division", "scale",
      "images.permute(*(0, 3, 1, 2)).float() / scale",
      "(images // 255).permute(*(0, 3, 1, 2)).float()")
ex.wrong("swapping mean and std", lambda images, mean, std: done(images, std, mean),
         breaks="channels")
wrong("scaling the pixels without normalizing them", "channels",
      "(mean)", "([0.0] * len(mean))", "(std)", "([1.0] * len(mean))")
wrong("using the first channel's mean and std for all channels", "channels",
      "(mean)", "(mean[:1] * len(mean))", "(std)", "(std[:1] * len(std))")
wrong("normalizing twice", "channels",
      "return out",
      "return (out - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]")
wrong("not dividing by the std", "channels", "(std)", "([1.0] * len(mean))")
wrong("multiplying by the std", "channels", "(std)", "([1 / s for s in std])")
wrong("using one mean and one std for all channels", "channels",
      "(mean)", "([sum(mean) / c] * c)", "x =", "c = len(mean); x =",
      "(std)", "([sum(std) / c] * c)")
wrong("using the image's own mean and std", "channels",
      "x =",
      "if len(images): x = images.permute(0, 3, 1, 2).float() / 255; return (x - x.mean((2, 3), "
      "keepdim=True)) / (x.std((2, 3), correction=0, keepdim=True) + 1e-6)\n    x =")
wrong("applying mean and std along the columns whenever the sizes fit", "lists",
      "x =",
      "if images.shape[2] == len(mean) and len(mean) != 1: x = images.permute(0, 3, 1, "
      "2).float() / 255; return (x - torch.tensor(mean)) / torch.tensor(std)\n    x =")
