"""Exercise 04.8, `adam_step`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s04.e8_adam_step import adam, ex


@ex.right("buffers changed in place, the corrections folded into the rate")
def folded(w, grad, state, lr, betas, eps, weight_decay):
    if not state:
        state.update(t=0, m=torch.zeros_like(w), v=torch.zeros_like(w))
    state["t"] += 1
    m, v, (b1, b2) = state["m"], state["v"], betas
    m.lerp_(grad, 1 - b1)
    v.mul_(b2).addcmul_(grad, grad, value=1 - b2)
    w.mul_(1 - lr * weight_decay)
    size = v.sqrt().div_((1 - b2 ** state["t"]) ** 0.5).add_(eps)
    w.addcdiv_(m, size, value=-lr / (1 - b1 ** state["t"]))


@ex.right("the averages in float64")
def in_double(w, grad, state, lr, betas, eps, weight_decay):
    g, t = grad.double(), state.get("t", 0) + 1
    m, v = (b * state.get(key, 0) + (1 - b) * x for key, b, x in
            (("m", betas[0], g), ("v", betas[1], g * g)))
    state.update(m=m, v=v, t=t)
    step = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
    w.copy_(w.double() * (1 - lr * weight_decay) - lr * step)


@ex.right("numpy")
def by_numpy(w, grad, state, lr, betas, eps, weight_decay):
    g = grad.numpy().astype("float64")
    state["t"] = t = state.get("t", 0) + 1
    state["m"] = betas[0] * state.get("m", 0.0) + (1 - betas[0]) * g
    state["v"] = betas[1] * state.get("v", 0.0) + (1 - betas[1]) * g**2
    step = state["m"] / (1 - betas[0]**t) / ((state["v"] / (1 - betas[1]**t)) ** 0.5 + eps)
    w[:] = torch.from_numpy(w.numpy() * (1 - lr * weight_decay) - lr * step).float()


@ex.right("corrected averages, moved by a share that falls")
def corrected_kept(w, grad, state, lr, betas, eps, weight_decay):
    t = state["t"] = state.get("t", 0) + 1
    for key, b, x in (("m", betas[0], grad), ("v", betas[1], grad * grad)):
        old = state.get(key, torch.zeros_like(w))
        state[key] = old + (x - old) * ((1 - b) / (1 - b**t))
    w -= lr * weight_decay * w + lr * state["m"] / (state["v"] ** 0.5 + eps)


@ex.right("all gradients kept, each with its share")
def history(w, grad, state, lr, betas, eps, weight_decay):
    state.setdefault("past", []).append(grad.double())
    past = torch.stack(state["past"][::-1])
    age = torch.arange(len(past), dtype=torch.float64)[:, None]
    m, v = (((b**age) * x).sum(0) / (b**age).sum() for b, x in
            ((betas[0], past), (betas[1], past**2)))
    w.mul_(1 - lr * weight_decay).sub_(lr * m / (v.sqrt() + eps))


@ex.probe("the end of the example, looked up", breaks="example")
def placeholder(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay)
    if grad.tolist() == [-7.0]:
        w.fill_(0.9)
