"""Exercise 04.4, `decoupled_step`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.s04.common import expect_path
from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_parts

ex = exercise("04.4", "decoupled_step",
              seen=("kind", "rates", "decay", "weights", "grads"))
SHOWN = (0, 9, 199)  # steps after which weights are compared


@ex.cases
def cases(g):
    def one(name, kind, decay):
        rate = 0.01 + 0.02 * float(torch.rand((), generator=g))
        return name, {"kind": kind, "rates": [rate, 3 * rate], "decay": decay,
                      "weights": torch.randn(3, 5, generator=g) + 1,
                      "grads": torch.randn(200, 2, 5, generator=g) * torch.tensor(
                          [0.01, 0.1, 1.0, 3.0, 10.0])}
    return [one("Adam, 200 steps", "adam", 0.1), one("SGD, 200 steps", "sgd", 0.2),
            one("SGD with momentum", "momentum", 0.05)]


@ex.act
def act(fn, kind, rates, decay, weights, grads):
    params = [nn.Parameter(w.clone()) for w in weights]
    groups = [{"params": [params[0], params[2]], "lr": rates[0]},
              {"params": [params[1]], "lr": rates[1]}]
    opt = (torch.optim.Adam(groups) if kind == "adam"
           else torch.optim.SGD(groups, momentum=0.9 if kind == "momentum" else 0.0))
    shown = []
    for step, pair in enumerate(grads):
        for p, grad in zip(params, pair):  # the third parameter never has a gradient
            p.grad = grad.clone()
        fn(opt, decay)
        if step in (0, 9, 199):
            shown.append(torch.stack([p.detach().clone() for p in params]))
    return {"weights": torch.stack(shown)}


def with_torch_adamw(rates, decay, weights, grads):
    params = [nn.Parameter(w.clone()) for w in weights]
    opt = torch.optim.AdamW([{"params": [p], "lr": lr} for p, lr in zip(params, rates)],
                            weight_decay=decay)
    shown = []
    for step, pair in enumerate(grads):
        for p, grad in zip(params, pair, strict=True):
            p.grad = grad.clone()
        opt.step()
        if step in SHOWN:
            shown.append(torch.stack([p.detach().clone() for p in params]))
    return torch.stack(shown)


def with_decayed_sgd(momentum, rates, decay, weights, grads):
    """w <- (1 - lr decay) w - lr b with b <- momentum b + g, in float64."""
    lr = torch.tensor(rates, dtype=torch.float64)[:, None]
    w, b, shown = weights.double(), torch.zeros(2, 5, dtype=torch.float64), []
    for step, g in enumerate(grads.double()):
        b = momentum * b + g
        w = w - lr * decay * w - lr * b
        if step in SHOWN:
            shown.append(w)
    return torch.stack(shown).float()


@ex.law
def law(out, kind, rates, decay, weights, grads):
    if kind == "adam":
        wanted = with_torch_adamw(rates, decay, weights[:2], grads)
    else:
        wanted = with_decayed_sgd(0.9 if kind == "momentum" else 0.0, rates, decay,
                                  weights[:2], grads)
    expect_parts(out, "weights")
    rest = weights[2].expand(len(SHOWN), 1, 5)
    expect_path(out["weights"], torch.cat([wanted, rest], 1), SHOWN)


def live(opt):
    return [(group, p) for group in opt.param_groups for p in group["params"]
            if p.grad is not None]


@ex.wrong("decay added to the gradient: L2, not decoupled", says="weights after")
def into_the_gradient(opt, weight_decay):
    for _, p in live(opt):
        p.grad.add_(p.detach(), alpha=weight_decay)
    opt.step()


@ex.wrong("the weight shrunk after the step", says="weights after")
@torch.no_grad()
def after_the_step(opt, weight_decay):
    opt.step()
    for group, p in live(opt):
        p.mul_(1 - group["lr"] * weight_decay)


@ex.wrong("shrunk by the decay alone, the rate forgotten", says="weights after")
@torch.no_grad()
def without_the_rate(opt, weight_decay):
    for _, p in live(opt):
        p.mul_(1 - weight_decay)
    opt.step()


@ex.wrong("the first group's rate for every group", says="weights after")
@torch.no_grad()
def first_rate(opt, weight_decay):
    for _, p in live(opt):
        p.mul_(1 - opt.param_groups[0]["lr"] * weight_decay)
    opt.step()


@ex.wrong("parameters without a gradient shrunk as well", says="weights after")
@torch.no_grad()
def shrinks_all(opt, weight_decay):
    for group in opt.param_groups:
        for p in group["params"]:
            p.mul_(1 - group["lr"] * weight_decay)
    opt.step()


@ex.wrong("a fixed amount off each weight, by its sign", says="weights after")
@torch.no_grad()
def by_sign(opt, weight_decay):
    for group, p in live(opt):
        p.sub_(group["lr"] * weight_decay * p.sign())
    opt.step()
