"""Exercise 10.6, `lm_labels`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s10.e6_lm_labels import IGNORE, ex, labelled


@ex.right("row by row")
def by_row(ids, prompts, lengths):
    labels = torch.full_like(ids, IGNORE)
    for k, answer in enumerate((lengths - prompts).tolist()):
        if answer:
            labels[k, -answer:] = ids[k, -answer:]
    return labels


@ex.right("torch.where, counted from the right")
def by_where(ids, prompts, lengths):
    from_right = torch.arange(ids.shape[1], 0, -1).expand_as(ids)
    return torch.where(from_right <= (lengths - prompts).unsqueeze(1), ids, torch.tensor(IGNORE))


@ex.right("a mask by counting, turned round")
def by_counting(ids, prompts, lengths):
    before = torch.ones_like(ids).cumsum(1).flip(1) > (lengths - prompts)[:, None]
    labels = ids.clone()
    labels[before] = IGNORE
    return labels


@ex.right("multiplied by the mask")
def by_product(ids, prompts, lengths):
    t = ids.size(1)
    keep = ((torch.arange(t)[None] >= t - lengths[:, None])
            & (torch.arange(t)[None] >= (t - lengths + prompts)[:, None])).long()
    return ids * keep + IGNORE * (1 - keep)


@ex.right("padded anew, row by row")
def by_stack(ids, prompts, lengths):
    labels = ids.new_full(ids.shape, IGNORE)
    for row, text, p, n in zip(labels, ids, prompts.tolist(), lengths.tolist(), strict=True):
        start = len(row) - n
        row[start:] = text[start:]
        row[start:start + p] = IGNORE
    return labels


@ex.probe("the example looked up, its EOS left out", breaks="example")
def looked_up(ids, prompts, lengths):
    out = labelled(ids, prompts, lengths)
    return out.masked_fill(ids == 0, IGNORE) if ids.tolist() == [[0, 5, 6, 0]] else out
