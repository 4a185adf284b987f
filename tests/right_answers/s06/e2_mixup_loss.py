"""Exercise 06.2, `mixup_loss`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s06.e2_mixup_loss import ex, spread


def soft(logits, y, order, lam):
    one = F.one_hot(y, logits.shape[1]).float()
    return lam[:, None] * one + (1 - lam[:, None]) * one[order]


@ex.right("soft labels for the library")
def by_soft(model, x, y, order, lam):
    logits = model(torch.lerp(x[order], x, spread(lam, x)))
    return F.cross_entropy(logits, soft(logits, y, order, lam))


@ex.right("the blend in flat rows, the loss from log-softmax")
def by_gather(model, x, y, order, lam):
    flat = x.flatten(1)
    rows = (lam * flat.T + (1 - lam) * flat[order].T).T.reshape(x.shape)
    logp = model(rows).log_softmax(1)
    n = torch.arange(len(x))
    return -(lam * logp[n, y] + (1 - lam) * logp[n, y[order]]).mean()


@ex.right("a loop over rows for the blends")
def by_rows(model, x, y, order, lam):
    rows = [a * own + (1 - a) * x[k] for a, own, k in zip(lam, x, order, strict=True)]
    logits = model(torch.stack(rows))
    losses = [a * F.cross_entropy(z, own) + (1 - a) * F.cross_entropy(z, y[k])
              for z, a, own, k in zip(logits, lam, y, order, strict=True)]
    return sum(losses) / len(losses)


@ex.right("a matrix that mixes the batch")
def by_matrix(model, x, y, order, lam):
    mixing = torch.diag(lam) + (1 - lam)[:, None] * torch.eye(len(x))[order]
    logits = model((mixing @ x.flatten(1)).view_as(x))
    target = mixing @ torch.eye(logits.shape[1])[y]
    return -(target * logits.log_softmax(1)).sum() / len(x)
