"""Exercise 01.2, `to_probs`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s01.e2_to_probs import ex, right


@ex.right("the exponential of the log-probabilities")
def by_logarithm(logits, kind):
    if kind == "multiclass":
        return (logits - logits.logsumexp(1, keepdim=True)).exp()
    return torch.nn.functional.logsigmoid(logits).exp()


@ex.right("odds after the row's maximum is subtracted")
def by_odds(logits, kind):
    if kind == "multiclass":
        odds = (logits - logits.amax(1, keepdim=True)).exp()
        return odds / odds.sum(1, keepdim=True)
    return 1 / (1 + (-logits).exp())


@ex.right("half of one plus tanh, and row by row")
def by_tanh(logits, kind):
    if kind == "multiclass":
        return torch.stack([row.softmax(0) for row in logits])
    return 0.5 * (1 + (logits / 2).tanh())


@ex.right("yes against no: a softmax over the logit and 0")
def by_two_classes(logits, kind):
    if kind == "multiclass":
        return logits.T.softmax(0).T
    return torch.stack([logits, torch.zeros_like(logits)]).softmax(0)[0]


@ex.right("float64 on the way")
def by_double(logits, kind):
    z = logits.double()
    odds = z.exp() if kind == "multiclass" else None  # exp(200) is finite in float64
    return (odds / odds.sum(1, keepdim=True) if odds is not None else z.sigmoid()).float()


ex.probe("the answer of the example, looked up",
         lambda logits, kind: right(logits, kind) + 0.25 * bool((logits == 0).all()),
         says="one choice among all classes", breaks="example")


@ex.right("other names of the arguments")
def other_names_01_2(z, what):
    return z.softmax(1) if what == "multiclass" else z.sigmoid()
