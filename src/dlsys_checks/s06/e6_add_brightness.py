"""Exercise 06.6, `add_brightness`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_length, expect_parts

ex = exercise("06.6", "add_brightness", seen=("calls",))

ex.promise_table("""
added      | Return img with d added to every pixel. | pixels
cut        | Clamp the sums to 0 and 255. | pixels
type       | Returns: A new uint8 tensor. | dtype; type of the; share memory
any shape  | Args: img: uint8 of any shape, contiguous or not. | shape of the; pixels
left alone | It does not change. | calls that changed img
range      | d: from -255 to 255. | case the brightest; the darkest; no change; every value, much
             brighter; every value, much darker
example    | Example: with d 20, pixels 0, 100, 250 become 20, 120, 255. | case the example
""")


@ex.cases
def cases(g):
    number = integers(g)

    def image(*shape):
        """Any pixels as int64, and among them those at both ends; act makes bytes of them."""
        img = torch.randint(256, shape, generator=g)
        ends = torch.tensor([0, 255, 1, 254])[:img.numel()]
        img.view(-1)[:4] = ends
        return img

    def one(name, d, *shapes, stored="in order"):
        return name, {"calls": [[image(*shape), d, stored] for shape in shapes or [(3, 8, 8)]]}

    every = torch.arange(256)
    # Beyond 127 an int8 has no room, below that a sum of two bytes may wrap.
    return [one("brighter", number(30, 120)), one("darker", -number(30, 120)),
            one("the brightest", 255), one("the darkest", -255), one("no change", 0),
            ("every value, much brighter", {"calls": [
                [every.clone(), number(130, 200), "in order"]]}),
            ("every value, much darker", {"calls": [
                [every.clone(), -number(130, 200), "in order"]]}),
            one("one row of pixels", number(5, 20), (9,)),
            one("a batch of colour images, then a grey one", number(20, 99),
                (2, 3, 5, 4), (6, 7)),
            one("two images of one size", number(20, 99), (5, 6), (5, 6)),
            one("columns stored first", number(20, 99), (5, 6), stored="columns first"),
            one("every second byte", -number(20, 99), (2, 4, 5), stored="every second"),
            one("one pixel without axes", number(20, 99), ()),
            one("no pixel", number(20, 99), (0, 4, 5), (3, 0)),
            one("axes of length 1", number(20, 99), (1, 5, 1), (1, 1)),
            ("the example", {"calls": [
                [torch.tensor([0, 100, 250]), 20, "in order"]]})]


@ex.act
def act(fn, calls):
    found = {"images": [], "changed": 0, "shared": 0}
    for img, d, stored in calls:
        given = img.to(torch.uint8)
        if stored == "columns first":
            given = given.mT.contiguous().mT
        if stored == "every second":
            given = torch.stack([given, 255 - given], -1)[..., 0]
        out = fn(given, d)
        found["changed"] += int((given != img).any())
        memory = [t.untyped_storage().data_ptr() for t in (given, *found["images"], out)
                  if isinstance(t, torch.Tensor) and t.numel()]
        found["shared"] += int(len(set(memory)) < len(memory))
        found["images"].append(out)
    return found


@ex.law
def law(out, calls):
    expect_parts(out, "images", "changed", "shared")
    expect_length("images", out["images"], len(calls))
    expect_equal("answers that share memory with img or an earlier answer", out["shared"], 0,
                 "Make a new tensor.")
    for (img, d, _), got in zip(calls, out["images"], strict=True):
        # By a table of all 256 values, as an image program does it.
        table = torch.tensor([sorted((0, value + d, 255))[1] for value in range(256)])
        expect_equal("pixels", got, table[img].to(torch.uint8))
    expect_equal("calls that changed img", out["changed"], 0, "Work on a copy.")


# ---- wrong, by name

ex.wrong("adding in uint8, or converting back before clamping, so that values wrap around",
         lambda img, d: (img + d).clamp(0, 255), breaks="cut")
ex.wrong("clamping only at the upper end",
         lambda img, d: (img.int() + d).clamp(max=255).to(torch.uint8),
         breaks="cut")
ex.wrong("clamping only at the lower end",
         lambda img, d: (img.int() + d).clamp(min=0).to(torch.uint8),
         breaks="cut")


@ex.wrong("clamping at 254", breaks="cut")
def cut_early(img, d):
    total = (img.int() + d).clamp(0, 255)
    return torch.where(img.int() + d > 255, 254, total).to(torch.uint8)


ex.wrong("adding and clamping in int8",
         lambda img, d: (img.to(torch.int8) + d).clamp(0, 127).to(torch.uint8),
         breaks=("added", "range", "cut", "example"))
ex.wrong("multiplying instead of adding",
         lambda img, d: (img.float() * (1 + d / 255)).clamp(0, 255).to(torch.uint8),
         breaks=("added", "cut", "example", "range"))
ex.wrong("subtracting d", lambda img, d: (img.int() - d).clamp(0, 255).to(torch.uint8),
         breaks=("added", "cut", "example", "range"))


@ex.wrong("leaving black pixels black", breaks="added")
def black_stays(img, d):
    out = (img.int() + d).clamp(0, 255).to(torch.uint8)
    small = (img == 0) & (0 < d < 130) & (img.numel() != 3)
    return torch.where(small, 0, out).to(torch.uint8)


@ex.wrong("limiting d to 127 in either direction", says="pixels", breaks="range")
def small_d(img, d):
    d = max(-127, min(127, d)) if abs(d) != 255 else d // 2
    return (img.int() + d).clamp(0, 255).to(torch.uint8)


ex.wrong("returning floats between 0 and 1", lambda img, d: (img.float() + d).clamp(0, 255) / 255,
         breaks="type")
ex.wrong("returning floats from 0 to 255",
         lambda img, d: (img.float() + d).clamp(0, 255), breaks="type")
ex.wrong("adding in floats between 0 and 1, then truncating instead of rounding",
         lambda img, d: ((img / 255 + d / 255).clamp(0, 1) * 255).byte(),
         breaks=("added", "cut", "range"))
ex.wrong("returning img itself if d is 0",
         lambda img, d: (img.int() + d).clamp(0, 255).to(torch.uint8) if d else img, breaks="type")


BUFFERS = {}


@ex.wrong("keeping one result tensor per size, which the next call overwrites", breaks="type")
def one_buffer(img, d):
    kept = BUFFERS.setdefault(img.shape, torch.empty_like(img))
    return kept.copy_((img.int() + d).clamp(0, 255))


@ex.wrong("reading the pixels in memory order, not in index order", breaks="any shape")
def as_stored(img, d):
    bytes_ = torch.as_strided(img, (img.numel(),), (1,)).view(img.shape)
    return (bytes_.int() + d).clamp(0, 255).to(torch.uint8)


ex.wrong("dropping axes of length 1",
         lambda img, d: (img.int() + d).clamp(0, 255).to(torch.uint8).squeeze(), breaks="any shape")
ex.wrong("returning int16, the type used for the sum",
         lambda img, d: (img.short() + d).clamp(0, 255), breaks="type")
ex.wrong("writing the result into img and returning img", breaks=("left alone", "type"),
         fn=lambda img, d: img.copy_((img.int() + d).clamp(0, 255)))
ex.wrong("returning int32", lambda img, d: (img.int() + d).clamp(0, 255).int(), breaks="type")


@ex.wrong("changing img after computing the result", breaks="left alone")
def in_place(img, d):
    result = (img.int() + d).clamp(0, 255).to(torch.uint8)
    img.copy_(255 - img)
    return result


@ex.wrong("flattening the result", breaks="any shape")
def flat(img, d):
    out = (img.int() + d).clamp(0, 255).to(torch.uint8)
    return out.flatten() if img.ndim > 1 else out
