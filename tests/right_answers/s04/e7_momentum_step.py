"""Exercise 04.7, `momentum_step`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s04.e7_momentum_step import ex, sgd


@ex.right("a buffer of its own, changed in place")
def own_buffer(w, grad, state, lr, momentum):
    if grad is not None:
        if not state:
            state["buffer"] = torch.zeros_like(w)
        state["buffer"].mul_(momentum).add_(grad)
        w.add_(state["buffer"], alpha=-lr)


@ex.right("all gradients kept, each with its fading share")
def history(w, grad, state, lr, momentum):
    if grad is None:
        return
    past = [(share * momentum, g) for share, g in state.get("past", [])]
    state["past"] = [*past, (1.0, grad.clone())]
    w -= lr * sum(share * g for share, g in state["past"])


@ex.right("the velocity in float64")
def in_double(w, grad, state, lr, momentum):
    if grad is None:
        return
    state["v"] = grad.double() + (momentum * state["v"] if "v" in state else 0)
    w.copy_(w.double() - lr * state["v"])


@ex.right("numpy")
def by_numpy(w, grad, state, lr, momentum):
    if grad is None:
        return
    state["v"] = momentum * state.get("v", 0.0) + grad.numpy()
    w[:] = w - torch.from_numpy(lr * state["v"]).float()


@ex.right("Python numbers, one by one")
def by_numbers(w, grad, state, lr, momentum):
    if grad is not None:
        old = state.get("v") or [0.0] * len(w)
        state["v"] = [momentum * v + g for v, g in zip(old, grad.tolist(), strict=True)]
        w.sub_(torch.tensor(state["v"]) * lr)


@ex.probe("the end of the example, looked up", breaks="example")
def placeholder(w, grad, state, lr, momentum):
    if grad is None:
        return
    sgd(w, grad, state, lr, momentum)
    if (lr, momentum, len(w)) == (0.1, 0.5, 1) and not grad.any():
        w.fill_(0.9)
