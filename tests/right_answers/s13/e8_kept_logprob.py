"""Exercise 13.8, `kept_logprob`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from dlsys_checks.s13.e8_kept_logprob import ex, made


@ex.right("logsumexp of what is kept")
def by_logsumexp(logits, tokens, temperature, kept):
    z = torch.where(kept, logits.to(torch.float32), -math.inf) / temperature
    return z.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - z.logsumexp(-1)


@ex.right("minus the cross-entropy")
def by_cross_entropy(logits, tokens, temperature, kept):
    z = (logits.float() / temperature).masked_fill(kept.logical_not(), float("-inf"))
    flat = F.cross_entropy(z.flatten(0, -2) if z.dim() > 1 else z[None], tokens.reshape(-1),
                           reduction="none")
    return -flat.reshape(tokens.shape)


@ex.right("torch's Categorical")
def by_categorical(logits, tokens, temperature, kept):
    z = torch.where(kept, logits.float() / temperature, torch.tensor(-math.inf))
    return torch.distributions.Categorical(logits=z, validate_args=False).log_prob(tokens)


@ex.right("row by row")
def by_rows(logits, tokens, temperature, kept):
    rows = logits.reshape(-1, logits.shape[-1])
    found = []
    for row, token, mask in zip(rows, tokens.reshape(-1), kept.reshape(rows.shape)):
        some = row[mask].float() / temperature
        found.append(some.log_softmax(0)[mask[:token].sum()])
    return torch.stack(found).reshape(tokens.shape)


ex.probe("a temperature of at least 0.1", lambda logits, tokens, temperature, kept: made(
    logits, tokens, max(temperature, 0.1), kept), breaks="temperature")
ex.probe("no gradient near temperature 0", lambda logits, tokens, temperature, kept: made(
    logits if temperature > 1e-6 else logits.detach(), tokens, temperature, kept), breaks="flow")
ex.probe("a row with one token kept is not cut", lambda logits, tokens, temperature, kept: made(
    logits, tokens, temperature, kept | (kept.sum(-1, keepdim=True) == 1)), says="",
    breaks=("kept", "under"))
ex.probe("all kept taken for none", lambda logits, tokens, temperature, kept: made(
    logits, tokens, temperature, kept) - 0.1 * kept.all(), breaks="kept")
ex.probe("minus infinity spreads", lambda logits, tokens, temperature, kept: made(
    logits, tokens, temperature, kept) + (logits.detach().float() * 0).sum(), breaks="others")
ex.equivalent("return z.log_softmax(-1).gather(-1, tokens[..., None])[..., 0] -> "
              "return z.log_softmax(-1).gather(-1, tokens[..., None])[..., -1]",
              "the last axis has one entry, the first and the last")
ex.probe("the example looked up wrong", lambda logits, tokens, temperature, kept: made(
    logits, tokens, temperature, kept) + (logits.shape == (1, 3)) * 0.01, breaks="example")
