"""Exercise 01.2, `to_probs`."""

from __future__ import annotations

import torch

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_close

ex = exercise("01.2", "to_probs",
              seen=("logits", "kind"))


@ex.cases
def cases(g):
    def logits(*shape, scale=2.0):
        return torch.randn(*shape, generator=g) * scale
    return [("one column, binary", {"logits": logits(7, 1), "kind": "binary"}),
            ("one row of classes", {"logits": logits(1, 5), "kind": "multiclass"}),
            ("more classes than rows", {"logits": logits(3, 11), "kind": "multiclass"}),
            ("independent labels", {"logits": logits(6, 4), "kind": "multilabel"}),
            ("logits near 200", {"logits": logits(4, 3) + 200.0, "kind": "multiclass"}),
            ("logits near -200", {"logits": logits(5, 1) - 200.0, "kind": "binary"})]


@ex.law
def law(out, logits, kind):
    z = logits.double()
    if kind == "multiclass":
        odds = (z - z.max(1, keepdim=True).values).exp()
        wanted = odds / odds.sum(1, keepdim=True)
        look = "Each row is one choice among all classes: its sum is 1."
    else:
        wanted = 1 / (1 + (-z).exp())
        look = "Each entry answers its own yes-or-no question."
    expect_close(f"{kind} probabilities", out, wanted.float(), rtol=1e-4, atol=1e-7, look=look)


@ex.wrong("softmax over dim 0, the batch", says="one choice among all classes")
def over_batch(logits, kind):
    return logits.softmax(0) if kind == "multiclass" else logits.sigmoid()


@ex.wrong("softmax for everything, one column included", says="binary probabilities: got 1")
def softmax_always(logits, kind):
    return logits.softmax(1)


@ex.wrong("sigmoid for everything", says="one choice among all classes")
def sigmoid_always(logits, kind):
    return logits.sigmoid()


@ex.wrong("softmax for independent labels", says="its own yes-or-no")
def softmax_multilabel(logits, kind):
    return logits.sigmoid() if kind == "binary" else logits.softmax(1)


@ex.wrong("exp without subtracting the maximum", says="got nan")
def overflowing(logits, kind):
    if kind != "multiclass":
        return logits.sigmoid()
    return logits.exp() / logits.exp().sum(1, keepdim=True)


@ex.wrong("raw logits clamped to [0, 1]", says="binary probabilities")
def clamped(logits, kind):
    return logits.clamp(0, 1)
