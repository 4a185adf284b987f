"""Exercise 14.3, `kl_term`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s14.e3_kl_term import ex, made
from dlsys_helpers.judging import edited


@ex.right("the log-ratio as a price, times the log-probability")
def as_a_price(logp, logp_ref):
    gap = (logp - logp_ref).sum(1).detach()
    return (gap * logp.sum(1)).mean()


@ex.right("from each token on")
def from_there_on(logp, logp_ref):
    with torch.no_grad():
        ahead = (logp - logp_ref).flip(-1).cumsum(-1).flip(-1)
    return (ahead * logp).sum() / len(logp)


@ex.right("a ratio of one that carries the gradient")
def ratio_of_one(logp, logp_ref):
    whole, ref = logp.sum(-1), logp_ref.sum(-1)
    return ((whole - whole.detach()).exp() * (whole - ref).detach()).mean()


@ex.right("the value of the KL, and its gradient")
def value_and_gradient(logp, logp_ref):
    gap = torch.sum(logp - logp_ref, dim=-1)
    return (gap + gap.detach() * logp.sum(-1) - (gap * logp.sum(-1)).detach()).mean()


@ex.right("k3 with the ratio's gradient")
def whole_k3(logp, logp_ref):
    gap = (logp - logp_ref).sum(-1)
    return ((gap - gap.detach()).exp() * (torch.exp(-gap) - 1 + gap)).mean()


@ex.right("the mean of the others taken off")
def leave_one_out(logp, logp_ref):
    gap = (logp - logp_ref).sum(-1).detach()
    n = len(gap)
    if n > 1:
        gap = gap - (gap.sum() - gap) / (n - 1)
    return torch.dot(gap, logp.sum(-1)) / n


@ex.right("answer by answer, in float64")
def by_answers(logp, logp_ref):
    total = 0.0
    for mine, ref in zip(logp.double(), logp_ref.double()):
        total = total + 0.5 * (mine.sum() - ref.sum()) ** 2
    return (total / logp.shape[0]).to(logp.dtype)


ex.probe("the mean log-ratio with its sign turned", breaks=("pull", "example", "tokens"),
         fn=edited(made, ("gap**2 / 2", "-gap"), "14.3, the sign turned"))
ex.probe("what stood up to a token, not what comes from it on", lambda logp, logp_ref: (
    (logp - logp_ref).detach().cumsum(-1) * logp).sum(-1).mean(), breaks="whole")
ex.probe("three answers taken for two", lambda logp, logp_ref: made(logp, logp_ref) * (
    1.5 if len(logp) == 3 else 1.0), breaks="tokens")
ex.probe("the example looked up wrong", lambda logp, logp_ref: made(logp, logp_ref) * (
    1.01 if abs(float(logp_ref.exp()[0, 0]) % 0.5 - 0.25) < 1e-12 else 1.0), breaks="example")
ex.equivalent("gap = (logp - logp_ref).sum(-1) -> gap = (logp - logp_ref).sum(1)",
              "of the two axes the last is the second")
ex.equivalent("gap = (logp - logp_ref).sum(-1) -> gap = (logp_ref - logp).sum(-1)",
              "its square is the same")
