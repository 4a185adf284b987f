"""Exercise 08.4, `tiled_attention`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch

from dlsys_checks.s08.e4_tiled_attention import ex, online
from dlsys_helpers.judging import edited


@ex.right("one key at a time")
def key_by_key(q, k, v, length, tile):
    m, d = q.shape
    top, total = torch.full((m,), -math.inf), torch.zeros(m)
    out = torch.zeros(m, v.shape[1])
    for j in range(length):
        score = (q @ k[j]) / math.sqrt(d)
        sees = torch.arange(m) + length - m >= j
        new = torch.where(sees, torch.maximum(top, score), top)
        fix = torch.where(new == top, 1.0, torch.exp(top - new))
        p = torch.where(sees, torch.exp(score - new), 0.0)
        total, top = total * fix + p, new
        out = out * fix[:, None] + p[:, None] * v[j]
    return torch.where(total[:, None] > 0, out / total[:, None], 0.0)


@ex.right("tiles from the last to the first, their logarithms of sums added")
def from_the_last(q, k, v, length, tile):
    m, d = q.shape
    log_sum, out = torch.full((m, 1), -math.inf), torch.zeros(m, v.shape[1])
    for a in reversed(range(0, length, tile)):
        b = min(a + tile, length)
        s = q @ k[a:b].T / math.sqrt(d)
        s = s.masked_fill(torch.arange(a, b) > torch.arange(m)[:, None] + length - m, -math.inf)
        new = torch.logaddexp(log_sum, s.logsumexp(1, keepdim=True))
        base = new.masked_fill(new == -math.inf, 0)
        out = out * (log_sum - base).exp() + (s - base).exp() @ v[a:b]
        log_sum = new
    return out


@ex.right("two passes: the maximum first")
def two_passes(q, k, v, length, tile):
    m, d = q.shape
    last = torch.arange(m)[:, None] + length - m

    def scores(a):
        s = q @ k[a:min(a + tile, length)].T / d ** 0.5
        return s.masked_fill(torch.arange(a, a + s.shape[1]) > last, -1e30)
    top = torch.full((m, 1), -1e30)
    for a in range(0, length, tile):
        top = torch.maximum(top, scores(a).amax(1, keepdim=True))
    total, out = torch.zeros(m, 1), torch.zeros(m, v.shape[1])
    for a in range(0, length, tile):
        p = (scores(a) - top).exp() * (top > -1e30)
        total, out = total + p.sum(1, keepdim=True), out + p @ v[a:min(a + tile, length)]
    return out / total.clamp(min=1e-30)


@ex.right("rows that see nothing set aside, and powers of two")
def in_powers_of_two(q, k, v, length, tile):
    m, d = q.shape
    blind = max(0, m - length)
    answer = torch.zeros(m, v.shape[1])
    q = q[blind:]
    top, total, out = -math.inf, 0.0, 0.0
    for a in range(0, length, tile):
        b = min(a + tile, length)
        s = (q @ k[a:b].T) * (math.log2(math.e) / math.sqrt(d))
        later = torch.arange(a, b) > torch.arange(len(q))[:, None] + length - len(q)
        s = s.masked_fill(later, -math.inf)
        new = s.amax(1, keepdim=True).clamp(min=top) if a == 0 else torch.maximum(
            top, s.amax(1, keepdim=True))
        fix = torch.exp2(top - new)
        p = torch.exp2(s - new)
        total, out, top = total * fix + p.sum(1, keepdim=True), out * fix + p @ v[a:b], new
    if length:
        answer[blind:] = out / total
    return answer


@ex.right("tiles finished one by one, merged by their log of sums")
def merged(q, k, v, length, tile):
    m, d = q.shape
    lse, out = torch.full((m, 1), -math.inf), torch.zeros(m, v.shape[1])
    for a in range(0, length, tile):
        keys, values = k[a:min(a + tile, length)], v[a:min(a + tile, length)]
        s = q @ keys.mT / math.sqrt(d)
        s[torch.arange(a, a + len(keys)) > torch.arange(m)[:, None] + length - m] = -math.inf
        own = s.logsumexp(1, keepdim=True)
        both = torch.logaddexp(lse, own)
        part = s.softmax(1).nan_to_num(0) @ values
        share = (own - both).exp().nan_to_num(0)
        out = out * (lse - both).exp().nan_to_num(0) + part * share
        lse = both
    return out


ex.right("tiles from the last to the first")(edited(
    online, ("range(0, length, tile)", "reversed(range(0, length, tile))"), "08.4, backwards"))


@ex.probe("values cut to the width of the keys", breaks="shapes", says="rows of attention")
def cut_values(q, k, v, length, tile):
    out = online(q, k, v, length, tile)
    out[:, q.shape[1]:] *= v.shape[1] == 1
    return out


EQUIVALENT = {
    "total, out = (torch.zeros(M, 1), torch.zeros(M, v.shape[1])) -> total, out = "
    "(torch.zeros(M, v.shape[1]), torch.zeros(M, 1))": "Both are broadcast to (M, E).",
    "return out / total.masked_fill(total == 0, 1) -> return out / "
    "total.masked_fill(total <= 0, 1)": "A sum of exps is never negative.",
    "return out / total.masked_fill(total == 0, 1) -> return out / "
    "total.masked_fill(total == 0, 2)": "Zero over any number is zero.",
    "stop = min(start + tile, length) -> stop = min(length, start + tile)":
        "The order of two arguments.",
    "new = torch.maximum(top, scores.amax(1, keepdim=True)) -> new = "
    "torch.maximum(scores.amax(1, keepdim=True), top)": "The order of two arguments.",
    "base = new.masked_fill(new == -math.inf, 0) -> base = "
    "new.masked_fill(new <= -math.inf, 0)": "Nothing is below minus infinity.",
    "base = new.masked_fill(new == -math.inf, 0) -> base = "
    "new.masked_fill(new == -math.inf, -1)": "Minus infinity less any number is itself.",
    "base = new.masked_fill(new == -math.inf, 0) -> base = "
    "new.masked_fill(new == -math.inf, 1)": "Minus infinity less any number is itself."}


for mutant, why in EQUIVALENT.items():
    ex.equivalent(mutant, why)
