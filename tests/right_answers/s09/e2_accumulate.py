"""Exercise 09.2, `accumulate`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import itertools

import torch

from dlsys_checks.s09.e2_accumulate import IGNORE, cross_entropy, ex


@ex.right("sums, divided by what counts, which is known before")
def by_sums(model, opt, batches, n, weight):
    losses = []
    while group := list(itertools.islice(batches, n)):
        y = torch.cat([y for _, y in group])
        y = y[y != IGNORE]
        whole = float(len(y) if weight is None else weight[y].sum())
        if whole:
            opt.zero_grad()
            total = 0.0
            for x, labels in group:
                loss = cross_entropy(model(x), labels, weight, reduction="sum") / whole
                loss.backward()
                total += loss.item()
            opt.step()
            losses.append(total)
    return losses


@ex.right("gradients divided at the end")
def divided_later(model, opt, batches, n, weight):
    losses, held, total, whole = [], 0, 0.0, 0.0
    opt.zero_grad()

    def finish():
        nonlocal total, whole
        if whole:
            for p in model.parameters():
                p.grad /= whole
            opt.step()
            losses.append(total / whole)
        total = whole = 0.0
        opt.zero_grad()
    for x, y in batches:
        loss = cross_entropy(model(x), y, weight, reduction="sum")
        loss.backward()
        kept = y[y != IGNORE]
        whole += float(len(kept) if weight is None else weight[kept].sum())
        total, held = total + loss.item(), held + 1
        if held % n == 0:
            finish()
    if held % n:
        finish()
    return losses


@ex.right("means, weighed by what counts")
def weighed_means(model, opt, batches, n, weight):
    given, losses = list(batches), []
    for at in range(0, len(given), n):
        group = given[at:at + n]
        counts = [float(((y != IGNORE) * (1.0 if weight is None else weight[y.clamp_min(0)])).sum())
                  for _, y in group]
        if sum(counts) == 0:
            continue
        opt.zero_grad()
        mean = 0.0
        for (x, y), count in zip(group, counts, strict=True):
            if count:
                loss = cross_entropy(model(x), y, weight) * (count / sum(counts))
                loss.backward()
                mean += loss.item()
        opt.step()
        losses.append(mean)
    return losses


@ex.right("autograd.grad of each batch, ignored rows left out")
def by_rows(model, opt, batches, n, weight):
    losses, params = [], list(model.parameters())
    for _, pairs in itertools.groupby(enumerate(batches), lambda pair: pair[0] // n):
        sums, total, whole = [torch.zeros_like(p) for p in params], 0.0, 0.0
        for _, (x, y) in pairs:
            x, y = x[y >= 0], y[y >= 0]
            if not len(y):
                continue
            share = torch.ones(len(y)) if weight is None else weight[y]
            loss = -(model(x).log_softmax(1)[torch.arange(len(y)), y] * share).sum()
            for held, slope in zip(sums, torch.autograd.grad(loss, params), strict=True):
                held += slope
            total, whole = total + loss.item(), whole + float(share.sum())
        if whole:
            for p, held in zip(params, sums, strict=True):
                p.grad = held / whole
            opt.step()
            losses.append(total / whole)
    return losses
