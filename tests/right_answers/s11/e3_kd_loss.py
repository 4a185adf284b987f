"""Exercise 11.3, `kd_loss`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s11.e3_kd_loss import ex, formula, made

ex.right("by the formula, with log-sum-exp")(formula)


@ex.right("with distributions")
def distributions(student, teacher, labels, T, alpha):
    from torch.distributions import Categorical
    p = F.log_softmax(teacher.detach() / T, -1)
    q = Categorical(logits=student / T).logits
    hard = -Categorical(logits=student).log_prob(labels).mean()
    return hard * (1 - alpha) + alpha * T**2 * (p.exp() * (p - q)).sum() / len(labels)


@ex.right("a cross-entropy minus the teacher's entropy")
def entropies(student, teacher, labels, T, alpha):
    with torch.no_grad():
        log_p = torch.log_softmax(teacher.double() / T, 1)
        p = log_p.exp()
        own = -(p * log_p).sum(1).mean()
    cross = -(p * torch.log_softmax(student.double() / T, 1)).sum(1).mean()
    hard = F.cross_entropy(student.double(), labels)
    return ((1 - alpha) * hard + alpha * T**2 * (cross - own)).float()


@ex.right("row by row")
def by_row(student, teacher, labels, T, alpha):
    total = 0.0
    for s, t, y in zip(student, teacher.detach(), labels, strict=True):
        p, q = F.log_softmax(t / T, 0), F.log_softmax(s / T, 0)
        total = total + (1 - alpha) * -F.log_softmax(s, 0)[y]
        total = total + alpha * T**2 * F.kl_div(q, p, reduction="sum", log_target=True)
    return total / len(labels)


@ex.probe("the example, with a number looked up wrong", says="loss", breaks="example")
def looked_up(student, teacher, labels, T, alpha):
    out = made(student, teacher, labels, T, alpha)
    return out * (2 if student.shape == (1, 2) else 1)
