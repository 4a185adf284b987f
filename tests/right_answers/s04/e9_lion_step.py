"""Exercise 04.9, `lion_step`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s04.e9_lion_step import ex, lion


@ex.right("a buffer of its own, changed in place")
def own_buffer(w, grad, state, lr, betas, weight_decay):
    if not state:
        state["m"] = torch.zeros_like(w)
    move = torch.lerp(grad, state["m"], betas[0]).sign_()
    state["m"].lerp_(grad, 1 - betas[1])
    w.mul_(1 - lr * weight_decay).add_(move, alpha=-lr)


@ex.right("the momentum in float64")
def in_double(w, grad, state, lr, betas, weight_decay):
    m, g = state.get("m", 0.0), grad.double()
    move = torch.sign(m + (1 - betas[0]) * (g - m))
    state["m"] = m + (1 - betas[1]) * (g - m)
    w.copy_(w.double() - lr * (move + weight_decay * w.double()))


@ex.right("numpy")
def by_numpy(w, grad, state, lr, betas, weight_decay):
    g, m = grad.numpy(), state.get("m", 0.0)
    blend = betas[0] * m + (1 - betas[0]) * g
    state["m"] = betas[1] * m + (1 - betas[1]) * g
    w[:] = torch.from_numpy(w.numpy() * (1 - lr * weight_decay)
                            - lr * ((blend > 0) * 1.0 - (blend < 0) * 1.0)).float()


@ex.right("all gradients kept, each with its share")
def history(w, grad, state, lr, betas, weight_decay):
    past = torch.stack([*state.get("past", []), grad.double()])
    state["past"] = list(past)
    age = torch.arange(len(past) - 2, -1, -1, dtype=torch.float64)[:, None]
    m = ((1 - betas[1]) * betas[1] ** age * past[:-1]).sum(0)
    w.mul_(1 - lr * weight_decay).sub_(lr * (betas[0] * m + (1 - betas[0]) * past[-1]).sign())


@ex.right("Python numbers, one by one")
def by_numbers(w, grad, state, lr, betas, weight_decay):
    old, new = state.get("m", [0.0] * len(w)), grad.tolist()
    for i, (m, g) in enumerate(zip(old, new, strict=True)):
        blend = betas[0] * m + (1 - betas[0]) * g
        w[i] = w[i].item() * (1 - lr * weight_decay) - lr * ((blend > 0) - (blend < 0))
    state["m"] = [betas[1] * m + (1 - betas[1]) * g for m, g in zip(old, new, strict=True)]


@ex.probe("the end of the example, looked up", breaks="example")
def placeholder(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, *betas, weight_decay)
    if grad.tolist() == [-3.0]:
        w.fill_(1.8)
