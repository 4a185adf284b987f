"""Exercise 12.11, `masked_ce`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s12.e11_masked_ce import ex, smoothed


@ex.right("torch's own on the allowed logits of each row")
def cut_out(logits, target, allowed, smoothing):
    losses = []
    for row, label, keep in zip(logits, target, allowed):
        place = keep[:label].sum()
        losses.append(F.cross_entropy(row[keep][None], place[None], label_smoothing=smoothing))
    return torch.stack(losses).mean()


@ex.right("a target distribution, and a sum over the allowed places")
def distribution(logits, target, allowed, smoothing):
    wanted = smoothing * allowed / allowed.sum(1, keepdim=True)
    wanted = wanted + (1 - smoothing) * F.one_hot(target, logits.shape[1])
    log_p = logits.masked_fill(~allowed, -torch.inf).log_softmax(1)
    return -(wanted[allowed] * log_p[allowed]).sum() / len(logits)


@ex.right("logsumexp by hand")
def by_logsumexp(logits, target, allowed, smoothing):
    z = logits.masked_fill(~allowed, -1e30)
    total = z.logsumexp(1)
    label = z.take_along_dim(target[:, None], 1).squeeze(1)
    mean = logits.masked_fill(~allowed, 0.0).sum(1) / allowed.sum(1)
    return (total - (1 - smoothing) * label - smoothing * mean).sum() / len(z)


@ex.right("two cross-entropies mixed")
def mixed(logits, target, allowed, smoothing):
    z = torch.where(allowed, logits, torch.finfo(logits.dtype).min)
    hard = F.cross_entropy(z, target)
    soft = torch.where(allowed, F.log_softmax(z, 1), 0.0).sum(1).div(allowed.sum(1)).neg().mean()
    return torch.lerp(hard, soft, smoothing)


ex.equivalent("right = log_p.gather(1, target[:, None])[:, 0] -> "
              "right = log_p.gather(1, target[:, None])[:, -1]", "there is one column")


@ex.probe("the example looked up, and shifted", breaks="example")
def looked_up(logits, target, allowed, smoothing):
    shift = float(len(logits) == 1 and int(allowed.sum()) == 1)
    return smoothed(logits, target, allowed, smoothing) + shift
