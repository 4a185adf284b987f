"""Why scores are divided by the root of d: softmax weights of random queries and keys."""

import math
from functools import lru_cache

import torch

from dlsys_helpers.explorers import Choice, Columns, Grip, Lines, Slider, explorer

SIZES = [1, 4, 16, 64, 256, 1024]
QUERIES = 400
DIVISORS = {"nothing": lambda d: 1.0, "root of d": math.sqrt, "d": float}  # noqa: ARG005
RANKS = 8  # the largest weights that are drawn


@lru_cache(maxsize=len(SIZES) * 3)
def scores(d, keys):
    """Products of QUERIES random queries with random keys of their own, (QUERIES, keys)."""
    g = torch.Generator().manual_seed(d)
    q = torch.randn(QUERIES, 1, d, generator=g, dtype=torch.float64)
    # One key after the other: all at once would be a gigabyte at d = 1024.
    return torch.stack([(q[:, 0] * torch.randn(QUERIES, d, generator=g, dtype=torch.float64)).sum(1)
                        for _ in range(keys)], 1)


def weights(d, keys, divisor):
    """Softmax weights (QUERIES, keys) of the scores divided by the chosen divisor."""
    return (scores(d, keys) / DIVISORS[divisor](d)).softmax(1)


def entropy(p):
    """Mean entropy of the rows, in nats."""
    return float(torch.special.entr(p).sum(1).mean())


@explorer(
    title="Softmax against d: what the root is for",
    controls=[
        Choice("divisor", "Scores divided by", DIVISORS, "nothing"),
        Slider("d", "d, numbers in a query", SIZES, 64),
        Slider("keys", "Keys", [8, 32, 128], 32),
    ],
    views=[
        Columns("rank", {"mean_weight": "mean weight"}, levels={"even": "all keys alike"},
                title="The largest weights of a query", xlabel="key, from the largest weight on",
                ylabel="weight", ylim=(0, 1)),
        Lines("log_d", {"nothing": "by nothing", "root": "by the root of d", "by_d": "by d"},
              title="Entropy of the weights, scores divided", xlabel="log2 of d",
              ylabel="entropy, nats", xlim=(0, 10), ylim=(0, 5), mark="here",
              grips=[Grip("d", x=math.log2)]),
    ],
)
def softmax_scale(divisor, d, keys):
    """Mean weights by rank, and the entropy for each size and divisor."""
    p = weights(d, keys, divisor)
    ordered = p.sort(1, descending=True).values[:, :RANKS].mean(0)
    curves = {name: [entropy(weights(size, keys, by)) for size in SIZES]
              for name, by in zip(("nothing", "root", "by_d"), DIVISORS, strict=True)}
    spread = float((scores(d, keys) / DIVISORS[divisor](d)).std())
    sentence = (f"d = {d}, scores divided by {divisor}: their standard deviation is {spread:.2f}. "
                f"Over {keys} keys the largest weight is {float(p.amax(1).mean()):.2f} on average, "
                f"and the entropy {entropy(p):.2f} nats of at most {math.log(keys):.2f}. The mean "
                f"slope of a weight, p (1 - p), is {float((p * (1 - p)).mean()):.4f}.")
    return {"rank": range(1, RANKS + 1), "mean_weight": ordered, "even": [1 / keys],
            "log_d": [math.log2(size) for size in SIZES], "here": [math.log2(d)],
            **curves}, sentence
