"""Exercise 03.1, `ce_from_logits`."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from dlsys_checks.s03.common import pair
from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_close

ex = exercise("03.1", "ce_from_logits",
              by_hand=("cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss", "backward",
                       "autograd.grad"),
              seen=("logits", "y"))


@ex.cases
def cases(g):
    def one(name, rows, classes, scale=2.0, offset=0.0):
        logits = torch.randn(rows, classes, generator=g) * scale + offset
        return name, {"logits": logits, "y": torch.randint(classes, (rows,), generator=g)}
    lost_name, lost = one("a right class 200 below the others", 4, 5)
    lost["logits"][torch.arange(4), lost["y"]] = -200.0
    apart_name, apart = one("one row near 200, one near -200", 2, 3)
    apart["logits"] += torch.tensor([[200.0], [-200.0]])
    return [one("five rows, four classes", 5, 4), one("one row, many classes", 1, 30),
            one("logits near 200", 6, 3, offset=200.0), (lost_name, lost), (apart_name, apart)]


@ex.law
def law(out, logits, y):
    loss, grad = pair(out, "loss, grad")
    losses, rows = [], []
    for row, label in zip(logits.double().tolist(), y.tolist(), strict=True):
        odds = [math.exp(v - max(row)) for v in row]
        losses.append(math.log(sum(odds)) + max(row) - row[label])
        rows.append([(o / sum(odds) - (k == label)) / len(y) for k, o in enumerate(odds)])
    expect_close("loss", loss, torch.tensor(sum(losses) / len(losses)), rtol=1e-4, atol=1e-5,
                 look="The mean over rows of logsumexp(z) - z_y.")
    expect_close("gradient", grad, torch.tensor(rows), rtol=1e-4, atol=1e-6,
                 look="Of the mean: (softmax - one-hot) / N.")


def probabilities(logits):
    odds = (logits - logits.max(1, keepdim=True).values).exp()
    return odds / odds.sum(1, keepdim=True)


def slope(logits, y):
    return (probabilities(logits) - F.one_hot(y, logits.shape[1])) / len(y)


def right(table, y):
    """The entry of each row in the column of its label."""
    return table[torch.arange(len(y)), y]


@ex.wrong("the logarithm of a finished softmax", says="loss: got inf")
def log_of_softmax(logits, y):
    return -right(logits.softmax(1), y).log().mean(), slope(logits, y)


@ex.wrong("exp of raw logits, no maximum subtracted", says="loss: got inf")
def overflow(logits, y):
    return (logits.exp().sum(1).log() - right(logits, y)).mean(), slope(logits, y)


@ex.wrong("one maximum for the whole batch", says="loss: got -inf")
def global_maximum(logits, y):
    top = logits.max()
    lse = (logits - top).exp().sum(1).log() + top
    return (lse - right(logits, y)).mean(), slope(logits, y)


@ex.wrong("a softmax before the loss: softmax twice", says="loss:")
def softmax_twice(logits, y):
    p = logits.softmax(1)
    return -right(p.log_softmax(1), y).mean(), slope(p, y)


@ex.wrong("the mean over rows and classes", says="loss:")
def over_classes(logits, y):
    one_hot = F.one_hot(y, logits.shape[1])
    terms = torch.where(one_hot == 1, -logits.log_softmax(1), 0.0)
    return terms.mean(), slope(logits, y) / logits.shape[1]


@ex.wrong("the gradient of the sum beside the loss of the mean", says="gradient")
def gradient_of_sum(logits, y):
    return -right(logits.log_softmax(1), y).mean(), slope(logits, y) * len(y)


@ex.wrong("the probabilities as gradient, the one-hot label forgotten", says="gradient")
def no_one_hot(logits, y):
    return -right(logits.log_softmax(1), y).mean(), probabilities(logits) / len(y)
