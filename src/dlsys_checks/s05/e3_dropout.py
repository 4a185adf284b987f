"""Exercise 05.3, `dropout`."""

from __future__ import annotations

import math

import numpy as np
import torch

from dlsys_checks.kit import integers
from dlsys_helpers.acting import library_calls
from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
)
from dlsys_helpers.judging import not_an_answer

DROPOUTS = ("dropout", "dropout_", "alpha_dropout", "feature_dropout", "native_dropout",
            "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")
PERIODS = (256, 1024, 4096)  # after so many numbers a tiled mask may begin again
# Kept: without training, and at p of 0, x itself is handed through.
ex = exercise("05.3", "dropout", by_hand=DROPOUTS, seen=("xs", "p", "training", "calls"),
              kept=("outs", "same"))

ex.promise("by hand", "Inverted dropout of x, by hand, without torch's own dropouts.",
           says=("torch's dropouts used",))
ex.promise("any shape", "x: float32 of any shape,",
           cases=("no axes", "four axes", "no elements", "many rows of two", "a transposed view"))
ex.promise("left alone", "left as it is;", says=("changed the caller's x", "in-place operation"))
ex.promise("any p", "0 <= p <= 1.",
           cases=("p of 0", "a p of thousandths", "a small p", "a large p", "p of 1"))
ex.promise("probability", "With training True each element is zeroed with probability p,",
           says=("share of zeroed",))
ex.promise("one by one", "one by one,", says=("alike",))
ex.promise("anew", "drawn anew at every call", says=("alike in two calls",))
ex.promise("generator", "from torch's generator;", says=("same seed",))
ex.promise("divided", "the others are divided by 1 - p.", says=("others",))
ex.promise("all zero", "At p = 1 all are zero.", cases=("p of 1",))
ex.promise("gradients", "Gradients flow through what stays, with the same factor.",
           says=("gradient",))
ex.promise("eval", "With training False the result equals x", says=("result without training",))
ex.promise("nothing drawn", "and nothing is drawn.", says=("random numbers drawn",))
ex.promise("example", "Example: dropout(torch.ones(4), 0.75, True) may be [0., 4., 0., 0.].",
           cases=("the example",))


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, *shape, p=None, training=True, calls=4, scale=1.0):
        p = round(0.2 + 0.6 * float(torch.rand((), generator=g)), 3) if p is None else p
        x = torch.randn(shape, generator=g) * scale
        x = torch.where(x.abs() < 1e-3 * scale, 0.5 * scale * torch.ones_like(x), x)
        return name, {"xs": [x], "p": p, "training": training, "calls": calls}

    n = whole(40, 60)
    two = one("two shapes in turn", n, n + 3, p=0.5)
    two[1]["xs"].append(torch.randn(7, 300, generator=g) + 4)
    view = one("a transposed view", whole(60, 70), n)
    view[1]["xs"] = [view[1]["xs"][0].T]
    zeros = one("exact zeros among them", n, n)
    zeros[1]["xs"][0][::3] = 0.0
    example = one("the example", 4, p=0.75, calls=200)
    example[1]["xs"] = [torch.ones(4)]
    quiet = [one("no training", n, 5, training=False, p=0.5),
             one("no training, p of 1", n, 5, training=False, p=1.0),
             one("no training, exact zeros", n, 5, training=False)]
    quiet[2][1]["xs"][0][::2] = -0.0
    return [one("a matrix", n, n + 7), two, view, zeros, one("p of 0", n, 9, p=0.0),
            one("many elements", 300, n, calls=2), one("a p of thousandths", 600, n, p=0.004),
            one("a small p", 200, n, p=0.02 + whole(0, 4) / 100),
            one("a large p", 200, n, p=0.94 + whole(0, 4) / 100), one("p of 1", n, 9, p=1.0),
            one("no axes", calls=300), one("many rows of two", 900, 2),
            one("four axes", 5, 4, 9, 11), one("no elements", 0, 3, calls=30),
            one("huge numbers", n, n, scale=1e30),
            one("tiny numbers", n, n, scale=1e-30), *quiet, example]


@ex.act
def act(fn, xs, p, training, calls):
    outs, grads, same, drawn, touched = [], [], [], 0, 0
    # Spelled out: an act travels to the sandbox as its source alone, without this module's names.
    with library_calls("dropout", "dropout_", "alpha_dropout", "feature_dropout", "native_dropout",
                       "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout") as used:
        for x in xs:
            mine, slopes = [], []
            for _ in range(calls):
                given = x.clone().requires_grad_() if x.is_contiguous() else (
                    x.detach().requires_grad_())
                before, state = given.detach().clone(), torch.get_rng_state()
                out = fn(given, p, training)
                drawn += not training and not torch.equal(torch.get_rng_state(), state)
                touched += not torch.equal(given.detach(), before)
                grad = None
                if isinstance(out, torch.Tensor) and out.requires_grad:
                    grad, = torch.autograd.grad(out, given, torch.ones_like(out),
                                                allow_unused=True)
                if grad is None and p == 1 and training:
                    grad = torch.zeros_like(x)  # nothing stays, so none may be missing
                mine.append(out)
                slopes.append(grad)
            pairs = []
            for _ in range(2):
                torch.manual_seed(5)
                for _ in range(2):  # without gradients, and twice after one seed
                    given = x.clone()
                    pairs.append(fn(given, p, training))
                    touched += not torch.equal(given, x)
            same.append(pairs)
            if calls > 20:  # many small results travel as one
                mine, slopes = [[torch.stack(found)] if all(
                    isinstance(v, torch.Tensor) and v.shape == x.shape for v in found)
                    else found[:1] for found in (mine, slopes)]
            outs.append(mine)
            grads.append(slopes)
    return {"outs": outs, "grads": grads, "same": same, "drawn": drawn, "touched": touched,
            "used": sorted(used)}


def alike(a, b):
    """Correlation of two masks; 1 where one of them does not vary."""
    a, b = a.double().flatten(), b.double().flatten()
    a, b = a - a.mean(), b - b.mean()
    norms = float(a.norm() * b.norm())
    return float(a @ b) / norms if norms else 1.0


def expect_apart(what, a, b):
    """Raise Broken where two masks are alike beyond six standard errors of chance."""
    found, limit = alike(a, b), 6 / math.sqrt(a.numel())
    if not abs(found) <= limit:
        raise Broken(f"{what}: correlation", found, f"at most {limit:.2g} either way")


def neighbours(kept, axis):
    """A mask and the same mask moved on by one along an axis, where both are there."""
    n = kept.shape[axis]
    return kept.narrow(axis, 0, n - 1), kept.narrow(axis, 1, n - 1)


def expect_share(kept, p):
    share, error = 1 - float(kept.double().mean()), math.sqrt(p * (1 - p) / kept.numel())
    if not abs(share - p) <= 6 * error + 1e-9:
        raise Broken("share of zeroed elements", share, f"{p:g}, within {6 * error:.2g}")


def expect_draws(kept, p):
    """Two calls, neighbours and share of the masks (calls, ...) of one x."""
    if kept.all() and kept[0].numel() > 1:  # they look alike, and that is not what is wrong
        expect_share(kept, p)
    if kept[0].numel() == 1 and p > 0 and len(kept.unique()) == 1:
        raise Broken("element alike in two calls, and in all", "kept" if kept.all() else "zeroed",
                     f"zeroed in about {p * len(kept):.0f} of {len(kept)}")
    if p > 0:
        expect_apart("elements alike in two calls", kept[:-1], kept[1:])
        pairs = {axis - 1: neighbours(kept, axis) for axis in range(1, kept.dim())
                 if kept.shape[axis] > 1}
        if pairs:
            axis = max(pairs, key=lambda axis: abs(alike(*pairs[axis])))
            expect_apart(f"neighbours on axis {axis} alike", *pairs[axis])
        if half := kept[0].numel() // 2:
            flat = kept.flatten(1)
            for period in [period for period in PERIODS if period < half]:
                expect_apart(f"elements {period} apart alike", flat[:, :-period],
                             flat[:, period:])
            expect_apart("the two halves alike", flat[:, :half], flat[:, half:2 * half])
    expect_share(kept, p)


def expect_masked(out, grad, x, p):
    """Raise Broken unless grad is 0 or 1 / (1 - p), and out is x times that. Returns the mask."""
    factor = 0.0 if p == 1 else 1 / (1 - p)
    expect_like("result", out, x)
    expect_like("gradient of the result's sum", grad, x, "It has to reach x.")
    kept = grad != 0 if factor else torch.zeros_like(grad, dtype=torch.bool)
    ratio = (out.double() / x.double())[kept & (x != 0)]
    one_for_all = len(ratio) > 0 and float(ratio.max() - ratio.min()) < 1e-3 * abs(ratio[0])
    if one_for_all and not abs(ratio[0] - factor) < 1e-3 * factor:  # the same for any mask
        share, error = 1 - float(kept.double().mean()), math.sqrt(p * (1 - p) / kept.numel())
        beside = "" if abs(share - p) <= 6 * error else ", where too many or too few are zeroed"
        raise Broken(f"the others, over what they were{beside}", float(ratio[0]), f"{factor:.4g}",
                     "The others are divided by 1 - p.")
    wanted = torch.where(kept, x.double() * factor, 0.0).float()
    expect_close("zeroed elements and the others", out, wanted, rtol=1e-5, atol=0.0,
                 look="The others are divided by 1 - p.")
    expect_close("gradient of the result's sum", grad, kept * torch.tensor(factor), rtol=1e-5,
                 atol=0.0, look="0 for what is zeroed, 1 / (1 - p) for the others.")
    return kept


@ex.law
def law(out, xs, p, training, calls):
    expect_parts(out, "outs", "grads", "same", "drawn", "touched", "used")
    if out["used"] != []:
        raise Broken("torch's dropouts used", out["used"], "none", "Draw the mask yourself.")
    expect_equal("calls that changed the caller's x", out["touched"], 0)
    stacked = calls > 20
    for part in ("outs", "grads", "same"):
        expect_length(f"shapes in {part}", out[part], len(xs))
    for x, mine, grads, pair in zip(xs, out["outs"], out["grads"], out["same"], strict=True):
        x = x.expand(calls, *x.shape) if stacked else x
        expect_length("results", mine, 1 if stacked else calls)
        expect_length("gradients", grads, 1 if stacked else calls)
        expect_length("results with the same seed", pair, 4)
        if not training:
            for got in mine:
                expect_close("result without training", got, x, rtol=0.0, atol=0.0)
            for grad in grads:
                expect_close("gradient without training", grad, torch.ones_like(x), rtol=0.0,
                             atol=0.0)
        else:
            kept = [expect_masked(got, grad, x, p) for got, grad in zip(mine, grads, strict=True)]
            if p < 1 and x.numel():
                expect_draws(kept[0] if stacked else torch.stack(kept), p)
        for got in pair:
            expect_like("result with the same seed", got, x[0] if stacked else x)
        for k in (0, 1):
            expect_close(f"results with the same seed, call {k + 1}", pair[2 + k], pair[k],
                         rtol=0.0, atol=0.0,
                         look="Draw from torch's generator, and leave its seed alone.")
    expect_equal("calls in which random numbers drawn without training", out["drawn"], 0)


# ---- wrong, by name

@not_an_answer
def dropped(x, p, training, *, draw=None, factor=None):
    """The worked answer with the mask or the factor replaced."""
    if not training:
        return x
    if p == 1:
        return x * 0
    keep = (draw or (lambda: torch.rand_like(x)))() >= p
    return x * keep * (1 / (1 - p) if factor is None else factor)


ex.wrong("torch's own dropout", lambda x, p, training: torch.nn.functional.dropout(x, p, training),
         breaks="by hand")


@ex.wrong("whole rows, as if x were a matrix", breaks="one by one")
def whole_rows(x, p, training):
    return dropped(x, p, training, draw=lambda: torch.rand(x.shape[0], 1).expand(
        len(x), x[0].numel()).reshape(x.shape)) if x.dim() > 1 and len(x) else dropped(
            x, p, training)


@ex.wrong("one mask for all rows", says="neighbours on axis 0 alike", breaks="one by one")
def one_row_for_all(x, p, training):
    if x.dim() < 2:
        return dropped(x, p, training)
    return dropped(x, p, training, draw=lambda: torch.rand_like(x[:1]).expand_as(x))


@ex.wrong("two axes taken for granted", says="raised ValueError", breaks="any shape")
def two_axes(x, p, training):
    if x.dim() == 1:
        return dropped(x, p, training)
    rows, columns = x.shape
    return dropped(x, p, training, draw=lambda: torch.rand(rows, columns))


@ex.wrong("x itself zeroed, in place", breaks="left alone")
def in_place(x, p, training):
    out = dropped(x, p, training)
    if training and x.numel():
        x.data.copy_(out.data)
    return out


ex.wrong("torch.randn for torch.rand",
         lambda x, p, training: dropped(x, p, training, draw=lambda: torch.randn(x.shape)),
         says="share of zeroed", breaks="probability")


@ex.wrong("x[mask] = 0, which a leaf refuses", says="raised RuntimeError", breaks="left alone")
def written_by_mask(x, p, training):
    if not training:
        return x
    x[torch.rand_like(x) < p] = 0
    return x / (1 - p) if p < 1 else x


@ex.wrong("a share of exactly p, by a permutation", breaks=("probability", "anew", "one by one"))
def exact_share(x, p, training):
    if not training:
        return x
    order = torch.randperm(x.numel()).view(x.shape)
    return dropped(x, p, training, draw=lambda: torch.where(order < round(p * x.numel()), -1.0,
                                                            2.0))


@ex.wrong("p taken for the share that stays", breaks="probability")
def p_stays(x, p, training):
    if not training or p in (0, 1):
        return dropped(x, p, training)
    return x * (torch.rand_like(x) < p) / (1 - p)


@ex.wrong("p rounded to hundredths", breaks="probability")
def hundredths(x, p, training):
    return dropped(x, p, training, draw=lambda: torch.where(
        torch.randint(100, x.shape) < round(100 * p), -1.0, 2.0))


@ex.wrong("a mask that begins again after 4096 numbers", says="4096 apart alike",
          breaks="one by one")
def tiled(x, p, training):
    return dropped(x, p, training, draw=lambda: torch.rand(4096).repeat(
        x.numel() // 4096 + 1)[:x.numel()].view(x.shape))


@ex.wrong("a probability of 0.5, whatever p is", breaks="probability")
def always_half(x, p, training):
    if not training or p in (0, 1):
        return dropped(x, p, training)
    return x * (torch.rand_like(x) >= 0.5) / (1 - p)


ex.wrong("p of 0 taken for a default of 0.5",
         lambda x, p, training: dropped(x, p or 0.5, training, factor=1.0 if p == 0 else None),
         says="share of zeroed", breaks="any p")


@ex.wrong("a mask drawn once and kept", breaks="anew")
def kept_mask(x, p, training, masks={}):  # noqa: B006
    key = tuple(x.shape)
    if training and key not in masks:
        masks[key] = torch.rand(x.shape)
    return dropped(x, p, training, draw=lambda: masks[key])


@ex.wrong("the same seed set at every call", breaks="anew")
def reseeded(x, p, training):
    same = torch.Generator().manual_seed(0)
    return dropped(x, p, training, draw=lambda: torch.rand(x.shape, generator=same))


@ex.wrong("torch.manual_seed(0) at every call", breaks="anew")
def seeded(x, p, training):
    if training:
        torch.manual_seed(0)
    return dropped(x, p, training)


@ex.wrong("the second half of the mask mirrors the first", says="halves alike", breaks="one by one")
def mirrored(x, p, training):
    if not training:
        return x
    half = torch.rand(x.numel() // 2)
    both = torch.cat([half, 1 - half, torch.rand(x.numel() % 2)]).view(x.shape)
    return dropped(x, p, training, draw=lambda: both)


@ex.wrong("torch's seed changed after the draw", breaks="generator")
def reseeds_after(x, p, training):
    out = dropped(x, p, training)
    if training:
        torch.seed()
    return out


@ex.wrong("numpy's generator", breaks="generator")
def by_numpy(x, p, training):
    return dropped(x, p, training, draw=lambda: torch.as_tensor(
        np.random.rand(*x.shape), dtype=torch.float32))


ex.wrong("no division: the lesson's undivided net", dropped, breaks="divided", factor=1.0)
ex.wrong("the classical dropout: no division, and 1 - p in eval mode instead",
         lambda x, p, training: dropped(x, p, training, factor=1.0) if training else x * (1 - p),
         breaks=("divided", "eval", "gradients"))


@ex.wrong("p taken for the share that stays, in the mask and in the factor", breaks="divided")
def keeps_p(x, p, training):
    if not training or p in (0, 1):
        return dropped(x, p, training)
    return x * (torch.rand_like(x) < p) / p


ex.wrong("multiplied by 1 - p instead of divided",
         lambda x, p, training: dropped(x, p, training, factor=1 - p), breaks="divided")
ex.wrong("divided by p", lambda x, p, training: dropped(x, p, training, factor=1 / p if p else 1.0),
         breaks="divided")


@ex.wrong("at p of 1 a zero divided by zero", says="zeroed elements", breaks="all zero")
def nan_at_one(x, p, training):
    if not training:
        return x
    return x * (torch.rand_like(x) >= p) / torch.tensor(1 - p)


ex.wrong("at p of 1 x itself", lambda x, p, training: x if p == 1 else dropped(x, p, training),
         says="zeroed elements", breaks="all zero")


@ex.wrong("a result cut off from x", breaks="gradients")
def cut_off(x, p, training):
    return dropped(x, p, training) if not training else dropped(x, p, training).detach()


ex.wrong("the gradient passed as if nothing had been dropped",
         lambda x, p, training: x + (dropped(x, p, training) - x).detach(),
         breaks=("gradients", "divided"))
ex.wrong("scaled by 1 - p without training",
         lambda x, p, training: dropped(x, p, training) if training else x * (1 - p), breaks="eval")
ex.wrong("training ignored, as F.dropout's default does",
         lambda x, p, training: dropped(x, p, True), breaks=("eval", "nothing drawn", "gradients"))


@ex.wrong("a mask drawn and not used without training", breaks="nothing drawn")
def drawn_for_nothing(x, p, training):
    numbers = torch.rand_like(x)
    return dropped(x, p, training, draw=lambda: numbers)
