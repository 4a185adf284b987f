"""Exercise 15.5, `balance`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("15.5", "balance", seen=("p", "chosen", "real", "scale"), says="balance")

ex.promise_table("""
uneven  | Measure how unevenly a router uses its experts, as a loss that the router can lower: E
          times the sum over experts of fraction times mean probability. | balance; gradient of p
p       | p: (T, E) float32, the probabilities for each token; each row sums to 1. | case one token;
          as many tokens as experts; one expert; many experts
chosen  | chosen: (T, k) int64, the k different experts of each token, chosen by any rule. | case
          chosen by another rule; the least likely chosen; likeliest last
real    | real: (T,) bool, False for padding, which does not count, and True for at least one
          token. | case padding at the end; padding in front; padding in between; one real token
share   | An expert's fraction, which can be 0, is its share of all choices that the real tokens
          make. | case the last experts idle; one expert for all; two experts for all; the first
          experts idle
mean    | The mean probability is taken over the real tokens, for all E experts. | case the last
          experts idle; two of eight; the least likely chosen; as many tokens as experts
form    | Returns a float32 tensor of shape (). | type of the; shape of the; dtype of the
one     | The result is 1 if fractions and mean probabilities are even, for every E and k. | case
          even, one; even, two; even, all
flow    | The gradient flows to p through the mean probabilities; the fractions are constants. |
          gradient of p; unusable; led to
left    | Inputs are not changed. | values changed
example | Example: p [[0.8, 0.2], [0.6, 0.4]], chosen [[0], [1]], real [True, False] give 1.6, and
          its gradient is [[2., 0.], [0., 0.]]. | case the example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, tokens, experts, k, rule="likeliest", shift=None, spread=1.0, pads=()):
        logits = spread * torch.randn(tokens, experts, generator=g)
        if shift is not None:
            logits = logits + shift(torch.arange(experts))
        p = logits.softmax(-1)
        by = {"likeliest": p, "least": -p, "last": p,
              "random": torch.rand(tokens, experts, generator=g)}[rule]
        chosen = by.topk(k, -1).indices
        if rule == "last":
            chosen = chosen.flip(-1)
        real = torch.ones(tokens, dtype=torch.bool)
        for place in pads:
            real[place] = False
            chosen[place] = torch.arange(k)  # all pads are the same token
            p[place] = p[pads[0]]
        return name, {"p": p, "chosen": chosen, "real": real, "scale": 0.5 + whole(1, 5) / 2}

    def even(name, experts, k):
        turns = (torch.arange(experts)[:, None] + torch.arange(k)) % experts
        return name, {"p": torch.full((experts, experts), 1 / experts), "chosen": turns,
                      "real": torch.ones(experts, dtype=torch.bool), "scale": 1.5}

    t, pads = whole(9, 14), whole(3, 6)
    return [one("one of four", t, 4, 1), one("two of eight", t + 3, 8, 2),
            one("three of five", t, 5, 3), one("many experts", t, 40, 2),
            one("one token", 1, 5, 2), one("as many tokens as experts", 6, 6, 2),
            one("one expert", 4, 1, 1), one("peaked probabilities", t, 6, 2, spread=8.0),
            one("the last experts idle", t, 6, 2, shift=lambda e: -20.0 * (e > 2)),
            one("the first experts idle", t, 6, 2, shift=lambda e: -20.0 * (e < 3)),
            one("one expert for all", t, 4, 1, shift=lambda e: 30.0 * (e == 1)),
            one("two experts for all", t, 4, 2, shift=lambda e: 30.0 * (e % 3 == 0)),
            one("chosen by another rule", t, 6, 2, "random"),
            one("the least likely chosen", t, 6, 2, "least"),
            one("likeliest last", t, 6, 3, "last"), even("even, one", whole(3, 7), 1),
            even("even, two", whole(4, 8), 2), even("even, all", 3, 3),
            one("padding at the end", t, 11, 2, pads=range(t - pads, t)),
            one("padding in front", t, 3, 1, pads=range(pads)),
            one("padding in between", t, 8, 3, pads=range(1, t, 2)),
            one("one real token", 4, 3, 1, pads=(0, 1, 3)),
            ("the example", {"p": torch.tensor([[0.8, 0.2], [0.6, 0.4]]),
                             "chosen": torch.tensor([[0], [1]]),
                             "real": torch.tensor([True, False]), "scale": 1.0})]


@ex.act
def act(fn, p, chosen, real, scale):
    mine, given, mask = p.clone().requires_grad_(), chosen.clone(), real.clone()
    found = fn(mine, given, mask)
    if isinstance(found, torch.Tensor) and found.numel() == 1 and found.requires_grad:
        (scale * found.sum()).backward()
    grad = torch.zeros_like(mine) if mine.grad is None else mine.grad
    return {"found": found.detach() if isinstance(found, torch.Tensor) else found, "grad": grad,
            "moved": int((mine.detach() != p).sum() + (given != chosen).sum()
                         + (mask != real).sum())}


@ex.law
def law(out, p, chosen, real, scale):
    expect_parts(out, "found", "grad", "moved")
    expect_equal("values changed in the arguments", out["moved"], 0, "Work on copies.")
    experts, k, counts, sums = p.shape[1], chosen.shape[1], [0] * p.shape[1], [0.0] * p.shape[1]
    tokens = int(real.sum())
    for row, picks, counts_in in zip(p.tolist(), chosen.tolist(), real.tolist(), strict=True):
        if counts_in:
            sums = [a + b for a, b in zip(sums, row, strict=True)]
            for expert in picks:
                counts[expert] += 1
    shares = [count / (tokens * k) for count in counts]
    means = [total / tokens for total in sums]
    wanted = experts * sum(a * b for a, b in zip(shares, means))
    look = (f"There are {tokens} real tokens with {k} of {experts} experts each; the counts are "
            f"{counts[:8]}.")
    expect_type("balance", out["found"], torch.Tensor, look)
    expect_close("balance", out["found"], torch.tensor(wanted, dtype=torch.float32),
                 rtol=1e-4, look=look)
    slope = torch.tensor([experts * share / tokens * scale for share in shares])
    expect_close("gradient of p", out["grad"], slope * real[:, None], rtol=1e-3, look=look)


# ---- wrong, by name

@not_an_answer
def made(p, chosen, real):
    p, chosen = p[real], chosen[real]
    experts = p.shape[1]
    share = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
    return experts * (share * p.mean(0)).sum()


def hot(p, chosen):
    """1 where a token's expert was chosen, (T, E)."""
    return F.one_hot(chosen, p.shape[1]).float().sum(1)


wrong = ex.edits(made)
START, MEAN, BOTH = "experts =", "p.mean(0)", "share * p.mean(0)"
ROWS = "p, chosen = p[real], chosen[real]"
LOSS = f"experts * ({BOTH}).sum()"
# https://github.com/CASIA-LMC-Lab/AnomalyMoE/issues/1
wrong("using the fractions in place of the mean probabilities",
      ("uneven", "flow", "example", "mean"), MEAN, "share")
wrong("using the mean probabilities in place of the fractions",
      ("uneven", "flow", "example", "chosen"),
      BOTH, "p.mean(0) * p.mean(0)")
# https://github.com/huggingface/transformers/issues/28093
wrong("averaging the probabilities over the experts as well as the tokens",
      ("uneven", "mean", "example"), MEAN, "p.mean(1).mean()")
wrong("detaching the result", "flow", LOSS, f"({LOSS}).detach()", says="gradient of p")
# https://github.com/mindspore-ai/hyper-parallel/issues/752
wrong("averaging probabilities over the choices, not over all tokens", ("uneven", "mean", "flow"),
      BOTH, "share[:, None] * p.gather(1, chosen).mean(0) / chosen.shape[1]")
wrong("leaving out E, or taking the mean over experts instead of the sum",
      ("uneven", "one", "example"),
      "return experts * ", "return ")
wrong("multiplying by k instead of E", ("uneven", "one", "example"),
      "return experts", "return chosen.shape[1]")
wrong("summing the probabilities over the tokens instead of averaging",
      ("uneven", "mean"), MEAN, "p.sum(0)")
# https://github.com/jingyaogong/minimind/issues/797
wrong("dividing the counts by T, so that the fractions add up to k",
      ("uneven", "one", "share"), "chosen.numel()", "len(chosen)")
wrong("counting only the first choice of each token", ("uneven", "chosen", "share"),
      START, "chosen = chosen[:, :1]; experts =")
wrong("counting the likeliest expert, whatever was chosen", ("uneven", "chosen", "share"),
      START, "chosen = p.argmax(1, keepdim=True); experts =")
wrong("counting the k likeliest experts, whatever was chosen", ("chosen", "one"),
      START, "chosen = p.topk(chosen.shape[1], -1).indices; experts =")
# https://github.com/AI-Hypercomputer/maxtext/pull/1433
wrong("using only the probabilities of the chosen experts", ("uneven", "mean", "flow"),
      MEAN, "(p * hot(p, chosen)).mean(0)")
wrong("dividing the probabilities of the chosen experts by their sum", ("uneven", "mean", "flow"),
      MEAN, "F.normalize(p * hot(p, chosen), p=1, dim=1).mean(0)")
wrong("counting without minlength, which leaves out the last experts",
      ("share", "chosen", "uneven", "p", "mean", "real"), ", minlength=experts", "", says="")
wrong("deriving E from the largest expert index that was chosen", ("share", "uneven", "p"),
      "return experts", "return (chosen.max() + 1)")
wrong("leaving idle experts out of E", ("share", "uneven"),
      "return experts", "return len(chosen.unique())")
wrong("subtracting 1, so that an even load gives 0",
      ("uneven", "one", "example"), LOSS, f"{LOSS} - 1")
wrong("taking the squared coefficient of variation of the mean probabilities", "uneven",
      LOSS, "p.mean(0).var(unbiased=False) / p.mean(0).mean() ** 2")
wrong("taking the squared distance between fractions and mean probabilities", ("uneven", "example"),
      LOSS, "((share - p.mean(0)) ** 2).sum() + 1")
wrong("returning one number per expert", "form", ".sum()", "", says="shape of the")
wrong("leaving an axis of size 1 in the result",
      "form", LOSS, f"({LOSS})[None]", says="shape of the")
wrong("returning a Python number", ("form", "flow"), ".sum()", ".sum().item()", says="type of the")
wrong("returning float64", "form", ".sum()", ".sum().double()", says="dtype of the")
wrong("adding 1 to the caller's expert indices in place", "left", ROWS, f"given = chosen; {ROWS}",
      "return", "given.add_(1); return", says="values changed")
# https://github.com/huggingface/transformers/pull/28517
wrong("copying the lesson's repair, which also counts padding", ("real", "example"), ROWS, "pass")
wrong("counting the choices of padding in the fractions", ("real", "example"), ROWS, "p = p[real]")
wrong("averaging the probabilities over real tokens and padding", ("real", "example"),
      ROWS, "chosen = chosen[real]")
wrong("setting the probabilities of padding to 0, but dividing by all T tokens",
      ("real", "example"), ROWS, "p, chosen = p * real[:, None], chosen[real]")
wrong("setting the choices of padding to 0, which counts them as expert 0", "real",
      ROWS, "p, chosen = p[real], chosen * real[:, None]")
