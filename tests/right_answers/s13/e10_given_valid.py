"""Exercise 13.10, `given_valid`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch

from dlsys_checks.s13.e10_given_valid import ex, made
from dlsys_helpers.judging import edited


@ex.right("token by token, minus the largest")
def by_hand(logprob, words):
    sums = []
    for word in words:
        total, begin = 0.0, []
        for token in word:
            total += float(logprob(begin)[token])
            begin = [*begin, token]
        sums.append(total)
    shares = [math.exp(s - max(sums)) for s in sums]
    return torch.tensor([s / sum(shares) for s in shares], dtype=torch.double)


@ex.right("logsumexp at the end")
def by_logsumexp(logprob, words):
    total = torch.stack([torch.stack([logprob(word[:i])[word[i]] for i in range(len(word))]).sum()
                         for word in words])
    return (total - total.logsumexp(0)).exp()


@ex.right("masks at each step, and what they took away put back")
def put_back(logprob, words):
    total = torch.zeros(len(words), dtype=torch.float64)
    for n, word in enumerate(words):
        for i, token in enumerate(word):
            row = logprob(word[:i])
            allowed = sorted({w[i] for w in words if w[:i] == word[:i]})
            share = row[allowed].logsumexp(0)
            if share == -math.inf:
                total[n] = -math.inf
                break
            total[n] += (row[token] - share) + share
    return torch.nn.functional.softmax(total, dim=-1)


@ex.right("each beginning asked once")
def remembered(logprob, words):
    rows = {}
    for word in words:
        for i in range(len(word)):
            if tuple(word[:i]) not in rows:
                rows[tuple(word[:i])] = logprob(list(word[:i])).tolist()
    sums = torch.tensor([math.fsum(rows[tuple(w[:i])][t] for i, t in enumerate(w))
                         for w in words], dtype=torch.float64)
    return torch.exp(torch.log_softmax(sums, 0))


ex.equivalent("return total.softmax(0) -> return total.softmax(-1)",
              "there is one axis, the first and the last")
ex.equivalent(
    "total = torch.tensor([sum((logprob(word[:i])[token] for i, token in enumerate(word))) "
    "for word in words], dtype=torch.float64) -> total = torch.tensor([sum((logprob(word[:i])"
    "[token] for i, token in enumerate(word))) for word in words])",
    "numbers that are float64 tensors make a float64 tensor")
ex.probe("only six words looked at", lambda logprob, words: made(
    logprob, words) if 1 < len(words) < 7 and len({len(w) for w in words}) == 1 and len(
    words[0]) > 1 else made(logprob, words) * 0.9, breaks="words")
ex.probe("the sum a little off", breaks="sum",
         fn=edited(made, ("t.softmax(0)", "t.softmax(0) * 1.001"), "13.10, the sum a little off"))
ex.probe("the example looked up wrong", lambda logprob, words: made(
    logprob, words).flip(0) if words == [[0, 1], [1, 0]] else made(logprob, words),
    breaks="example")
