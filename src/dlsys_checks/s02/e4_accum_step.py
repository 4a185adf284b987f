"""Exercise 02.4, `accum_step`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts

ex = exercise("02.4", "accum_step",
              seen=("weight", "bias", "preset", "batches", "lr"))


@ex.cases
def cases(g):
    def one(name, sizes, features, classes, preset=False):
        batches = [[torch.randn(n, features, generator=g) * 3,
                    torch.randint(classes, (n,), generator=g)] for n in sizes]
        return name, {"weight": torch.randn(classes, features, generator=g),
                      "bias": torch.randn(classes, generator=g), "preset": preset,
                      "batches": batches, "lr": 0.1}
    return [one("a small last part", (6, 6, 2), 4, 3),
            one("gradients left over from before", (5, 1), 3, 4, preset=True),
            one("four parts of different sizes", (1, 7, 3, 9), 5, 3)]


@ex.act
def act(fn, weight, bias, preset, batches, lr):
    import weakref
    alive, held = weakref.WeakSet(), []

    class Kept:
        def __init__(self, tensor):
            self.tensor = tensor.detach()
            alive.add(self)

    model = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.copy_(bias)
    for p in model.parameters() if preset else ():
        p.grad = torch.full_like(p, 2.0)
    model.register_forward_pre_hook(lambda module, given: held.append(len(alive)))
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        loss = fn(model, opt, [(x, y) for x, y in batches])
    return {"loss": loss, "weight": model.weight, "bias": model.bias,
            "one_graph": not any(held)}


@ex.law
def law(out, weight, bias, preset, batches, lr):
    expect_parts(out, "loss", "weight", "bias", "one_graph")
    x = torch.cat([x for x, _ in batches]).double()
    y = torch.cat([y for _, y in batches])
    logits = x @ weight.double().T + bias.double()
    top = logits.max(1, keepdim=True).values
    logs = logits - top - (logits - top).exp().sum(1, keepdim=True).log()
    delta = (logs.exp() - F.one_hot(y, logits.shape[1])) / len(y)
    expect_close("weight after the step", out["weight"],
                 (weight.double() - lr * delta.T @ x).float(), rtol=1e-4, atol=1e-5)
    expect_close("bias after the step", out["bias"],
                 (bias.double() - lr * delta.sum(0)).float(), rtol=1e-4, atol=1e-5)
    mean = -sum(float(row[k]) for row, k in zip(logs, y.tolist(), strict=True)) / len(y)
    expect_close("mean loss over all rows", out["loss"], mean, rtol=1e-4, atol=1e-6)
    # Counted by the act's hooks, beside the learner's code: a result does not show its graphs.
    expect_equal("at most one graph alive at a time", out["one_graph"], True,
                 "Call backward for each part before the next forward pass.")


def part_loss(model, x, y):
    return F.cross_entropy(model(x), y)


@ex.wrong("divided by the number of parts", says="weight after")
def over_parts(model, opt, batches):
    opt.zero_grad()
    total = 0.0
    for x, y in batches:
        loss = part_loss(model, x, y) / len(batches)
        loss.backward()
        total += loss.item()
    opt.step()
    return total


def mean_loss(model, batches):
    with torch.no_grad():
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return part_loss(model, x, y).item()


@ex.wrong("not divided at all", says="weight after")
def undivided(model, opt, batches):
    mean = mean_loss(model, batches)
    opt.zero_grad()
    for x, y in batches:
        part_loss(model, x, y).backward()
    opt.step()
    return mean


@ex.wrong("a step after every part", says="weight after")
def step_each(model, opt, batches):
    mean, rows = mean_loss(model, batches), sum(len(y) for _, y in batches)
    for x, y in batches:
        opt.zero_grad()
        (part_loss(model, x, y) * len(y) / rows).backward()
        opt.step()
    return mean


@ex.wrong("each part's gradient clipped", says="weight after", trap="03.3")
def clip_each(model, opt, batches):
    mean, rows = mean_loss(model, batches), sum(len(y) for _, y in batches)
    opt.zero_grad()
    for x, y in batches:
        (part_loss(model, x, y) * len(y) / rows).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step()
    return mean


@ex.wrong("gradients added to those left over from before", says="weight after", trap="02.1")
def keeps_old(model, opt, batches):
    mean, rows = mean_loss(model, batches), sum(len(y) for _, y in batches)
    for x, y in batches:
        (part_loss(model, x, y) * len(y) / rows).backward()
    opt.step()
    return mean


@ex.wrong("one backward for all parts together", says="one graph alive", trap="02.5")
def one_backward(model, opt, batches):
    rows = sum(len(y) for _, y in batches)
    opt.zero_grad()
    loss = sum(part_loss(model, x, y) * (len(y) / rows) for x, y in batches)
    loss.backward()
    opt.step()
    return loss.item()


@ex.wrong("the loss of the last part", says="mean loss over all rows")
def last_loss(model, opt, batches):
    rows = sum(len(y) for _, y in batches)
    opt.zero_grad()
    for x, y in batches:
        loss = part_loss(model, x, y)
        (loss * len(y) / rows).backward()
    opt.step()
    return loss.item()
