"""Exercise 04.9, `lion_step`."""

from __future__ import annotations

import torch

from dlsys_checks.s04.common import AT, STEPS, expect_path
from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import Broken, expect_parts

ex = exercise("04.9", "lion_step",
              seen=("weights", "grads", "lr", "betas", "decay"))


def blends(grads, b1, b2):
    """What Lion takes the sign of at each step, in float64. Source: Chen et al. 2023, alg. 2."""
    m, out = torch.zeros_like(grads[0], dtype=torch.float64), []
    for g in grads.double():
        out.append(b1 * m + (1 - b1) * g)
        m = b2 * m + (1 - b2) * g
    return torch.stack(out)


@ex.cases
def cases(g):
    def one(name, decay, betas=(0.9, 0.99)):
        grads = torch.randn(STEPS, 4, generator=g)
        while blends(grads, *betas).abs().min() < 1e-5:  # a sign that rounding could turn
            grads = torch.randn(STEPS, 4, generator=g)
        return name, {"weights": torch.randn(4, generator=g) + 1, "grads": grads,
                      "lr": 0.005 + 0.01 * float(torch.rand((), generator=g)),
                      "betas": list(betas), "decay": decay}
    return [one("no decay", 0.0), one("with decay", 0.5),
            one("other betas", 0.2, (0.5, 0.95))]


@ex.act
def act(fn, weights, grads, lr, betas, decay):
    w, state, shown, touched = weights.clone(), {}, [], False
    for k, grad in enumerate(grads):
        given = grad.clone()
        fn(w, given, state, lr, tuple(betas), decay)
        touched = touched or not torch.equal(given, grad)
        if k in (0, 1, 11, 99, 199):
            shown.append(w.clone())
    return {"weights": torch.stack(shown), "touched": touched}


@ex.law
def law(out, weights, grads, lr, betas, decay):
    expect_parts(out, "weights", "touched")
    w, shown = weights.double(), []
    for k, blend in enumerate(blends(grads, *betas)):
        w = w - lr * (blend.sign() + decay * w)
        if k in AT:
            shown.append(w)
    expect_path(out["weights"], torch.stack(shown).float(), AT)
    if out["touched"] is not False:  # seen from inside: the gradients do not come back
        raise Broken("the caller's gradient", "changed", "left alone", "Work on a copy.")


def lion(w, grad, state, lr, b1, b2, decay, *, early=False, bare=False, coupled=False,
         signed=True, with_rate=True):
    """The right step with the mistakes as options."""
    g = grad + decay * w if coupled else grad
    m = state.get("m", torch.zeros_like(w))
    state["m"] = b2 * m + (1 - b2) * g
    m = state["m"] if early else m
    move = m if bare else b1 * m + (1 - b1) * g
    if not coupled:
        w.mul_(1 - (lr if with_rate else 1.0) * decay)
    w.sub_(lr * (move.sign() if signed else move))


@ex.wrong("one beta for both jobs", says="weights after")
def one_beta(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, betas[0], betas[0], weight_decay)


@ex.wrong("the two betas swapped", says="weights after")
def swapped_betas(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, betas[1], betas[0], weight_decay)


@ex.wrong("the momentum updated before the direction is taken", says="weights after")
def updates_first(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, *betas, weight_decay, early=True)


@ex.wrong("the sign of the momentum alone", says="weights after")
def sign_of_momentum(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, *betas, weight_decay, early=True, bare=True)


@ex.wrong("decay added to the gradient, where the sign swallows it", says="weights after",
          trap="04.4")
def decay_in_the_sign(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, *betas, weight_decay, coupled=True)


@ex.wrong("the blend itself, without its sign", says="weights after")
def no_sign(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, *betas, weight_decay, signed=False)


@ex.wrong("shrunk by the decay alone, the rate forgotten", says="weights after")
def decay_without_rate(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, *betas, weight_decay, with_rate=False)
