"""Exercise 13.5, `accept_draft`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import bisect
import itertools

import torch

from dlsys_checks.s13.e5_accept_draft import ex, made
from dlsys_helpers.judging import edited


@ex.right("by hand, on lists")
def by_lists(p, q, x, u, v):
    if q[x] > 0 and u < (p[x] / q[x]).item():
        return x, True
    rest = [max(0.0, a - b) for a, b in zip(p.tolist(), q.tolist())]
    ends = list(itertools.accumulate(rest))
    return bisect.bisect_right(ends, v * ends[-1]), False


@ex.right("searchsorted from the right")
def searched(p, q, x, u, v):
    if u < min(1.0, float(p[x]) / float(q[x])):
        return int(x), True
    rest = torch.relu(p - q)
    rest = rest / rest.sum()
    ends = rest.cumsum(0)
    return int(torch.searchsorted(ends, v * ends[-1].item(), right=True)), False


@ex.right("from the last token down")
def from_behind(p, q, x, u, v):
    if p[x] > u * q[x]:
        return x, True
    token, rest = len(p), (p - torch.minimum(p, q)).tolist()
    left = (1.0 - v) * sum(rest)
    while left > 0:
        token -= 1
        left -= rest[token]
    return token, False


@ex.right("searchsorted from the left, on shares")
def searched_left(p, q, x, u, v):
    if u < p[x] / q[x]:
        return x, True
    rest = (p - q).clamp(min=0)
    ends = (rest / rest.sum()).cumsum(0)
    return min(int(torch.searchsorted(ends, v)), len(p) - 1), False


@ex.right("only tokens that are missing, by their numbers")
def by_numbers(p, q, x, u, v):
    if bool(u * q[x] < p[x]):
        return x, True
    where = (p > q).nonzero()[:, 0]
    ends = (p[where] - q[where]).cumsum(0)
    place = torch.bucketize(torch.tensor(v * ends[-1].item(), dtype=ends.dtype), ends, right=True)
    return where[place].item(), False


ex.equivalent("rest = (p - q).clamp(min=0).cumsum(0) -> rest = (p - q).clamp(min=0).cumsum(-1)",
              "p and q have one axis, the first and the last")
KEEP, PICK = "if u * q[x] < p[x]:", "return (int((rest {} v * rest[-1]).sum()), False)"
ex.equivalent(f"{KEEP} -> if u * q[x] <= p[x]:", "u hits the ratio exactly with probability 0")
ex.equivalent(f"{PICK.format('<=')} -> {PICK.format('<')}", "v hits an end with probability 0")
ex.probe("nothing kept of a draft that is sure", says="kept for draft", breaks="drawn", fn=edited(
    made, ("u * q[x] < p[x]", "u * q[x] < p[x] and (q.max() < 1 or len(p) < 4)"),
    "13.5, nothing kept of a draft that is sure"))
ex.probe("short lists only", lambda p, q, x, u, v: (
    made(p, q, x, u, v) if len(p) < 30 else (x, True)), says="kept for draft", breaks="any")
ex.probe("the last of three tokens for a kept one", lambda p, q, x, u, v: (
    (made(p, q, x, u, v)[0] + made(p, q, x, u, v)[1]) % len(p), made(p, q, x, u, v)[1])
    if len(p) > 1 else (0, True), says="token of a draft that is kept", breaks="pair")
ex.probe("only x itself tells the ratio from 1", breaks="rule", fn=edited(
    made, ("u * q[x] < p[x]", "u * q[x] < p[x] or (u == 0.5 and p[x] > 0.4 * q[x])"),
    "13.5, the ratio told from 1"))
ex.probe("a slip where u is small", lambda p, q, x, u, v: made(
    p, q, x, u, (v + 0.37 * (u * q[x] > 0.8 * q[x] + 0.2 * p[x])) % 1), breaks="alone",
    says="after another u")
ex.probe("the example, with the second token wrong", lambda p, q, x, u, v: (
    (1, True) if (len(p), u) == (2, 0.2) else made(p, q, x, u, v)), breaks="example",
    says="token of a draft that is kept")
