"""Exercise 03.2, `class_loss`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_parts

ex = exercise("03.2", "class_loss",
              seen=("scores", "labels"))


@ex.cases
def cases(g):
    def one(name, rows, classes, column, scale=2.0, missing=0):
        labels = torch.randint(classes, (rows,), generator=g)
        labels[torch.randperm(rows, generator=g)[:missing]] = -1
        return name, {"scores": torch.randn(rows, classes, generator=g) * scale,
                      "labels": labels[:, None] if column else labels}
    return [one("labels of shape (N,)", 7, 4, False),
            one("labels as a column", 6, 5, True),
            one("a column with gaps", 9, 3, True, missing=4),
            one("large scores, some of them wrong", 8, 6, False, scale=12.0),
            one("rows without a label", 10, 4, False, missing=3)]


@ex.act
def act(fn, scores, labels):
    leaf = scores.clone().requires_grad_()
    loss = fn(leaf, labels)
    connected = isinstance(loss, torch.Tensor) and loss.requires_grad and loss.numel() == 1
    grad = torch.autograd.grad(loss.sum(), leaf)[0] if connected else None
    return {"loss": loss, "grad": grad}


@ex.law
def law(out, scores, labels):
    expect_parts(out, "loss", "grad")
    y, z = labels.flatten().tolist(), scores.double()
    keep = [k for k, label in enumerate(y) if label >= 0]
    logs = z - z.logsumexp(1, keepdim=True)
    wanted = -sum(logs[k, y[k]] for k in keep) / len(keep)
    expect_close("loss", out["loss"], wanted.float(), rtol=1e-4, atol=1e-5,
                 look="Cross-entropy, averaged over the rows that have a label.")
    connected = "A loss has to stay connected to the scores."
    if out["grad"] is None:
        raise Broken("gradient with respect to the scores", "none", "a tensor", connected)
    grad = torch.zeros_like(z)
    for k in keep:
        grad[k] = logs[k].exp() / len(keep)
        grad[k, y[k]] -= 1 / len(keep)
    expect_close("gradient with respect to the scores", out["grad"], grad.float(), rtol=1e-4,
                 atol=1e-6, look=connected)


def labelled(scores, labels):
    y = labels.reshape(-1)
    return scores[y >= 0], y[y >= 0]


@ex.wrong("squared error on the class number", says="loss:")
def number_regression(scores, labels):
    z, y = labelled(scores, labels)
    expected = z.softmax(1) @ torch.arange(z.shape[1], dtype=z.dtype)
    return (expected - y).square().mean()


@ex.wrong("a column of labels that meets every row: silent broadcasting", says="loss:")
def broadcast(scores, labels):
    keep = labels >= 0
    picked = scores.log_softmax(1)[torch.arange(len(scores)), labels.clamp(min=0)]
    return -(picked * keep).sum() / (keep.expand_as(picked)).sum()


@ex.wrong("squared error after a softmax", says="loss:")
def squared_after_softmax(scores, labels):
    z, y = labelled(scores, labels)
    return (z.softmax(1) - F.one_hot(y, z.shape[1])).square().sum(1).mean()


@ex.wrong("squared error between raw scores and one-hot labels", says="loss:")
def squared_on_scores(scores, labels):
    z, y = labelled(scores, labels)
    return (z - F.one_hot(y, z.shape[1])).square().mean()


@ex.wrong("rows without a label counted in the mean", says="rows that have a label")
def counts_gaps(scores, labels):
    y = labels.reshape(-1)
    return F.cross_entropy(scores, y, ignore_index=-1, reduction="sum") / len(y)


@ex.wrong("-1 taken for the last class", says="rows that have a label")
def last_class(scores, labels):
    return F.cross_entropy(scores, labels.reshape(-1) % scores.shape[1])


@ex.wrong("a softmax before the cross-entropy", says="loss:", trap="03.1")
def softmax_first(scores, labels):
    z, y = labelled(scores, labels)
    return F.cross_entropy(z.softmax(1), y)


@ex.wrong("a loss cut from its graph by item()", says="gradient")
def disconnected(scores, labels):
    z, y = labelled(scores, labels)
    return torch.tensor(F.cross_entropy(z, y).item())
