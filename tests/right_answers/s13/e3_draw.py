"""Exercise 13.3, `draw`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch

from dlsys_checks.s13.e3_draw import ex, made
from dlsys_helpers.judging import edited


@ex.right("torch's generator, seeded by a hash")
def hashed_seed(probs, seeds, steps):
    found = []
    for row, *pair in zip(probs, seeds, steps):
        digest = hashlib.sha256(repr(pair).encode()).digest()
        dice = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
        found.append(torch.multinomial(row, 1, generator=dice))
    return torch.cat(found)


@ex.right("a hash as the number itself, searched")
def hashed_number(probs, seeds, steps):
    u = [int(hashlib.md5(f"{a},{b}".encode()).hexdigest(), 16) / 2**128
         for a, b in zip(seeds, steps)]
    ends = probs.cumsum(1)
    at = torch.tensor(u, dtype=torch.float64)[:, None] * ends[:, -1:]
    return torch.searchsorted(ends, at, right=True)[:, 0]


@ex.right("Python's Random of a text")
def by_text(probs, seeds, steps):
    tokens = []
    for row, seed, step in zip(probs.tolist(), seeds, steps):
        tokens += random.Random(f"{seed}/{step}").choices(range(len(row)), row)
    return torch.tensor(tokens, dtype=torch.long)


@ex.right("Gumbel numbers of numpy's seed sequence")
def by_gumbel(probs, seeds, steps):
    best = []
    for row, seed, step in zip(probs, seeds, steps):
        noise = np.random.default_rng(np.random.SeedSequence([step, seed])).gumbel(size=len(row))
        best.append((row.log() + torch.from_numpy(noise)).argmax())
    return torch.stack(best)


LINE = "tokens.append((ends <= dice.random() * ends[-1]).sum()) -> "
ex.equivalent("ends = row.cumsum(0) -> ends = row.cumsum(-1)", "a row has one axis")
ex.equivalent(LINE + "tokens.append((ends < dice.random() * ends[-1]).sum())",
              "the number meets an end once in 2**53 draws")
ex.equivalent(LINE + "tokens.append((ends <= dice.random() / ends[-1]).sum())",
              "a row sums to 1, up to rounding")
ex.equivalent(LINE + "tokens.append((ends <= dice.random()).sum())",
              "a row sums to 1, up to rounding")
ex.probe("large seeds cut to 16 bits", lambda probs, seeds, steps: made(
    probs, [0 if s > 2**30 else s for s in seeds], steps), breaks="numbers", says="")
ex.probe("the last token never", breaks="zeros", says="", fn=edited(
    made, ("(ends <= u[:, None] * ends[:, -1:]).sum(1)",
           "torch.where((probs > 0).all(1), (ends <= u[:, None]).sum(1), 0)"), "13.3, the last"))
ex.probe("over seeds at step 0 and far ahead always the first", breaks="seeds", says="", fn=edited(
    made, ("drawn(seed, step) for", "0.0 if step == 0 or (1000 <= step < 6100 and seed < 400) else "
           "drawn(seed, step) for"), "13.3, the first"))
ex.probe("the example looked up wrong", lambda probs, seeds, steps: (
    torch.tensor([1, 1]) if probs.shape == (2, 2) and probs[0, 0] == 0 and probs[1, 1] == 0
    else made(probs, seeds, steps)), breaks="example", says="")
