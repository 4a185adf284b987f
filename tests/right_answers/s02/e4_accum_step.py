"""Exercise 02.4, `accum_step`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.s02.e4_accum_step import ex


@ex.right("sums, divided by all rows")
def by_sums(model, opt, batches):
    rows, total = sum(len(x) for x, _ in batches), 0.0
    opt.zero_grad()
    for x, y in batches:
        loss = F.cross_entropy(model(x), y, reduction="sum") / rows
        loss.backward()
        total += loss.item()
    opt.step()
    return total


@ex.right("gradients scaled at the end")
def scaled_later(model, opt, batches):
    total, rows = 0.0, 0
    for p in model.parameters():
        p.grad = None
    for x, y in batches:
        loss = nn.CrossEntropyLoss(reduction="sum")(model(x), y)
        loss.backward()
        total, rows = total + loss.item(), rows + len(y)
    for p in model.parameters():
        p.grad /= rows
    opt.step()
    return total / rows


@ex.right("torch.func.grad of each part")
def by_function(model, opt, batches):
    start = {name: p.detach() for name, p in model.named_parameters()}
    rows, total, sums = sum(len(y) for _, y in batches), 0.0, {}

    def loss_of(params, x, y):
        return F.cross_entropy(torch.func.functional_call(model, params, (x,)), y)
    for x, y in batches:
        found, loss = torch.func.grad_and_value(loss_of)(start, x, y)
        total += loss.item() * len(y) / rows
        for name, slope in found.items():
            sums[name] = sums.get(name, 0) + slope * (len(y) / rows)
    for name, p in model.named_parameters():
        p.grad = sums[name]
    opt.step()
    return total


@ex.right("row by row, by autograd.grad")
def by_rows(model, opt, batches):
    pairs = [(row[None], y[k:k + 1]) for x, y in batches for k, row in enumerate(x)]
    params, total = list(model.parameters()), 0.0
    sums = [torch.zeros_like(p) for p in params]
    for x, y in pairs:
        loss = -model(x).log_softmax(1)[0, y[0]]
        for held, slope in zip(sums, torch.autograd.grad(loss, params), strict=True):
            held += slope / len(pairs)
        total += loss.item()
    opt.zero_grad()
    for p, held in zip(params, sums, strict=True):
        p.grad = held
    opt.step()
    return total / len(pairs)


@ex.right("the slope of the logits by hand")
def by_hand(model, opt, batches):
    rows, total = sum(len(y) for _, y in batches), 0.0
    opt.zero_grad(set_to_none=False)
    for p in model.parameters():
        p.grad = None
    for x, y in batches:
        logits = model(x)
        chosen = F.one_hot(y, logits.shape[1])
        total -= (logits.detach().log_softmax(1) * chosen).sum().item()
        logits.backward((logits.detach().softmax(1) - chosen) / rows)
    opt.step()
    return total / rows


@ex.right("by functional gradients")
def by_functional_gradients(model, opt, batches):
    rows, total = sum(len(y) for _, y in batches), 0.0
    names, params = zip(*model.named_parameters(), strict=True)
    opt.zero_grad()
    for x, y in batches:
        def loss_of(values, x=x, y=y):
            out = torch.func.functional_call(model, values, (x,))
            return F.cross_entropy(out, y) * (len(y) / rows)
        values = dict(zip(names, [p.detach() for p in params], strict=True))
        grads, loss = torch.func.grad_and_value(loss_of)(values)
        for name, p in zip(names, params, strict=True):
            p.grad = grads[name] if p.grad is None else p.grad + grads[name]
        total += loss.item()
    opt.step()
    return total
