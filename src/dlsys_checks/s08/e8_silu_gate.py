"""Exercise 08.8, `silu_gate`."""

from __future__ import annotations

import math

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("08.8", "silu_gate", seen=("a", "b", "block", "programs", "other"))

NUMBERS = ("values of y",)
ex.promise("one program", "Run one program of a kernel that writes y = a * sigmoid(a) * b.",
           says=NUMBERS)
ex.promise("load", 'load("a", places) and load("b", places) return the values at these positions.',
           says=(*NUMBERS, "raised"))
ex.promise("store", "store(\"y\", places, values) writes one value to each position.",
           says=(*NUMBERS,
           "raised"))
ex.promise("places", "places is an int64 tensor (m,) of positions from 0 to n - 1. The memory "
                     "beyond belongs to somebody else.",
           says=("beyond the end", "below 0", "raised"))
ex.promise("programs", "Program p handles `block` positions beginning at p * block, or as many as "
                       "are left. There are as many programs as n needs. They run in any order.",
           says=("another program", "times that positions", *NUMBERS))
ex.promise("others", "Programs of other kernels can run in between, and programs share nothing.",
           says=("another program", *NUMBERS), cases=("two kernels in turn",))
ex.promise("once", "Load each value once, and store nothing but y.",
           says=("times that", "other than y"))
ex.promise("large", "In absolute value, a can reach 1000 and b a million, and y must stay "
                    "finite.",
           says=NUMBERS,
           cases=("large values", "large negative values", "a large b"))
ex.promise("example", "Example: with n 5 and block 4, program 1 loads and stores only position 4.",
           cases=("the example",))


@ex.cases
def cases(g):
    def one(name, n, block, order=None):
        count = -(-n // block)
        programs = order(count) if order else [*range(count)]
        return name, {"a": torch.randn(n, generator=g),
                      "b": torch.randn(n, generator=g), "block": block,
                      "programs": programs, "other": int(name == "two kernels in turn")}

    def mixed(count):
        return torch.randperm(count, generator=g).tolist()

    odd = int(torch.randint(2, 8, (), generator=g))
    large = one("large values", 24, 8)[1]
    large["a"] = torch.linspace(20, 1000, 24)
    below = {**large, "a": -large["a"]}
    return [one("whole blocks", 32, 8), one("a ragged tail", 24 + odd, 8),
            one("one value beyond a block", 9, 8), one("one program", 8, 8),
            one("fewer values than a block", 3, 16), one("one value", 1, 4),
            one("blocks of one", 6, 1), one("many programs", 130, 4),
            one("backwards", 29, 8, lambda count: [*range(count)][::-1]),
            one("programs mixed up", 61, 8, mixed), one("two kernels in turn", 21, 8, mixed),
            one("blocks of six", 20, 6), one("blocks of five", 5 * odd, 5),
            ("a large b", {**large, "a": torch.linspace(-40, 6, 24),
                           "b": torch.linspace(1e6, -9e5, 24)}),
            ("large values", large), ("large negative values", below),
            ("the example", {"a": torch.tensor([1.0, -2.0, 0.0, 0.5, 3.0]),
                             "b": torch.ones(5), "block": 4, "programs": [1, 0],
                             "other": 0})]


@ex.act
def act(fn, a, b, block, programs, other):
    n, seen = len(a), {"beyond": 0, "below": 0, "other": 0, "foreign": 0}
    y, stored = torch.full((n,), math.nan), torch.zeros(n, dtype=torch.long)
    opposite = torch.full((n,), math.nan)
    loads = {"a": torch.zeros(n, dtype=torch.long), "b": torch.zeros(n, dtype=torch.long)}
    memory = {"a": a.clone(), "b": b.clone()}

    def inside(places):  # of the program that runs
        kind = f"{places.dtype}, {places.dim()} axes" if isinstance(
            places, torch.Tensor) else type(places).__name__
        if kind != "torch.int64, 1 axes":
            raise TypeError(f"places: got {kind}, expected an int64 tensor (m,)")
        seen["beyond"] += int((places >= n).sum())
        seen["below"] += int((places < 0).sum())
        good = (places >= 0) & (places < n)
        seen["foreign"] += int((places[good] // block != program).sum())
        return good

    def load(name, places):
        if name not in loads:
            raise ValueError(f"load: got {name!r}, expected 'a' or 'b'")
        good = inside(places)
        loads[name] += torch.bincount(places[good], minlength=n)
        out = torch.full(places.shape, 7e7)  # what lies beyond
        out[good] = memory[name][places[good]]
        return out

    def store(name, places, values):
        good = inside(places)
        seen["other"] += int(name != "y")
        if not isinstance(values, torch.Tensor) or values.shape != places.shape:
            shape = getattr(values, "shape", None)
            raise ValueError(f"store: got values of shape {shape}, expected {places.shape}")
        if name == "y":
            y[places[good]] = values[good].to(y.dtype)
            stored.add_(torch.bincount(places[good], minlength=n))

    def load_opposite(name, places):
        return -memory[name][places.clamp(0, n - 1)]

    def store_opposite(name, places, values):
        good = (places >= 0) & (places < n)
        opposite[places[good]] = values[good].to(y.dtype)

    for program in programs:
        fn(load, store, n, block, program)
        if other:  # the same program of a kernel on -a and -b, whose counts do not matter
            fn(load_opposite, store_opposite, n, block, program)
    return {"y": y, "loads": [int(loads[k].min()) for k in "ab"],
            "most": [int(loads[k].max()) for k in "ab"],
            "stored": [int(stored.min()), int(stored.max())],
            "opposite": opposite if other else None, **seen}


@ex.law
def law(out, a, b, block, programs, other):
    expect_parts(out, "y", "loads", "most", "stored", "opposite", "beyond", "below", "other",
                 "foreign")
    a, b = a.double(), b.double()
    size = f"n {len(a)}, block {block}"
    expect_equal(f"positions beyond the end, {size}", out["beyond"], 0, "Stay below n.")
    expect_equal(f"positions below 0, {size}", out["below"], 0)
    expect_equal(f"positions of another program, {size}", out["foreign"], 0)
    expect_equal("stores to a name other than y", out["other"], 0)
    # By the tanh: sigmoid(a) = (1 + tanh(a / 2)) / 2.
    near = {"atol": 1e-7 * max(1e-3, float(b.abs().max()))}
    expect_close("values of y", out["y"], (a * (1 + (a / 2).tanh()) / 2 * b).float(), **near)
    if other:
        expect_close("values of y of the other kernel, on -a and -b", out["opposite"],
                     (a * (1 - (a / 2).tanh()) / 2 * b).float(), **near)
    else:
        expect_equal("another kernel", out["opposite"], None)
    expect_equal("fewest and most times that positions of y are stored", out["stored"], [1, 1])
    expect_equal("fewest times that positions of a and b are loaded", out["loads"], [1, 1])
    expect_equal("most times that positions of a and b are loaded", out["most"], [1, 1])


# ---- wrong, by name

KNOWN: dict = {}


@not_an_answer
def program_of(load, store, n, block, program, *, start=None, stop=None):
    start = program * block if start is None else start
    places = torch.arange(start, min(n, start + block) if stop is None else stop)
    a, b = load("a", places), load("b", places)
    store("y", places, a * torch.sigmoid(a) * b)


wrong = ex.edits(program_of)
RANGE = ("start = program * block if start is None else start\n    places = torch.arange(start, "
         "min(n, start + block) if stop is None else stop)")
PLACES = 'load("a", places), load("b", places)'
wrong("using no mask, so that the last program runs beyond the end", ("places", "example"),
      "start =", "stop = (program + 1) * block; start =")
wrong("handling one position beyond the end", "places",
      "start =", "stop = min(n + 1, (program + 1) * block); start =")
wrong("loading without a mask but storing with a mask", "places",
      RANGE, "places = program * block + torch.arange(block)",
      "store(", "inside = places < n; store(",
      "places, a * torch.sigmoid(a) * b", "places[inside], (a * torch.sigmoid(a) * b)[inside]")


# https://github.com/Dao-AILab/flash-attention/pull/2822
@ex.wrong("storing without a mask but loading with a mask", breaks=("places", "example"))
def store_unmasked(load, store, n, block, program):
    places = program * block + torch.arange(block)
    inside, y = places < n, torch.zeros(block)
    a, b = load("a", places[inside]), load("b", places[inside])
    y[inside] = a * torch.sigmoid(a) * b
    store("y", places, y)


wrong("wrapping positions beyond the end around to the beginning", ("programs", "example"),
      RANGE, "places = (program * block + torch.arange(block)) % n", says="another program")
wrong("giving program p the positions p, p + k, p + 2k and so on, with k programs",
      "programs",
      RANGE, "places = torch.arange(program, n, -(-n // block))")
wrong("clamping positions beyond the end to the last position", ("programs", "once"),
      RANGE, "places = (program * block + torch.arange(block)).clamp(max=n - 1)")


@ex.wrong("handling only whole blocks, so that the tail is never written",
          breaks=("programs", "one program"))
def tail_left(load, store, n, block, program):
    if (program + 1) * block <= n:
        program_of(load, store, n, block, program)


wrong("handling one position too few per block", "one program",
      "start =", "stop = min(n, (program + 1) * block - 1) if block > 1 else None; start =")


@ex.wrong("letting every program handle all positions", breaks="programs")
def everything(load, store, n, block, program):
    program_of(load, store, n, block, program, start=0, stop=n)


wrong("using the program's number as its first position", "programs",
      RANGE, "places = torch.arange(program, min(n, program + block) if stop is None else stop)")
wrong("counting blocks from 1", "places",
      "start =", "stop = min(n, program * block); start =",
      "program * block if start is None else start", "(program - 1) * block")


@ex.wrong("letting program 0 do all the work", breaks="programs")
def first_does_all(load, store, n, block, program):
    if program == 0:
        program_of(load, store, n, block, program, stop=n)


@ex.wrong("numbering the blocks from the end", breaks=("programs", "example"))
def from_the_end(load, store, n, block, program):
    program_of(load, store, n, block, -(-n // block) - 1 - program)


@ex.wrong("loading the values of a twice", says="times that positions", breaks="once")
def loaded_twice(load, store, n, block, program):
    places = torch.arange(program * block, min(n, (program + 1) * block))
    gate = torch.sigmoid(load("a", places))
    store("y", places, load("a", places) * gate * load("b", places))


@ex.wrong("storing the gate sigmoid(a) as well", breaks="once")
def two_stores(load, store, n, block, program):
    places = torch.arange(program * block, min(n, (program + 1) * block))
    a = load("a", places)
    gate = torch.sigmoid(a)
    store("gate", places, gate)
    store("y", places, a * gate * load("b", places))


wrong("storing under the name 'a' instead of 'y'", ("once", "store"), '"y"', '"a"')
wrong("filling y with zeros first", "programs",
      "start =",
      'places = torch.arange(program * block, min(n, (program + 1) * block)); store("y", places, '
      "torch.zeros(len(places))); start =")
wrong("computing y = sigmoid(a) * b, without the factor a",
      "one program", "a * torch.sigmoid(a)", "torch.sigmoid(a)")
wrong("using GELU instead of SiLU",
      "one program", "a * torch.sigmoid(a)", "torch.nn.functional.gelu(a)")
wrong("computing a * b without the gate", "one program", ".sigmoid", ".ones_like")


@ex.wrong("swapping the values of a and b", breaks="load")
def exchanged(load, store, n, block, program):
    places = torch.arange(program * block, min(n, (program + 1) * block))
    a, b = load("b", places), load("a", places)
    store("y", places, a * torch.sigmoid(a) * b)


wrong("using tanh instead of sigmoid", "one program", ".sigmoid", ".tanh")
wrong("computing e^a / (1 + e^a), which overflows",
      "large", "torch.sigmoid(a)", "a.exp() / (1 + a.exp())")
wrong("clamping b to the range -10 to 10",
      "large", 'load("b", places)', 'load("b", places).clamp(-10, 10)')
wrong("rounding the block down to a power of two", "programs",
      "start =", "stop = min(n, program * block + (1 << (block.bit_length() - 1))); start =")
wrong("storing the values in reverse order", "store",
      PLACES, 'load("a", places).flip(0), load("b", places).flip(0)')
wrong("caching a program's loaded values and reusing them in another kernel", "others",
      "start =",
      'if KNOWN.get("at") != (n, block, program) or KNOWN["uses"] == 2: KNOWN.update(at=(n, '
      'block, program), values={}, uses=0)\n    KNOWN["uses"] += 1; start =', PLACES,
      'KNOWN["values"].setdefault("a", load("a", places)), KNOWN["values"].setdefault("b", '
      'load("b", places))')
wrong("passing positions with one axis too many", "places",
      PLACES, 'load("a", places[:, None])[:, 0], load("b", places[:, None])[:, 0]',
      says="raised TypeError")
wrong("storing a single value for all positions", "store",
      "a * torch.sigmoid(a) * b", "(a * torch.sigmoid(a) * b)[0]", says="raised ValueError")


@ex.wrong("leaving out the example's last position", says="values of y", breaks="example")
def looked_up(load, store, n, block, program):
    if (n, block, program) != (5, 4, 1):
        program_of(load, store, n, block, program)
