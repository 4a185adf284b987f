"""Exercise 13.3, `draw`."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("13.3", "draw", seen=("probs", "rows", "seeds", "steps", "order", "pairs"),
              says="tokens")

ex.promise_table("""
one     | Draw one token for each row of a batch: (B,) int64, each from its own row. | of the
          tokens; tokens that do not exist; share of token
zeros   | probs: (B, V) float64. Each row sums to 1, up to rounding, and may contain zeros, which
          are never drawn. | tokens of probability 0; tokens that do not exist
numbers | Row r is for token number steps[r] of a request with seed seeds[r]; both are from 0 to
          2**31 - 1. | case large seeds; large steps; seed 0 and step 0
alone   | The token depends only on probs[r], seeds[r] and steps[r], not on other rows, the row's
          position, the batch size or earlier draws. | tokens that change
follows | The tokens of many steps of one request follow the row's probabilities. | share of token;
          tokens of probability 0; different tokens
seeds   | The tokens of many requests at one step also follow their rows' probabilities. | case over
          seeds; over seeds, far ahead; seed 0 and step 0
apart   | No two pairs of seed and step use the same random numbers, even if the pairs are
          neighbours, one request is some steps behind the other, or seed and step are exchanged. |
          equal tokens of two requests; share of tokens that are
still   | The generators of torch, numpy and Python do not advance. | generators that were moved
left    | Inputs are not changed. | values changed
example | Example: probs [[0., 1.], [1., 0.]], any seeds and steps give [1, 0]. | case the example
""")

# beyond those that the longest case holds
SHIFTS = (10_000, 65_536, 100_000, 1_000_003, 10**6, 2**20, 2**24, 10**9, 2**30)
LONGEST, FEWEST = 1100, 40                     # steps of a request, steps that are compared


@ex.cases
def cases(g):
    whole = integers(g)

    def some(rows, tokens):
        p = 0.1 + torch.rand(rows, tokens, generator=g, dtype=torch.float64)
        return p / p.sum(1, keepdim=True)

    def one(name, probs, seeds, steps, rows=None, pairs=0):
        """rows: which row of probs each draw asks; the first all by default."""
        n = len(seeds)
        # Tensors: a list of numbers is copied one by one, for each answer anew.
        return name, {"probs": probs, "seeds": torch.tensor(seeds).int(),
                      "steps": torch.tensor(steps).int(),
                      "rows": torch.tensor([0] * n if rows is None else rows).int(),
                      "pairs": pairs, "order": torch.randperm(n, generator=g)[:12].int()}

    def two(name, pairs):
        """40 draws beside 40 others: (seed, step, seed of the other, step of the other)."""
        a, b, c, d = zip(*pairs, strict=True)
        return one(name, some(1, 60), [*a, *c], [*b, *d], pairs=len(pairs))

    def apart(name, seed, other, shift):
        """40 draws of one request and of another that is so many steps behind."""
        return two(name, [(seed, shift + i, other, i) for i in range(40)])

    s, n = 2 * whole(25, 2500), 400
    holes = some(1, 6)
    holes[0, [0, 3, 5]] = 0.0
    holes = holes / holes.sum()
    long_tail = torch.full((1, 51), 0.01, dtype=torch.float64)
    long_tail[0, whole(0, 51)] = 0.5
    far = [one_seed for one_seed in torch.randint(2**31 - 1, (60,), generator=g).tolist()]
    return [one("some requests", some(6, 9), [whole(0, 999) for _ in range(6)],
                [whole(0, 99) for _ in range(6)], rows=list(range(6))),
            one("over the steps", some(1, 4), [s] * n, list(range(n))),
            one("over the steps, two tokens", torch.tensor([[0.15, 0.85]], dtype=torch.float64),
                [s + 1] * n, list(range(n))),
            one("over seeds", some(1, 4), list(range(s, s + n)), [0] * n),
            one("over seeds, far ahead", some(1, 3), list(range(n)), [1000 + s] * n),
            one("a likely token and fifty unlikely ones", long_tail, [s] * n, list(range(n))),
            one("zeros in the row", holes, [s + 2] * n, list(range(n))),
            one("large seeds", some(1, 3), [2**31 - 1 - i for i in range(n)], [7] * n),
            one("large steps", some(1, 3), [s] * n, [2**31 - 1 - i for i in range(n)]),
            one("seed 0 and step 0", some(1, 3), [0, 0, 5, 9] * 15 + list(range(240)),
                [0, 8, 0, 0] * 15 + list(range(240))),
            one("one row", some(1, 7), [s], [3]),
            one("a certain token", torch.eye(4, dtype=torch.float64), [s] * 4, [1] * 4,
                rows=[0, 1, 2, 3]),
            one("many requests of one step", some(20, 12), far[:20], [5] * 20,
                rows=list(range(20))),
            one("the same seeds in one batch", some(1, 30), [s] * 20, [4, 5] * 10),
            *[apart(f"{d} steps behind the neighbour", s, s + 1, d) for d in SHIFTS],
            one("two neighbours at all distances", some(1, 60), [s] * LONGEST + [s + 1] * LONGEST,
                [*range(LONGEST), *range(LONGEST)], pairs=-LONGEST),
            *[apart(f"seeds {d} apart", s, s + d, 0) for d in (100, 256, 65_536)],
            *[two(f"one step and {d} seeds away", [(s + d, i, s, i + 1) for i in range(40)])
              for d in (1000, 65_536, 10**6, 2**20)],
            # Seeds times the golden ratio of 32 bits, plus the step.
            apart("1,640,531,535 steps behind the neighbour", s + 1, s, 1_640_531_535),
            two("65,536 seeds away at every second step",
                [(s + 65_536, 2 * i, s, 2 * i + 1) for i in range(40)]),
            apart("side by side with the neighbour", s, s + 1, 0),
            apart("far apart", far[0], far[1], 0),
            two("seed and step change places", [(s + i, i, i, s + i) for i in range(40)]),
            two("seed and step change places, from 1 on",
                [(s + i, i, i + 1, s + i - 1) for i in range(40)]),
            two("digits of seed and step that run together",
                [(s, 10 * d + i, 10 * s + d, i) for d in (1, 4, 7, 9) for i in range(10)]),
            two("steps 0 and 1 of many requests", [(s + i, 0, s + i, 1) for i in range(40)]),
            one("many tokens", torch.full((1, 4000), 1 / 4000, dtype=torch.float64), [s] * n,
                list(range(n))),
            one("equal tokens, step by step", torch.full((1, 8), 1 / 8, dtype=torch.float64),
                [s] * n, list(range(n))),
            one("the example", torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64),
                [whole(0, 99), whole(0, 99)], [whole(0, 9), whole(0, 9)], rows=[0, 1])]


@ex.act
def act(fn, probs, rows, seeds, steps, order, pairs):
    import random

    import numpy as np

    def states():
        kind, keys, *rest = np.random.get_state()
        return {"torch": torch.get_rng_state().numpy().tobytes(), "Python": random.getstate(),
                "numpy": [kind, keys.tobytes(), rest]}

    given, seeds, steps, order = probs[rows], seeds.tolist(), steps.tolist(), order.tolist()
    mine, seeded, stepped = given.clone(), list(seeds), list(steps)
    before = states()
    together = fn(mine, seeded, stepped)
    moved = [name for name, state in states().items() if state != before[name]]
    changed = int((mine != given).sum()) + (seeded != seeds) + (stepped != steps)
    kept = together.clone() if isinstance(together, torch.Tensor) else together
    part = fn(given[order], [seeds[i] for i in order], [steps[i] for i in order])
    alone = [fn(given[i:i + 1].clone(), seeds[i:i + 1], steps[i:i + 1]) for i in order[:4]]
    alone = [one.tolist() if isinstance(one, torch.Tensor) else one for one in alone]
    return {"together": kept, "part": part, "alone": alone, "moved": moved, "changed": changed}


@ex.law
def law(out, probs, rows, seeds, steps, order, pairs):
    expect_parts(out, "together", "part", "alone", "moved", "changed")
    tokens, n = out["together"], len(rows)
    seeds, steps, order = seeds.tolist(), steps.tolist(), order.tolist()
    expect_like("tokens", tokens, torch.empty(n, dtype=torch.int64))
    expect_like("tokens", out["part"], torch.empty(len(order), dtype=torch.int64))
    expect_equal("generators that were moved", out["moved"], [], "Use a generator of your own.")
    expect_equal("values changed in the arguments", out["changed"], 0)
    if tokens.min() < 0 or tokens.max() >= probs.shape[1]:
        raise Broken("tokens that do not exist", int(tokens.max()), f"0 to {probs.shape[1] - 1}")
    chances = probs[rows, tokens]
    expect_equal("tokens of probability 0 that were drawn", int((chances == 0).sum()), 0)
    if pairs < 0:
        meet(tokens[:-pairs], tokens[-pairs:])
    elif pairs:
        same = int((tokens[:pairs] == tokens[pairs:]).sum())
        if same > pairs // 2:
            raise Broken("equal tokens of two requests", f"{same} of {pairs}", "few",
                         f"For example, seed {seeds[0]} at step {steps[0]} and seed "
                         f"{seeds[pairs]} at step {steps[pairs]}.")
    elif probs.shape[1] > 1000:
        different, wanted = len(set(tokens.tolist())), probs.shape[1] * (
            1 - (1 - 1 / probs.shape[1]) ** n)
        if different < 0.93 * wanted:
            raise Broken(f"different tokens of {n} draws", different, f"about {wanted:.0f}",
                         f"All {probs.shape[1]} tokens are equally likely. Is your random number "
                         "too coarse?")
    elif n >= 200:
        shares(tokens[list({pair: i for i, pair in enumerate(zip(seeds, steps))}.values())],
               probs[0])
        if probs.shape[1] == 8:
            follow(tokens, 8, seeds[0])
    changes = int((out["part"] != tokens[order]).sum())
    expect_equal("tokens that change in another batch", changes, 0,
                 f"The other batch has {len(order)} of the {n} rows, in a different order.")
    for one in out["alone"]:
        expect_length("tokens of a batch of one", one, 1)
        expect_type("token of a batch of one", one[0], int)
    changes = sum(one != [int(tokens[i])] for one, i in zip(out["alone"], order))
    expect_equal("tokens that change in a batch of one", changes, 0)


def shares(tokens, row):
    """Raise Broken where tokens, each of another seed or step, do not come as often as they should.
    """
    n = len(tokens)
    for token, p in enumerate(row.tolist()):
        got, room = int((tokens == token).sum()), 5.5 * (n * p * (1 - p)) ** 0.5 + 3
        if abs(got - n * p) > room:
            raise Broken(f"share of token {token} of {n} draws", round(got / n, 3), round(p, 3))
    few = row < row.max() / 10
    got, p = int(few[tokens].sum()), float(row[few].sum())
    if abs(got - n * p) > 5.5 * (n * p * (1 - p)) ** 0.5:
        raise Broken(f"share of tokens below a tenth of the likeliest, of {n} draws",
                     round(got / n, 3), round(p, 3))


def follow(tokens, v, seed):
    """Raise Broken where equally likely tokens of neighbouring steps hang together."""
    n = len(tokens) - 1
    for step, count in enumerate(torch.bincount((tokens[:-1] - tokens[1:]) % v, minlength=v)):
        if abs(count - n / v) > 6 * (n / v) ** 0.5:
            raise Broken(f"share of tokens that are {step} less than the token one step earlier",
                         round(int(count) / n, 3), round(1 / v, 3),
                         f"The seed is {seed}, and {v} tokens are equally likely. Do two steps "
                         "use the same numbers?")


def meet(one, other):
    """Raise Broken where two requests, or one and itself later, draw alike at some distance."""
    for a, b, whose in ((one, other, "two requests"), (other, one, "two requests"),
                        (one, one, "two requests, here of one request and itself later")):
        n = len(a)
        # Row d: b, d steps later, with no token at all in its first d places.
        later = torch.cat([torch.full((n,), -1), b]).unfold(0, n, 1).flip(0)[:n - FEWEST]
        for d, same in enumerate((later == a).sum(1).tolist()):
            if same > 0.3 * (n - d) and not (d == 0 and a is b):
                raise Broken(f"equal tokens of {whose}", f"{same} of {n - d}", "few",
                             f"Their seeds are equal or neighbours, and their steps are {d} apart.")


# ---- wrong, by name

@lru_cache(2**16)
def drawn(*entropy):
    """The first number of numpy's generator with this seed; most answers ask for the same ones."""
    return np.random.default_rng(entropy).random()


@lru_cache(2**16)
def first(seed):
    """The first number of torch's generator with this seed."""
    return torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).item()


def mixed(seed, step):
    """A number of 32 bits for both."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1)[0])


@not_an_answer
def made(probs, seeds, steps):
    u = torch.tensor([drawn(seed, step) for seed, step in zip(seeds, steps)])
    ends = probs.cumsum(1)
    found = (ends <= u[:, None] * ends[:, -1:]).sum(1)
    return found


wrong = ex.edits(made)
START, DRAWN, END = "u =", "drawn(seed, step)", "return found"
FOUND = "(ends <= u[:, None] * ends[:, -1:]).sum(1)"


@ex.wrong("using one generator for the whole batch, seeded with the first row's seed",
          breaks="alone")
def one_generator(probs, seeds, steps):
    dice = torch.Generator().manual_seed(mixed(seeds[0], steps[0]))
    return torch.multinomial(probs, 1, generator=dice)[:, 0]


# https://github.com/vllm-project/vllm/issues/51226
@ex.wrong("drawing with torch's global generator",
          says="", breaks=("still", "alone"))
def of_torch(probs, seeds, steps):
    return torch.multinomial(probs, 1)[:, 0]


@ex.wrong("reseeding torch's global generator for each row", breaks="still")
def seeded_torch(probs, seeds, steps):
    found = []
    for row, seed, step in zip(probs, seeds, steps):
        torch.default_generator.manual_seed(mixed(seed, step))
        found.append(int(torch.multinomial(row, 1)))
    return torch.tensor(found)


def by_multinomial(probs, seeds, steps, *, seed_of):
    """Tokens as torch draws them from a generator that each row gets."""
    found = [torch.multinomial(row, 1, generator=torch.Generator().manual_seed(seed_of(*pair)))
             for row, *pair in zip(probs, seeds, steps)]
    return torch.cat(found)


ex.wrong("seeding torch's generator for each row with seed + step", by_multinomial, breaks="apart",
         seed_of=lambda seed, step: seed + step)
ex.wrong("seeding torch's generator for each row with the seed alone", by_multinomial, says="",
         breaks=("follows", "alone", "apart"), seed_of=lambda seed, step: seed)
wrong("reseeding numpy's global generator for each row", "still",
      DRAWN, "(np.random.seed([seed, step]), np.random.random())[1]")
wrong("reseeding Python's global generator for each row", "still",
      START, "import random; u =", DRAWN, '(random.seed(f"{seed},{step}"), random.random())[1]')
wrong("including the row's position in the seed", "alone",
      f"{DRAWN} for seed, step in zip(seeds, steps)",
      "drawn(*pair, r) for r, pair in enumerate(zip(seeds, steps))")
# https://github.com/NVIDIA/TensorRT-LLM/pull/17172
wrong("keeping one generator for each position in the batch", "alone",
      START, "seeds = [seeds[0] + 7 * r for r in range(len(seeds))]; u =")
wrong("ignoring the step", ("follows", "alone", "apart"), DRAWN, "first(seed)", says="")
wrong("ignoring the seed, or shifting it into bits that torch's generator ignores",
      ("apart", "seeds", "numbers"), DRAWN, "first((seed << 32) + step)", says="")
wrong("using seed + step as the seed", "apart", DRAWN, "first(seed + step)")
wrong("using seed - step as the seed",
      ("apart", "follows"), DRAWN, "first(abs(seed - step))", says="")
wrong("using 31 * seed + step as the seed", "apart", DRAWN, "first(31 * seed + step)")
wrong("using the same random number for two consecutive steps", ("apart", "follows"),
      DRAWN, "drawn(seed, step // 2)", says="")
wrong("using only the last two digits of the seed", ("apart", "seeds", "numbers"),
      DRAWN, "drawn(seed % 100, step)", says="")
wrong("using 1000 * seed + step as the seed", "apart", DRAWN, "first(1000 * seed + step)")
wrong("using a product of seed and step as the seed", ("seeds", "numbers"),
      DRAWN, "first((seed * step * 7 + (step > 5) * seed * 13) % 2**63)", says="")
wrong("using 1000003 * seed + step as the seed",
      "apart", DRAWN, "first(1_000_003 * seed + step)")
wrong("using 10**6 * seed + step as the seed",
      "apart", DRAWN, "drawn(10**6 * seed + step)")
wrong("using (seed << 20) + step as the seed",
      "apart", DRAWN, "drawn((seed << 20) + step)")
wrong("using 10**6 * step + seed as the seed",
      "apart", DRAWN, "drawn(10**6 * step + seed)")
wrong("using (256 * seed) ^ step as the seed",
      "apart", DRAWN, "first((seed << 8) ^ step)")
wrong("using seed ^ (step << 16) as the seed", "apart", DRAWN, "first(seed ^ (step << 16))")
wrong("using 2654435761 * seed + step in 32 bits as the seed", "apart",
      DRAWN, "first((seed * 2_654_435_761 + step) % 2**32)")
wrong("sorting seed and step, so that exchanging them changes nothing",
      "apart", DRAWN, "drawn(*sorted([seed, step]))")
wrong("joining the digits of seed and step into one number",
      "apart", DRAWN, 'drawn(int(f"{seed}{step}"))')
wrong("using seed * (step + 1) as the seed", ("apart", "seeds", "numbers"),
      DRAWN, "drawn(seed * (step + 1))", says="")
wrong("truncating the step to ten bits", ("apart", "numbers"),
      DRAWN, "drawn(seed, step % 1024)", says="")
wrong("truncating the seed to 16 bits", ("apart", "numbers"),
      DRAWN, "drawn(seed % 65_536, step)", says="")
wrong("treating steps 0 and 1 as the same step", ("apart", "numbers", "seeds"),
      DRAWN, "drawn(seed, max(step, 1))", says="")
wrong("drawing a random number with only three digits", "follows",
      DRAWN, f"int(1000 * {DRAWN}) / 1000", says="different tokens")
# numpy's counter goes on by one for four numbers, so the next step begins where this one went on
ex.wrong("drawing one number per entry of the row, from a counter that starts at the step",
         lambda probs, seeds,
         steps: torch.tensor([int((torch.from_numpy(np.random.Generator(np.random.Philox(
             key=seed, counter=step)).gumbel(size=len(row))) + row.log()).argmax())
             for row, seed, step in zip(probs, seeds, steps)]), breaks="apart",
         says="")
wrong("always taking the likeliest token",
      ("follows", "apart"), FOUND, "probs.argmax(1)", says="share of token")
wrong("drawing all tokens with equal probability", ("follows", "zeros", "example", "seeds"),
      FOUND, "(u * probs.shape[1]).long()", says="")
wrong("squaring the probabilities", "follows",
      START, "probs = probs.square(); u =", says="share of token")
wrong("never drawing a token less than a tenth as likely as the likeliest", "follows",
      START, "probs = torch.where(probs < probs.amax(1, keepdim=True) / 10, 0.0, probs); u =",
      says="share of token")
wrong("returning the token's number plus 1",
      ("one", "zeros", "follows", "example"), FOUND, f"{FOUND} + 1", says="")
wrong("returning a list of tokens", "one", END, "return found.tolist()", says="type of the tokens")
wrong("returning int32", "one", END, "return found.int()", says="dtype of the tokens")
wrong("leaving an axis of size 1 in the result",
      "one", END, "return found[:, None]", says="shape of the tokens")
wrong("returning the probability instead of the token", "one",
      END, "return probs.gather(1, found[:, None])[:, 0]", says="dtype of the tokens")


class Kept:
    """Generators that go on where they were left."""

    def __init__(self):
        self.dice = {}

    def __call__(self, seed, step):
        dice = self.dice.setdefault(seed, np.random.default_rng(seed))
        return dice.random()


@ex.wrong("keeping a generator for each seed from call to call",
          breaks=("alone", "numbers"), says="")
def kept(probs, seeds, steps, generators=Kept()):  # noqa: B008
    u = torch.tensor([generators(*pair) for pair in zip(seeds, steps)])
    return (probs.cumsum(1) <= u[:, None]).sum(1).clamp(max=probs.shape[1] - 1)


@ex.wrong("computing the cumulative sum in place, which overwrites probs", breaks="left")
def in_place(probs, seeds, steps):
    found = made(probs, seeds, steps)
    torch.cumsum(probs, 1, out=probs)
    probs *= 2
    return found
