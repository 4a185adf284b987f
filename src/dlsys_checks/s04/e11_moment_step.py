"""Exercise 04.11, `moment_step`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import floats
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_like, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("04.11", "moment_step", seen=("v", "grad", "beta2", "loose"),
              says="no bfloat16 neighbour")

MANY = 4096  # entries of a case that counts how often something is drawn
COUNTED = ("fraction rounded up", "entries that differ")
ex.promise("moment", "Return Adam's next second moment, rounded stochastically to bfloat16.",
           says=("no bfloat16 neighbour", *COUNTED))
ex.promise_table("""
v           | Args: v: (N,) bfloat16, 0 or more, the moment so far. | case no moment yet; no moment
              and no gradient; a tiny moment; a huge moment; every second number of a table; all
              entries different
grad        | grad: (N,) float32 or bfloat16. | case gradients in bfloat16
x           | Let x = beta2 * v + (1 - beta2) * grad**2, computed in float32. | no bfloat16
              neighbour; fraction rounded up; values that moved
beta2       | beta2: 0 <= beta2 < 1. | case a small beta; a beta of 0; a beta of 0.99; a beta near
              1; gradients in bfloat16; one entry; numbers that bfloat16 holds; no moment and no
              gradient; a million numbers that bfloat16 holds
form        | Returns: (N,) bfloat16. | next moment
exact       | Where x is a bfloat16 value, return x itself. | values that moved
neighbours  | Elsewhere, return one of the two bfloat16 neighbours of x. | no bfloat16 neighbour
probability | Return the upper one with probability (x - lower) / (upper - lower). | fraction
              rounded up
each        | Draw for every entry separately. | entries that differ from the
anew        | Draw again in each call. | entries that differ in two calls
generator   | generator: the only source of randomness. | bytes of torch's own generator; entries
              that a second generator
left alone  | v and grad do not change. | values changed in v and grad
example     | Example: with v 1.5, gradient 0 and beta2 0.999, x is 1.4985. Return 1.5 four times
              out of five, otherwise 1.4921875. | case the example
""")


def exactly(v, grad, beta2):
    """The next moment (N,) in float64."""
    return beta2 * v.double() + (1 - beta2) * grad.double() ** 2


def between_which(x):
    """The bfloat16 numbers below and above x (N,) float64, and where x lies, from 0 to 1.

    Where x is one of them, it is the lower one.
    """
    gap = 2.0 ** (torch.floor(torch.log2(x.clamp(min=1e-30))) - 7)  # 8 bits, the first is 1
    low = torch.floor(x / gap) * gap
    return low, low + gap, (x - low) / gap


@ex.cases
def cases(g):
    between = floats(g)

    def small():
        return between(0.05, 0.3)

    def usual():
        return between(0.6, 9.0)

    def none():
        return 0.0

    def alike(name, v, grad, beta2=0.999, dtype=torch.float32):
        """All entries are the same, and x is near neither two numbers nor the middle of them.

        A gradient in bfloat16 has a square that is far from any bfloat16 number.
        """
        while True:
            moment = torch.full((MANY,), v()).bfloat16()
            slope = torch.full((MANY,), grad()).to(dtype)
            place, coarse = (between_which(exactly(moment, g, beta2))[2][0]
                             for g in (slope, (slope**2).double().sqrt()))
            if 0.1 < abs(place - 0.5) < 0.4 and (
                    dtype == torch.float32 or 0.15 < abs(place - coarse) < 0.5):
                return given(name, moment, slope, beta2)

    def given(name, v, grad, beta2, loose=False):
        return name, {"v": torch.as_tensor(v).bfloat16(), "grad": torch.as_tensor(grad),
                      "beta2": beta2, "loose": loose}

    def spread(name, loose=False):
        return given(name, 4 * torch.rand(MANY, generator=g), 3 * torch.randn(MANY, generator=g),
                     0.999, loose)

    def rare(name, beta2=0.99):
        """x lies so little above a number that one draw of 256 values never meets the chance."""
        moment = torch.full((8 * MANY,), usual()).bfloat16().double()
        above = 3e-4 * 2.0 ** (moment.log2().floor() - 7)
        return given(name, moment, (moment + above / (1 - beta2)).sqrt().float(), beta2)

    return [alike("a small gradient", usual, small), alike("a large gradient", usual, usual),
            alike("no moment yet", none, usual),
            alike("a tiny moment", lambda: between(1e-9, 1e-8), lambda: between(1e-5, 2e-4)),
            alike("a huge moment", lambda: between(1e8, 1e9), lambda: between(1e4, 2e5)),
            alike("gradients in bfloat16", usual, usual, between(0.2, 0.5), torch.bfloat16),
            alike("a small beta", usual, usual, between(0.1, 0.4)),
            alike("a beta of 0", usual, usual, 0.0), alike("a beta of 0.99", usual, usual, 0.99),
            alike("a beta near 1", usual, lambda: between(20.0, 60.0), 0.9999),
            spread("all entries different"),
            spread("every second number of a table", loose=True),
            rare("hardly above a number"),
            given("one entry", [between(1.0, 2.0)], [between(0.1, 0.3)], 0.9),
            given("no moment and no gradient", [0.0, 0.0, 2.0] * 15, [0.0] * 45, 0.5),
            given("numbers that bfloat16 holds", [1.0, 2.0, 3.0, 0.5, 96.0] * 9,
                  [1.0, 0.0, 1.0, 1.5, 4.0] * 9, 0.5),
            # In three calls a chance of one in 65,536 comes true, all but once in a million times.
            given("a million numbers that bfloat16 holds", torch.full((300_000,), 3.0),
                  torch.zeros(300_000), 0.5),
            given("the example", [1.5] * MANY, [0.0] * MANY, 0.999)]


@ex.act
def act(fn, v, grad, beta2, loose):
    touched = 0

    def call(generator):
        nonlocal touched
        mine, slope = (torch.stack([t, t + 1], 1)[:, 0] if loose else t.clone() for t in (v, grad))
        made = fn(mine, slope, beta2, generator)
        touched += int((mine != v).sum() + (slope != grad).sum())
        return made.clone() if isinstance(made, torch.Tensor) else made

    generator = torch.Generator().manual_seed(1)
    before = torch.get_rng_state()
    first, second = call(generator), call(generator)
    again = call(torch.Generator().manual_seed(1))
    outside = int((torch.get_rng_state() != before).sum())
    return {"first": first, "second": second, "again": again, "touched": touched,
            "outside": outside}


@ex.law
def law(out, v, grad, beta2, loose):
    expect_parts(out, "first", "second", "again", "touched", "outside")
    x = exactly(v, grad, beta2)
    low, high, place = between_which(x)
    for key in ("first", "second", "again"):
        expect_like("next moment", out[key], v)
        expect_neighbours(out[key].double(), x, low, high)
    expect_equal("values changed in v and grad", out["touched"], 0, "Work on a copy.")
    expect_equal("bytes of torch's own generator that changed", out["outside"], 0,
                 "Draw with generator=generator.")
    expect_equal("entries that a second generator with the same seed rounded differently",
                 int((out["first"] != out["again"]).sum()), 0,
                     "Draw all random numbers from generator.")
    ups = [(out[key].double() == high).double() for key in ("first", "second")]
    if len(x) >= MANY:
        expect_chance(ups[0], place, x)
    if len(x) == MANY:
        expect_free(*ups, place)


def expect_neighbours(got, x, low, high):
    """Raise Broken unless got is x, or a neighbour of an x that bfloat16 does not hold."""
    moved = (low == x) & (got != x)
    expect_equal("values that moved although x is a bfloat16 value", int(moved.sum()), 0)
    strange = ((got != low) & (got != high)).nonzero()
    if len(strange):
        i = int(strange[0])
        raise Broken("value that is no bfloat16 neighbour of x", float(got[i]),
                     [float(low[i]), float(high[i])], f"x is {float(x[i]):.7g} there.")


def expect_chance(up, place, x):
    """Raise Broken unless the ups (N,) are as frequent as the chances `place` say."""
    for part in filter(torch.any, (place < 0.5, place >= 0.5)):
        chance, went, first = place[part], up[part], float(x[part][0])
        room = 5 * float((chance * (1 - chance)).mean() / len(went)) ** 0.5 + 1e-3
        expect_close("fraction rounded up", float(went.mean()), float(chance.mean()), rtol=0.0,
                     atol=room, look="The nearer x is to its upper neighbour, the more often it "
                                     f"should be rounded up. The first x is {first:.7g}.")


def expect_free(up, anew, place):
    """Raise Broken unless the ups (N,) of two calls are drawn entry by entry, and call by call."""

    def expect_differ(what, one, other, p, q, look):
        usual = float((p * (1 - q) + q * (1 - p)).mean())
        share = float((one != other).double().mean())
        if share < usual / 2:
            raise Broken(f"fraction of entries that differ {what}", share, usual, look)

    half = len(up) // 2
    for lag, which in ((1, "from the one before"), (half, "from the one half the tensor away")):
        expect_differ(which, up[lag:], up[:-lag], place[lag:], place[:-lag],
                      "Draw one random number for each entry.")
    expect_differ("in two calls", up, anew, place, place, "Draw new random numbers in each call.")


# ---- wrong, by name

@not_an_answer
def moment(v, grad, beta2, generator):
    x = beta2 * v.float() + (1 - beta2) * grad.float() ** 2
    part, power = torch.frexp(x)
    scaled = 256 * part
    low = scaled.floor()
    up = torch.rand(x.shape, generator=generator) < scaled - low
    return torch.ldexp((low + up) / 256, power).bfloat16()


wrong = ex.edits(moment)
START, OLD, SQUARE = "x =", "beta2 * v.float()", "(1 - beta2) * grad.float() ** 2"
DRAWN = "torch.rand(x.shape, generator=generator)"
UP, RESULT = f"{DRAWN} < scaled - low", "torch.ldexp((low + up) / 256, power).bfloat16()"
SHARE = "fraction rounded up"
wrong("computing x in bfloat16", "x", f"{OLD} + {SQUARE}",
      "(beta2 * v + (1 - beta2) * grad.bfloat16() ** 2).float()")
wrong("multiplying v by beta2 in bfloat16", "x", f"{OLD} + {SQUARE}",
      "(beta2 * v + (1 - beta2) * grad ** 2).float()")
wrong("calculating in float32 and rounding to the nearest value", "moment", RESULT, "x.bfloat16()",
      says=SHARE)
wrong("always rounding down", "probability", UP, "0", says=SHARE)
wrong("always rounding up", "probability", UP, "scaled > low", says=SHARE)
wrong("rounding up or down with equal probabilities", "probability",
      UP, f"({DRAWN} < 0.5) & (scaled > low)", says=SHARE)
wrong("swapping the two probabilities", "probability",
      UP, f"({DRAWN} > scaled - low) & (scaled > low)", says=SHARE)
wrong("drawing random numbers in bfloat16, which allows only 256 different values", "probability",
      DRAWN, "torch.rand(x.shape, generator=generator, dtype=torch.bfloat16)", says=SHARE)
wrong("drawing a single random number for all entries", ("each", "probability"),
      DRAWN, "torch.rand((), generator=generator)", says=SHARE)
wrong("drawing a single 16-bit random number for all entries", ("each", "probability"),
      DRAWN, "torch.randint(1 << 16, (), generator=generator) / (1 << 16)", says=SHARE)
wrong("drawing one random number for every two entries", "each", DRAWN,
      "torch.rand((len(x) + 1) // 2, generator=generator).repeat(2)[:len(x)]",
      says="entries that differ")
wrong("not squaring the gradient", "x", SQUARE, "(1 - beta2) * grad.float().abs()")
wrong("swapping the weights of the moment and the squared gradient", "x",
      OLD, "(1 - beta2) * v.float()", SQUARE, "beta2 * grad.float() ** 2")
wrong("adding the whole squared gradient", "x", SQUARE, "grad.float() ** 2")
wrong("squaring the gradient in its own dtype", "grad", SQUARE, "(1 - beta2) * (grad**2).float()",
      says="")
wrong("using a beta of 0.999, whatever is asked for", "beta2", START, "beta2 = 0.999; x =")
wrong("rounding to seven bits instead of eight",
      "neighbours", "256 * part", "128 * part", "/ 256", "/ 128")
wrong("rounding at random to finer values, then to the nearest bfloat16 value", "probability",
      "256 * part", "1024 * part", "/ 256", "/ 1024", says=SHARE)
wrong("drawing with torch's own generator", "generator", DRAWN, "torch.rand(x.shape)",
      says="bytes of torch's own generator")
wrong("making the same draws in each call", "anew",
      START, "generator.manual_seed(0); x =", says="entries that differ in two calls")
wrong("adding noise of the same size to every entry, whatever the size of x",
      ("neighbours", "probability", "exact"),
      UP, DRAWN, RESULT, "(x + (up - 0.5) / 256).bfloat16()")
wrong("adding noise to the bits, then rounding to the nearest bfloat16 value",
      ("neighbours", "exact", "probability"),
      UP, "torch.randint(1 << 16, x.shape, generator=generator, dtype=torch.int32)",
      RESULT, "(x.view(torch.int32) + up).view(torch.float32).bfloat16()")
wrong("leaving the result in float32", "form", RESULT, f"{RESULT}.float()",
      says="dtype of the next moment")
wrong("changing v in place", "left alone", RESULT, f"v.copy_({RESULT})",
      says="values changed in v and grad")
wrong("leaving a moment of 0 at 0", "v", RESULT, f"torch.where(v > 0, {RESULT}, v)",
      says="no bfloat16 neighbour")
wrong("adding a random number from 1 to 65,536 to the bits, instead of 0 to 65,535", "exact",
      UP, "torch.randint(1, (1 << 16) + 1, x.shape, generator=generator, dtype=torch.int32)",
      RESULT, "((x.view(torch.int32) + up) & -65_536).view(torch.float32).bfloat16()",
      says="values that moved")
wrong("rounding an exact value up now and then", "exact",
      UP, f"{DRAWN} < torch.where(scaled == low, 0.2, scaled - low)", says="values that moved")
