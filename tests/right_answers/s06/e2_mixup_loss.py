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


def mixed(model, x, y, order, lam, share):
    z = model(share * x + (1 - share) * x[order])
    rows = [F.cross_entropy(z, labels, reduction="none") for labels in (y, y[order])]
    return (lam * rows[0] + (1 - lam) * rows[1]).mean()


def by_row(lam, x):
    return lam.view([-1] + [1] * (x.dim() - 1))


@ex.probe("eval mode during the call", breaks="blend")
def eval_mode_for_the_call(model, x, y, order, lam):
    was = model.training
    model.eval()
    loss = mixed(model, x, y, order, lam, by_row(lam, x))
    model.train(was)
    return loss


@ex.probe("a share for each column where sizes agree", breaks="share")
def share_of_a_column(model, x, y, order, lam):
    share = lam if len(lam) == x.shape[-1] else by_row(lam, x)
    return mixed(model, x, y, order, lam, share)
