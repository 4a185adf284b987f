"""Exercise 09.8, `master_step`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s09.e8_master_step import ex


@ex.right("torch's SGD on the copies")
def by_torch(weights, grads, state, lr, momentum):
    if "opt" not in state:
        state["masters"] = [w.detach().clone().float() for w in weights]
        state["opt"] = torch.optim.SGD(state["masters"], lr=lr, momentum=momentum)
    state["opt"].param_groups[0]["lr"] = lr
    for master, grad in zip(state["masters"], grads, strict=True):
        master.grad = None if grad is None else grad.float()
    state["opt"].step()
    for w, master in zip(weights, state["masters"], strict=True):
        w.data[...] = master.to(torch.bfloat16)


@ex.right("in double precision, by place")
def in_double(weights, grads, state, lr, momentum):
    for k, (w, grad) in enumerate(zip(weights, grads, strict=True)):
        master, v = state.get(k) or (w.detach().double().clone(), 0)
        if grad is not None:
            v = momentum * v + grad.double()
            master = master - lr * v
        state[k] = (master, v)
        w.detach().copy_(master.float())


@ex.right("the part lost by rounding, kept beside the weight")
def remainder(weights, grads, state, lr, momentum):
    for k, (w, grad) in enumerate(zip(weights, grads, strict=True)):
        if grad is None:
            continue
        lost, v = state.get(k, (torch.zeros(w.shape), torch.zeros(w.shape)))
        v = v * momentum + grad.float()
        exact = w.float() + lost - v * lr
        w.copy_(exact)
        state[k] = (exact - w.float(), v)


@ex.right("all gradients kept, and summed anew")
def history(weights, grads, state, lr, momentum):
    past = state.setdefault("past", [[] for _ in weights])
    first = state.setdefault("first", [w.float() for w in weights])
    for w, grad, seen, start in zip(weights, grads, past, first, strict=True):
        if grad is not None:
            seen.append((lr, grad.float()))
            v, total = 0, start
            for rate, slope in seen:
                v = momentum * v + slope
                total = total - rate * v
            w.copy_(total.bfloat16())
