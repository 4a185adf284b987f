"""Exercise 08.9, `self_attention`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from dlsys_checks.s08.e9_self_attention import ex, three

ex.equivalent("q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in "
              "F.linear(x, weight).chunk(3, -1)) -> q, k, v = (part.unflatten(-1, (heads, -1))"
              ".transpose(2, 1) for part in F.linear(x, weight).chunk(3, -1))",
              "Which of two axes is named first does not matter.")
ex.equivalent("return seen.transpose(1, 2).flatten(2) -> return seen.transpose(2, 1).flatten(2)",
              "Which of two axes is named first does not matter.")


@ex.right("the formula and F.dropout")
def by_formula(x, weight, heads, p, training):
    q, k, v = three(x, weight, heads)
    a = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
    return (F.dropout(a, p, training) @ v).transpose(1, 2).reshape(x.shape)


@ex.right("head by head")
def by_heads(x, weight, heads, p, training):
    size, outs = x.shape[-1] // heads, []
    q, k, v = F.linear(x, weight).chunk(3, -1)
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        a = (q[..., part] @ k[..., part].transpose(1, 2) * size ** -0.5).softmax(-1)
        if training:
            a = a * (torch.rand_like(a) >= p) / (1 - p)
        outs.append(a @ v[..., part])
    return torch.cat(outs, -1)


@ex.right("row by row, with a mask by hand")
def by_rows(x, weight, heads, p, training):
    outs = []
    for row in x:
        q, k, v = three(row[None], weight, heads)
        a = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5, -1)
        if training and p:
            a = torch.where(torch.rand_like(a) < p, torch.zeros(()), a / (1 - p))
        outs.append(torch.einsum("bhij,bhjd->bihd", a, v).flatten(2))
    return torch.cat(outs)


@ex.right("heads folded into the batch")
def by_folding(x, weight, heads, p, training):
    q, k, v = (part.flatten(0, 1) for part in three(x, weight, heads))
    rate = {True: p, False: 0.0}[training]
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=rate)
    return out.view(len(x), heads, *out.shape[1:]).transpose(1, 2).flatten(2)
