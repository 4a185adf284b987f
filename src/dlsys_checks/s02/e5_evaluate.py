"""Exercise 02.5, `evaluate`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts, expect_type

ex = exercise("02.5", "evaluate",
              seen=("first", "second", "training", "batches"))


@ex.cases
def cases(g):
    def one(name, sizes, training):
        def batch(n):
            return [torch.randn(n, 4, generator=g), torch.randint(3, (n,), generator=g)]
        first = batch(sizes[0])
        return name, {"first": torch.randn(8, 4, generator=g),
                      "second": torch.randn(3, 8, generator=g) * 2, "training": training,
                      "batches": [first, *map(batch, sizes[1:])]}
    return [one("a small last batch", (7, 7, 1), True), one("a model in eval mode", (5, 2), False),
            one("batches of three sizes", (11, 4, 2), True)]


@ex.act
def act(fn, first, second, training, batches):
    kept = []

    def pack(tensor):
        kept.append(1)
        return tensor

    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Dropout(0.5),
                          nn.Linear(8, 3, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(first)
        model[3].weight.copy_(second)
    model.train(training)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = fn(model, [(x, y) for x, y in batches])
    return {"result": result, "graph": bool(kept), "modes": [m.training for m in model.modules()]}


@ex.law
def law(out, first, second, training, batches):
    expect_parts(out, "result", "graph", "modes")
    x = torch.cat([x for x, _ in batches]).double()
    y = torch.cat([y for _, y in batches])
    logits = (x @ first.double().T).clamp(min=0) @ second.double().T
    chosen = logits[torch.arange(len(y)), y]
    loss = float(((logits.exp().sum(1)).log() - chosen).mean())
    right = sum(max(range(3), key=row.__getitem__) == k
                for row, k in zip(logits.tolist(), y.tolist(), strict=True))
    expect_type("result", out["result"], tuple)
    expect_equal("number of results", len(out["result"]), 2)
    expect_close("mean cross-entropy", out["result"][0], loss, rtol=1e-4, atol=1e-6)
    expect_close("accuracy", out["result"][1], right / len(y), rtol=1e-5, atol=1e-6)
    # What was kept and the flags are seen by the act alone, beside the learner's code.
    expect_equal("whether tensors were kept for a backward", out["graph"], False,
                 "Switch the graph off while you measure.")
    # nn.Sequential and its four layers all came in one mode.
    expect_equal("training flags of the model afterwards", out["modes"], [training] * 5)


def totals(model, batches):
    """Sum of the losses and number of right rows, as the model is set up now."""
    loss, right = 0.0, 0
    for x, y in batches:
        logits = model(x)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        right += int((logits.argmax(1) == y).sum())
    return loss, right


def count(batches):
    return sum(len(y) for _, y in batches)


@ex.wrong("the mean of the batch means", says="mean cross-entropy")
@torch.no_grad()
def mean_of_means(model, batches):
    was = model.training
    model.eval()
    pairs = [[value / len(part[1]) for value in totals(model, [part])] for part in batches]
    model.train(was)
    loss, right = (sum(values) / len(batches) for values in zip(*pairs, strict=True))
    return loss, right


@ex.wrong("dropout left on", says="mean cross-entropy", trap="01.1")
@torch.no_grad()
def dropout_on(model, batches):
    loss, right = totals(model, batches)
    return loss / count(batches), right / count(batches)


@ex.wrong("eval mode that is never left again", says="training flags", trap="01.1")
@torch.no_grad()
def stays_in_eval(model, batches):
    loss, right = totals(model.eval(), batches)
    return loss / count(batches), right / count(batches)


@ex.wrong("train() at the end, whatever the mode was", says="training flags", trap="01.1")
@torch.no_grad()
def always_train(model, batches):
    loss, right = totals(model.eval(), batches)
    model.train()
    return loss / count(batches), right / count(batches)


@ex.wrong("eval mode without no_grad", says="kept for a backward")
def builds_graphs(model, batches):
    was = model.training
    loss, right = totals(model.eval(), batches)
    model.train(was)
    return loss / count(batches), right / count(batches)


@ex.wrong("tensors instead of floats", says="type of the mean cross-entropy")
@torch.no_grad()
def as_tensors(model, batches):
    was = model.training
    loss, right = totals(model.eval(), batches)
    model.train(was)
    return torch.tensor(loss / count(batches)), torch.tensor(right / count(batches))


@ex.wrong("sums that are never divided", says="mean cross-entropy")
@torch.no_grad()
def undivided_sums(model, batches):
    was = model.training
    loss, right = totals(model.eval(), batches)
    model.train(was)
    return loss, float(right)
