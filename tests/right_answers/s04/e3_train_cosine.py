"""Exercise 04.3, `train_cosine`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch
from torch.optim import lr_scheduler as sched

from dlsys_checks.s04.e3_train_cosine import cosine, ex, updates_of


def loop(opt, losses, epochs, accumulate, schedule):
    """The training loop with any schedule that moves after each update."""
    opt.zero_grad()
    for _ in range(epochs):
        for n, loss in enumerate(losses, 1):
            loss().backward()
            if n % accumulate == 0 or n == len(losses):
                opt.step()
                opt.zero_grad()
                schedule.step()


ex.equivalent("if n % accumulate == 0 or n == len(losses): -> "
              "if n % accumulate <= 0 or n == len(losses):",
              "a remainder by a positive number is never negative")
ex.equivalent("if n % accumulate == 0 or n == len(losses): -> "
              "if n % accumulate == 0 or n >= len(losses):",
              "n never exceeds the number of losses")


@ex.right("LambdaLR")
def by_lambda(opt, losses, epochs, accumulate):
    total = updates_of(losses, epochs, accumulate)
    schedule = sched.LambdaLR(opt, lambda k: (1 + math.cos(math.pi * k / total)) / 2)
    loop(opt, losses, epochs, accumulate, schedule)


@ex.right("rates set by hand, groups cut from the list")
def by_hand(opt, losses, epochs, accumulate):
    start = [group["lr"] for group in opt.param_groups]
    parts = [losses[k:k + accumulate] for k in range(0, len(losses), accumulate)] * epochs
    for k, part in enumerate(parts):
        for group, rate in zip(opt.param_groups, start, strict=True):
            group["lr"] = rate * (1 + math.cos(math.pi * k / len(parts))) / 2
        opt.zero_grad(set_to_none=False)
        for loss in part:
            loss().backward()
        opt.step()
    opt.zero_grad(set_to_none=False)


@ex.right("one backward pass for a group")
def one_backward(opt, losses, epochs, accumulate):
    schedule = cosine(opt, updates_of(losses, epochs, accumulate))
    opt.zero_grad()
    for _ in range(epochs):
        for k in range(0, len(losses), accumulate):
            sum(loss() for loss in losses[k:k + accumulate]).backward()
            opt.step()
            schedule.step()
            opt.zero_grad()


@ex.right("gradients added up by autograd.grad")
def by_autograd(opt, losses, epochs, accumulate):
    params = [p for group in opt.param_groups for p in group["params"]]
    schedule = cosine(opt, updates_of(losses, epochs, accumulate))
    for _ in range(epochs):
        waiting = list(losses)
        while waiting:
            part, waiting = waiting[:accumulate], waiting[accumulate:]
            grads = [torch.autograd.grad(loss(), params) for loss in part]
            for p, *each in zip(params, *grads, strict=True):
                p.grad = torch.stack(each).sum(0)
            opt.step()
            schedule.step()
    for p in params:
        p.grad = None
