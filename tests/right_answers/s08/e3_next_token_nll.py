"""Exercise 08.3, `next_token_nll`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s08.e3_next_token_nll import ex


@ex.right("log_softmax and gather")
@torch.no_grad()
def by_gather(model, ids, mask_id):
    columns = []
    for t in range(1, ids.shape[1]):
        seen = ids[:, :t + 1].clone()
        seen[:, -1] = mask_id
        logp = model(seen)[:, -1].log_softmax(-1)
        columns.append(-logp.gather(1, ids[:, t:t + 1]))
    return torch.cat(columns, 1)


@ex.right("row by row")
@torch.no_grad()
def by_rows(model, ids, mask_id):
    out = torch.zeros(len(ids), ids.shape[1] - 1)
    for n in range(len(ids)):
        for t in range(1, ids.shape[1]):
            seen = torch.cat([ids[n, :t], torch.tensor([mask_id])])
            logits = model(seen[None])[0, t]
            out[n, t - 1] = logits.logsumexp(0) - logits[ids[n, t]]
    return out


@ex.right("in float64, with the largest logit taken off")
@torch.no_grad()
def by_largest(model, ids, mask_id):
    found = []
    for t in range(1, ids.shape[1]):
        logits = model(F.pad(ids[:, :t], (0, 1), value=mask_id))[:, t].double()
        logits = logits - logits.amax(-1, keepdim=True)
        found.append(logits.exp().sum(-1).log() - logits[torch.arange(len(ids)), ids[:, t]])
    return torch.stack(found, -1).float()


@ex.right("all logits first, one loss at the end")
def by_one_loss(model, ids, mask_id):
    with torch.inference_mode():
        logits = torch.stack([model(torch.column_stack(
            [ids[:, :t], torch.full((len(ids),), mask_id)]))[:, t]
            for t in range(1, ids.shape[1])], 2)
        return F.cross_entropy(logits, ids[:, 1:], reduction="none")
