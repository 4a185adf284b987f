"""Exercise 08.10, `decode_step`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from dlsys_checks.s08.e10_decode_step import ex, stored


@ex.right("SDPA with causal_lower_right")
def by_lower_right(q, k, v, cache, rotate):
    from torch.nn.attention.bias import causal_lower_right
    n = q.shape[2]
    past = cache["k"].shape[2] if "k" in cache else 0
    place = torch.arange(n) + past
    k, v = stored(rotate(k, place), v, cache)
    mask = causal_lower_right(n, past + n)
    return F.scaled_dot_product_attention(rotate(q, place), k, v, attn_mask=mask)


@ex.right("the formula, with a float mask")
def by_formula(q, k, v, cache, rotate):
    n = q.shape[2]
    past = 0 if not cache else cache["v"].shape[2]
    place = torch.arange(past, past + n)
    k, v = stored(rotate(k, place), v, cache)
    scores = rotate(q, place) @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    bias = torch.full((n, past + n), -math.inf).triu(past + 1)
    return torch.softmax(scores + bias, -1).matmul(v)


@ex.right("query by query, without a mask")
def by_query(q, k, v, cache, rotate):
    outs = []
    for t in range(q.shape[2]):
        place = torch.tensor([cache["k"].shape[2] if cache else 0])
        now = [part[:, :, t:t + 1] for part in (q, k, v)]
        keys, values = stored(rotate(now[1], place), now[2], cache)
        outs.append(F.scaled_dot_product_attention(rotate(now[0], place), keys, values))
    return torch.cat(outs, 2)


@ex.right("all queries in one tensor, padded to a square")
def by_square(q, k, v, cache, rotate):
    n = q.shape[2]
    past = cache["k"].shape[2] if cache else 0
    place = past + torch.arange(n)
    k, v = stored(rotate(k, place), v, cache)
    front = torch.zeros(*q.shape[:2], past, q.shape[3])
    square = torch.cat([front, rotate(q, place)], 2)
    return F.scaled_dot_product_attention(square, k, v, is_causal=True)[:, :, past:].contiguous()
