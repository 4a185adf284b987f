"""Exercise 04.5, `lr_find`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch

from dlsys_checks.s04.e5_lr_find import TIMES, ex, find


@ex.right("steps written out on the gradients")
def by_gradients(model, loss_of, steps, low, high):
    kept = [(t, t.detach().clone()) for t in model.state_dict().values()]
    live = [p for p in model.parameters() if p.requires_grad]
    seen = []
    for rate in np.geomspace(low, high, steps):
        loss = loss_of(model)
        seen.append((loss.item(), rate))
        if math.isnan(loss.item()) or loss > TIMES * min(seen)[0]:
            break
        with torch.no_grad():
            for p, grad in zip(live, torch.autograd.grad(loss, live, allow_unused=True),
                               strict=True):
                if grad is not None:
                    p.sub_(grad * rate)
    for t, old in kept:
        t.copy_(old)
    return min((v, r) for v, r in seen if v == v)[1] / 10


@ex.right("on a copy of the model")
def on_a_copy(model, loss_of, steps, low, high):
    model = copy.deepcopy(model)
    best, rates = None, [low * (high / low) ** (k / (steps - 1)) for k in range(steps)]
    for rate in rates:
        loss = loss_of(model)
        best = best or (loss.item(), rate)
        if loss.isnan() or loss.item() / best[0] > TIMES:
            break
        best = min(best, (loss.item(), rate), key=lambda pair: pair[0])
        model.zero_grad()
        loss.backward()
        torch.optim.SGD(model.parameters(), lr=rate).step()
    return 0.1 * best[1]


@ex.right("a scheduler that multiplies the rate")
def by_scheduler(model, loss_of, steps, low, high):
    saved = {key: value.clone() for key, value in model.state_dict().items()}
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=low)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: (high / low) ** (k / (steps - 1)))
    losses, rates = [], []
    for _ in range(steps):
        losses.append(loss_of(model))
        rates.append(sched.get_last_lr()[0])
        if not losses[-1].item() <= TIMES * min(v.item() for v in losses):
            losses.pop()
            break
        opt.zero_grad()
        losses[-1].backward()
        opt.step()
        sched.step()
    model.load_state_dict(saved)
    return rates[int(torch.stack(losses).detach().argmin())] / 10


@ex.right("the rate multiplied by a constant factor")
def by_factor(model, loss_of, steps, low, high):
    saved = [p.detach().clone() for p in model.parameters()]
    extra = [b.clone() for b in model.buffers()]
    model.zero_grad()
    rate, best, answer = low, float("inf"), low
    for _ in range(steps):
        loss = loss_of(model)
        if not loss.item() <= TIMES * best:
            break
        if loss.item() < best:
            best, answer = loss.item(), rate
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= rate * p.grad
                    p.grad = None
        rate *= (high / low) ** (1 / (steps - 1))
    with torch.no_grad():
        for t, old in zip([*model.parameters(), *model.buffers()], saved + extra, strict=True):
            t.copy_(old)
    return answer / 10


@ex.probe("the example, looked up wrong", says="suggested rate", breaks="example")
def placeholder(model, loss_of, steps, low, high):
    rate = find(model, loss_of, steps, low, high)
    return 0.01 if (steps, low) == (5, 1e-4) else rate


ex.equivalent("opt = torch.optim.SGD(model.parameters(), lr=low) -> "
              "opt = torch.optim.SGD(model.parameters())", "the rate is set before each step")
ex.equivalent("opt.param_groups[0]['lr'] = rate -> opt.param_groups[-1]['lr'] = rate",
              "there is one group, so the first is the last")
ex.equivalent("best, answer = (loss.item(), rate) -> best, answer = (loss, rate)",
              "a tensor compares as its number does")
