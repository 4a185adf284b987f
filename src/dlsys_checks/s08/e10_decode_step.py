"""Exercise 08.10, `decode_step`."""

from __future__ import annotations

import copy
import math

import torch
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

# Kept: a cache hands the values through as they are.
ex = exercise("08.10", "decode_step", seen=("q", "k", "v", "sizes", "base", "twins"),
              kept=("v",))

ex.promise_table("""
result | Compute causal attention of the n newest tokens, with cache and RoPE. | result
new    | Args: q, k, v: (B, H, n, D) of the new tokens, n >= 1, float32. | result; cache
order  | Any memory order is possible. | raised RuntimeError
left   | No step changes q, k or v, not even a later step. | values changed
empty  | cache: a dict, empty at the first step. | step 1; raised KeyError
cache  | After each step its "k" and "v" hold the keys and values of all tokens so far, (B, H, t,
         D), with the keys rotated. | cache
places | rotate(x, place): returns x (B, H, n, D) rotated for the positions `place` (n,), int64,
         counted from 0 at the very first token. | positions; result; cache's k; raised
values | Queries and keys are rotated, values are not. | result; cache
causal | A token looks at itself and at all tokens before it. | result
whole  | The result (B, H, n, D) is what one run over the whole row returns for these tokens. |
         result
twins  | Two caches do not affect each other. | result of step; cache
copy   | Keep nothing outside the cache, so that decoding can continue from a deep copy of it. | of
         a copy
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, sizes, *, shape=None, twins=False, scale=1.0):
        batch, heads, dim = shape or (whole(1, 4), whole(1, 4), 2 * whole(2, 5))
        total = sum(sizes)
        q, k, v = (torch.randn(batch, heads, total, dim, generator=g) for _ in range(3))
        return name, {"q": q * scale, "k": k, "v": v, "sizes": list(sizes),
                      "base": 50.0 + 100 * float(torch.rand((), generator=g)), "twins": twins}
    return [one("tokens one by one", [1] * whole(4, 8)),
            one("a prompt, then one by one", [whole(4, 7), 1, 1, 1], shape=(2, 3, 6)),
            one("pieces of many sizes", [2, whole(3, 6), 1, whole(2, 5), 3],
                shape=(whole(2, 4), whole(2, 5), 4)),
            one("one token, then a piece", [1, whole(3, 7)]),
            one("the first step alone", [whole(3, 7)]),
            one("one sequence, one head", [whole(2, 4), 1, 2], shape=(1, 1, 4)),
            one("large scores", [3, 2, 1], scale=6.0),
            one("a long row", [whole(60, 70), 1, 9], shape=(1, 2, 8)),
            one("two rows in turn", [2, 1, whole(2, 4)], twins=True),
            one("two rows, many steps", [1, 3, 1, 2], twins=True)]


@ex.act
def act(fn, q, k, v, sizes, base, twins):
    """The steps of a row, and between them those of another one (twins): q and k exchanged."""
    kinds = set()

    def rotate(x, place):
        shape = list(place.shape) if isinstance(place, torch.Tensor) else type(place).__name__
        if x.dim() != 4 or shape != [x.shape[2]]:
            raise ValueError(f"rotate: got x {tuple(x.shape)} and place {shape}, expected "
                             "x (B, H, n, D) and place (n,)")
        kinds.add(str(place.dtype))
        half = x.shape[-1] // 2
        angle = place[:, None] * base ** (-torch.arange(half) / half)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()],
                         -1)

    rows = [(q, k, v), (k, q, -v)] if twins else [(q, k, v)]
    caches, found, given, start = [{} for _ in rows], [], [], 0
    for n in sizes:
        for row, cache in zip(rows, caches):
            fork = copy.deepcopy(cache)  # takes the step first, with other values
            # Tokens before heads in memory, as they come from one linear layer.
            new = [t[:, :, start:start + n].transpose(1, 2).contiguous().transpose(1, 2)
                   for t in row]
            before = [t.clone() for t in new]
            branch = fn(new[0], new[1], -new[2], fork, rotate) if start else None
            out = fn(*new, cache, rotate)
            held = {key: cache.get(key) for key in ("k", "v")}
            found.append({"out": out, "cache": copy.deepcopy(held), "copy": branch,
                          "copy's v": fork.get("v") if start else None,
                          "places": sorted(kinds)})
            given.append(list(zip(new, before)))
        start += n
    for one, pairs in zip(found, given):  # in the end: a cache may hold what it was handed
        one["changed"] = [int((a != b).sum()) if a.shape == b.shape else -1 for a, b in pairs]
    return found


def turned(x, base):
    """RoPE in complex numbers: pair j of place t times exp(i t base^(-2j/D)); float64."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    place = torch.arange(x.shape[2], dtype=torch.float64)
    angle = torch.outer(place, base ** -(torch.arange(half, dtype=torch.float64) / half))
    z = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], -1)


def whole_run(q, k, v, base):
    """Result of all tokens in one run, the turned keys and the values; float64."""
    weights, k = weights_of(q, k, base)
    return weights @ v.double(), k, v.double()


def weights_of(q, k, base):
    """The weights of all tokens in one run, and the turned keys; float64."""
    q, k = turned(q, base), turned(k, base)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(later, -math.inf), -1), k


def branched(q, k, v, base, start, n):
    """Results and values of a copy that took the step of n tokens with -v; float64."""
    v = torch.cat([v[:, :, :start], -v[:, :, start:start + n]], 2)
    result = whole_run(q[:, :, :start + n], k[:, :, :start + n], v, base)[0]
    return result[:, :, start:].float(), v


@ex.law
def law(out, q, k, v, sizes, base, twins):
    given = [(q, k, v), (k, q, -v)] if twins else [(q, k, v)]
    rows = [whole_run(*row, base) for row in given]
    expect_length("steps", out, len(sizes) * len(rows))
    start = 0
    for number, n in enumerate(sizes):
        for r, (result, keys, values) in enumerate(rows):
            one = out[number * len(rows) + r]
            expect_parts(one, "out", "cache", "copy", "copy's v", "changed", "places")
            where = f"step {number + 1}" + (f" of row {r + 1}" if twins else "")
            expect_equal(f"values changed in q, k and v of {where}", one["changed"], [0, 0, 0],
                         "Work on copies.")
            expect_equal(f"dtypes of the positions up to {where}", one["places"], ["torch.int64"])
            expect_close(f"result of {where}", one["out"], result[:, :, start:start + n].float(),
                         rtol=1e-3, atol=1e-4)
            expect_parts(one["cache"], "k", "v", what=f"cache after {where}")
            expect_close(f"cache's k after {where}", one["cache"]["k"],
                         keys[:, :, :start + n].float(), rtol=1e-3, atol=1e-4)
            expect_equal(f"cache's v after {where}", one["cache"]["v"],
                         values[:, :, :start + n].float())
            result, values = branched(*given[r], base, start, n) if start else (None, None)
            if start:
                expect_close(f"result of a copy of the cache that took {where}", one["copy"],
                             result,
                             rtol=1e-3, atol=1e-4)
            else:
                expect_equal("no copy at the first step", one["copy"], None)
            expect_equal(f"cache's v of a copy, {where}", one["copy's v"], values)
        start += n


def stored(k, v, cache):
    """Both with what the cache holds in front, in new tensors; the cache then holds them."""
    for name, new in (("k", k), ("v", v)):
        cache[name] = torch.cat([cache[name], new], 2) if name in cache else new.clone()
    return cache["k"], cache["v"]


# ---- wrong, by name

COUNTED: dict = {}


@not_an_answer
def step(q, k, v, cache, rotate):
    n = q.shape[2]
    past = cache["k"].shape[2] if cache else 0
    place = torch.arange(n) + past
    q = rotate(q, place)
    k = rotate(k, place)
    k, v = stored(k, v, cache)
    allowed = torch.ones(n, past + n).tril(past).bool()
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    cache["k"], cache["v"] = k, v
    return out


wrong = ex.edits(step)
ONES = "torch.ones(n, past + n).tril(past).bool()"
wrong("using is_causal=True, whose triangle starts in the upper left corner", "causal",
      "torch.ones(n, past + n).tril(past)", "torch.ones(n, past + n).tril()")
wrong("using no mask, so that tokens see later tokens of their piece", "causal", ONES, "None")
wrong("using no mask as soon as there is a cache", "causal",
      ONES, "None if past else torch.ones(n, n).tril().bool()")
wrong("using is_causal=True for a piece of several tokens, with or without a cache", "causal",
      ONES, "torch.ones(n, past + n).tril().bool() if n > 1 else None")
wrong("forbidding every token except the first to look at itself", "causal",
      "n =",
      "def mask(n, past): keep = torch.ones(n, past + n).tril(past - 1).bool(); keep[0, 0] = "
      "True; return keep\n    n =", ONES, "mask(n, past)")
wrong("restarting the positions at 0 in each step",
      "places", "torch.arange(n) + past", "torch.arange(n)")
wrong("making positions one too high once there is a cache", "places",
      "(n) + past", "(n) + past + bool(past)")
wrong("counting positions from 1", ("places", "cache"), "(n) + past", "(n) + past + 1")
wrong("starting a piece's positions at the position of its last token", ("places", "cache"),
      "(n) + past", "(n) + past + q.shape[2] - 1")
wrong("passing positions as floats", "places", "(n) + past", "(n) + float(past)")
wrong("not rotating the queries", "values", "q = rotate(q, place)", "pass")
wrong("not rotating the keys", ("values", "cache"), "k = rotate(k, place)", "pass")
wrong("rotating the values as well", ("values", "cache"), "k, v =", "v = rotate(v, place); k, v =")


@ex.wrong("storing keys unrotated and rotating all of them at each step", says="cache's k",
          breaks="cache")
def turned_anew(q, k, v, cache, rotate):
    past = cache["k"].shape[2] if cache else 0
    k, v = stored(k, v, cache)
    n, place = q.shape[2], torch.arange(k.shape[2])
    keep = torch.ones(n, past + n).tril(past).bool()
    return F.scaled_dot_product_attention(rotate(q, place[past:]), rotate(k, place), v,
                                          attn_mask=keep)


@ex.wrong("rotating the whole cache again at each step", breaks=("values", "cache"))
def turned_again(q, k, v, cache, rotate):
    past = cache["k"].shape[2] if cache else 0
    k, v = stored(k, v, cache)
    n, place = q.shape[2], torch.arange(k.shape[2])
    cache["k"] = rotate(k, place)
    keep = torch.ones(n, past + n).tril(past).bool()
    return F.scaled_dot_product_attention(rotate(q, place[past:]), cache["k"], v, attn_mask=keep)


wrong("counting the queries' positions from 0, but not the keys'", "places",
      "n =", "q = rotate(q, torch.arange(q.shape[2])); n =", "q = rotate(q, place)", "pass")
wrong("using len() of a cached tensor, the batch size, as the number of tokens so far", "places",
      "n =", 'own_past = len(cache["k"]) if cache else 0; n =', "(n) + past", "(n) + own_past")
wrong("keeping nothing in the cache", "cache",
      "n =", "cache = dict(cache); n =", "return out", "cache.clear(); return out")
wrong("keeping only the newest keys and values", "cache",
      "n =", "own_n = q.shape[2]; n =",
      '["v"] = k, v', '["v"] = k[:, :, -own_n:], v[:, :, -own_n:]')
wrong("assuming that the cache is never empty", "empty", "n =",
      'assert cache["k"].shape[2] > 0; n =')
ex.wrong("calling view() on q, k and v, whatever their memory order",
         lambda q, k, v, cache, rotate: step(*(t.view(q.shape) for t in [t.view(-1, *t.shape[2:])
             for t in (q, k, v)]), cache, rotate), breaks="order")
wrong("returning only the result of a piece's last token", "new",
      "return out", "return out[:, :, -1:]", says="shape of the result")
wrong("swapping heads and tokens in the result", "whole",
      "return out", "return out.transpose(1, 2)")
wrong("not dividing scores by sqrt(D)",
      "result", "n =", "q = q * math.sqrt(q.shape[-1]); n =")


@ex.wrong("changing the new keys in place", breaks="left")
def in_place(q, k, v, cache, rotate):
    out = step(q, k, v, cache, rotate)
    k.add_(1.0)
    return out


@ex.wrong("putting the given v itself into the cache and growing v in place", breaks="left")
def grown_in_place(q, k, v, cache, rotate):
    held = dict(cache)
    out = step(q, k, v, held, rotate)
    if not cache:
        cache.update(k=held["k"], v=v)
        return out
    for name in ("k", "v"):
        cache[name].set_(held[name])
    return out


wrong("counting positions in a global table, by the identity of the cache", "copy",
      "n =",
      'past = cache["k"].shape[2] if cache else 0; known = COUNTED.setdefault("seen", {}); start '
      "= known.get(id(cache), (None, 0))[1] if past else 0; known[id(cache)] = cache, start + "
      "q.shape[2]; n =", "(n) + past", "(n) + start")

SHARED: dict = {}


@ex.wrong("keeping one global cache for all callers", says="result", breaks="twins")
def shared_cache(q, k, v, cache, rotate):
    if not cache:
        SHARED.clear()
    out = step(q, k, v, SHARED, rotate)
    cache.update(SHARED)
    return out
