"""Exercise 04.7, `momentum_step`."""

from __future__ import annotations

import torch

from dlsys_checks.s04.common import AT, STEPS, by_torch, expect_path
from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_parts

ex = exercise("04.7", "momentum_step",
              seen=("weights", "grads", "missing", "momentum", "rates"))


@ex.cases
def cases(g):
    def one(name, momentum, gaps, zeros):
        grads = torch.randn(STEPS, 4, generator=g)
        grads[zeros] = 0.0
        first = 0.01 + 0.05 * float(torch.rand((), generator=g))
        return name, {"weights": torch.randn(4, generator=g), "grads": grads, "missing": gaps,
                      "momentum": momentum, "rates": [first, 0.3 * first]}
    return [one("a gradient at every step", 0.9, [], []),
            one("steps with None", 0.9, [1, 7, 8, 9, 50, 99, 199], []),
            one("steps with zeros", 0.8, [], [1, 11, 60, 99, 199]),
            one("momentum 0 is plain SGD", 0.0, [3], [])]


@ex.act
def act(fn, weights, grads, missing, momentum, rates):
    w, state, shown = weights.clone(), {}, []
    buffer = torch.empty_like(w)  # one tensor for all gradients, as a caller may do
    for k, grad in enumerate(grads):
        buffer.copy_(grad)
        fn(w, None if k in missing else buffer, state, rates[k >= 100], momentum)
        if k in (0, 1, 11, 99, 199):
            shown.append(w.clone())
    return {"weights": torch.stack(shown)}


@ex.law
def law(out, weights, grads, missing, momentum, rates):
    expect_parts(out, "weights")
    wanted = by_torch(lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=momentum), weights, grads,
                      rate_at=lambda k: rates[k >= 100], missing=missing)
    expect_path(out["weights"], wanted, AT)


def sgd(w, grad, state, lr, momentum, *, dampening=0.0, nesterov=False, in_buffer=False):
    """The right step with the mistakes as options."""
    scale = lr if in_buffer else 1.0
    b = momentum * state.get("b", 0) + scale * (1 - dampening) * grad
    state["b"] = b
    move = grad + momentum * b if nesterov else b
    w.sub_(move if in_buffer else lr * move)


@ex.wrong("None treated as a gradient of zeros", says="weights after")
def none_is_zero(w, grad, state, lr, momentum):
    sgd(w, torch.zeros_like(w) if grad is None else grad, state, lr, momentum)


@ex.wrong("a gradient of zeros skipped as if it were None", says="weights after")
def zero_is_none(w, grad, state, lr, momentum):
    if grad is not None and (grad != 0).any():
        sgd(w, grad, state, lr, momentum)


@ex.wrong("only a share 1 - momentum of the gradient goes into the buffer", says="weights after")
def averaged(w, grad, state, lr, momentum):
    if grad is not None:
        sgd(w, grad, state, lr, momentum, dampening=momentum)


@ex.wrong("the rate inside the buffer: a later change comes too late", says="weights after")
def rate_in_buffer(w, grad, state, lr, momentum):
    if grad is not None:
        sgd(w, grad, state, lr, momentum, in_buffer=True)


@ex.wrong("Nesterov's look-ahead", says="weights after")
def look_ahead(w, grad, state, lr, momentum):
    if grad is not None:
        sgd(w, grad, state, lr, momentum, nesterov=True)


@ex.wrong("the caller's gradient kept as the buffer", says="weights after")
def keeps_reference(w, grad, state, lr, momentum):
    if grad is None:
        return
    state["b"] = state["b"].mul_(momentum).add_(grad) if "b" in state else grad
    w.sub_(lr * state["b"])


@ex.wrong("the buffer forgotten between calls", says="weights after")
def forgets(w, grad, state, lr, momentum):
    if grad is not None:
        w.sub_(lr * grad)
