"""Exercise 03.1, `ce_from_logits`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from dlsys_checks.s03.e1_ce_from_logits import chosen, ex


@ex.right("log_softmax and softmax")
def by_log_softmax(logits, y):
    grad = logits.softmax(-1)
    grad.scatter_add_(1, y[:, None], torch.full((len(y), 1), -1.0))
    return -logits.log_softmax(-1).gather(1, y[:, None]).mean(), grad.div_(len(y))


@ex.right("logsumexp, its exponential for the gradient")
def by_logsumexp(logits, y):
    log_p = logits - torch.logsumexp(logits, 1, keepdim=True)
    return -chosen(log_p, y).mean(), (log_p.exp() - F.one_hot(y, logits.shape[1])) / len(y)


@ex.right("the maximum added again")
def by_maximum(logits, y):
    top = logits.max(1).values
    odds = torch.exp(logits - top[:, None])
    loss = top + odds.sum(1).log() - chosen(logits, y)
    target = torch.zeros_like(logits)
    target[torch.arange(len(y)), y] = 1.0
    return loss.sum() / len(y), (odds / odds.sum(1, keepdim=True) - target) / len(y)


@ex.right("float64 inside")
def by_double(logits, y):
    log_p = logits.double().log_softmax(1)
    grad = (log_p.exp() - torch.eye(logits.shape[1])[y]) / len(y)
    return -chosen(log_p, y).mean().float(), grad.float()


@ex.right("rows as Python lists")
def by_rows(logits, y):
    total, grad = 0.0, []
    for row, label in zip(logits.tolist(), y.tolist(), strict=True):
        gaps = [math.exp(v - max(row)) for v in row]
        total += max(row) + math.log(sum(gaps)) - row[label]
        grad.append([(v / sum(gaps) - (k == label)) / len(y) for k, v in enumerate(gaps)])
    return torch.tensor(total / len(y)), torch.tensor(grad)


@ex.right("differences to the right class")
def by_differences(logits, y):
    gap = logits - chosen(logits, y)[:, None]
    log_odds = gap[:, 0]
    for column in gap.T[1:]:
        log_odds = torch.logaddexp(log_odds, column)
    grad = (gap - log_odds[:, None]).exp()
    grad[torch.arange(len(y)), y] -= 1
    return log_odds.mean(), grad / len(y)


@ex.right("other names of the arguments, in float64")
def other_names_03_1(scores, labels):
    logs = scores.double().log_softmax(1)
    grad = logs.exp()
    grad[torch.arange(len(labels)), labels] -= 1
    loss = -logs[torch.arange(len(labels)), labels].mean()
    return loss.float(), (grad / len(labels)).float()


@ex.right("by logsumexp")
def from_logsumexp(logits, y):
    rows = torch.arange(len(y))
    total = logits.logsumexp(1)
    grad = (logits - total[:, None]).exp()
    grad[rows, y] -= 1
    return (total - logits[rows, y]).mean(), grad / len(y)
