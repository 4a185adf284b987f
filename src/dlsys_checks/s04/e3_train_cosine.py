"""Exercise 04.3, `train_cosine`."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim import lr_scheduler as sched

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_length, expect_parts

ex = exercise("04.3", "train_cosine",
              seen=("slopes", "epochs", "accumulate", "rate"))


@ex.cases
def cases(g):
    def one(name, micro, epochs, accumulate):
        return name, {"slopes": torch.randn(micro, 3, generator=g), "epochs": epochs,
                      "accumulate": accumulate,
                      "rate": 0.05 + 0.2 * float(torch.rand((), generator=g))}
    return [one("a last update with fewer micro-batches", 5, 2, 2),
            one("one micro-batch an update", 4, 3, 1),
            one("groups of three", 6, 3, 3),
            one("seven micro-batches in groups of four", 7, 4, 4)]


@ex.act
def act(fn, slopes, epochs, accumulate, rate):
    import warnings

    w = nn.Parameter(torch.zeros(slopes.shape[1]))
    opt = torch.optim.SGD([w], lr=rate)
    rates, grads = [], []

    def record(opt, args, kwargs):
        rates.append(float(opt.param_groups[0]["lr"]))
        grads.append(torch.zeros_like(w) if w.grad is None else w.grad.clone())
    opt.register_step_pre_hook(record)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a scheduler called first shows in the rates
        fn(opt, [lambda s=s: (w * s).sum() for s in slopes], epochs, accumulate)
    left = w.grad is not None and bool((w.grad != 0).any())
    return {"rates": rates, "grads": torch.stack(grads) if grads else None, "left": left}


def group_sums(slopes, accumulate):
    """The gradient of each update of one epoch: sums of consecutive rows."""
    return [part.double().sum(0) for part in slopes.split(accumulate)]


@ex.law
def law(out, slopes, epochs, accumulate, rate):
    sums = group_sums(slopes, accumulate)
    updates = epochs * len(sums)
    expect_parts(out, "rates", "grads", "left")
    expect_length("updates", out["rates"], updates,
                  f"{len(slopes)} micro-batches in groups of {accumulate}, {epochs} epochs.")
    for k, got in enumerate(out["rates"]):
        wanted = rate * math.cos(math.pi * k / (2 * updates)) ** 2
        expect_close(f"rate of update {k} of {updates}", got, wanted, rtol=1e-4, atol=1e-8)
    expect_close("gradients of the updates", out["grads"],
                 torch.stack(sums * epochs).float(), rtol=1e-4, atol=1e-5)
    if out["left"] is not False:
        raise Broken("gradient after the call", "left over", "none", "Clear it after each update.")


def loop(opt, losses, epochs, accumulate, length, after, before=False, clear=True, ragged=True):
    """A training loop with the mistakes as options; `after` names when the schedule moves."""
    schedule = sched.CosineAnnealingLR(opt, length)
    for _ in range(epochs):
        for n, loss in enumerate(losses, 1):
            loss().backward()
            if n % accumulate == 0 or (ragged and n == len(losses)):
                if before:
                    schedule.step()
                opt.step()
                if clear:
                    opt.zero_grad()
                if after == "update" and not before:
                    schedule.step()
            if after == "micro":
                schedule.step()
        if after == "epoch":
            schedule.step()


def updates_of(losses, epochs, accumulate):
    return epochs * -(-len(losses) // accumulate)


@ex.wrong("T_max in epochs, called after every update", says="rate of update")
def epochs_per_update(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, epochs, "update")


@ex.wrong("T_max in updates, called after every epoch", says="rate of update 1")
def updates_per_epoch(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, updates_of(losses, epochs, accumulate), "epoch")


@ex.wrong("the schedule moved after every micro-batch", says="rate of update")
def per_micro(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, updates_of(losses, epochs, accumulate), "micro")


@ex.wrong("T_max counts micro-batches", says="rate of update")
def length_in_micro(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, epochs * len(losses), "update")


@ex.wrong("the schedule called before the optimizer", says="rate of update 0")
def schedule_first(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, updates_of(losses, epochs, accumulate), "update",
         before=True)


@ex.wrong("the last, smaller group of an epoch never used", says="number of updates")
def drops_the_rest(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, epochs * (len(losses) // accumulate), "update",
         ragged=False)


@ex.wrong("gradients never cleared", says="gradients of the updates", trap="02.1")
def never_clears(opt, losses, epochs, accumulate):
    loop(opt, losses, epochs, accumulate, updates_of(losses, epochs, accumulate), "update",
         clear=False)
