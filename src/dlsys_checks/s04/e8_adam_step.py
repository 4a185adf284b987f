"""Exercise 04.8, `adam_step`."""

from __future__ import annotations

import torch

from dlsys_checks.s04.common import AT, STEPS, by_torch, expect_path
from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import Broken, expect_parts

ex = exercise("04.8", "adam_step", by_hand=("Adam", "AdamW", "adam", "adamw"),
              seen=("weights", "grads", "lr", "betas", "decay"))


@ex.cases
def cases(g):
    def one(name, decay=0.0, scale=1.0, betas=(0.9, 0.999), drift=0.3):
        grads = (torch.randn(STEPS, 4, generator=g) + drift) * scale
        return name, {"weights": torch.randn(4, generator=g) + 1, "grads": grads,
                      "lr": 0.005 + 0.01 * float(torch.rand((), generator=g)),
                      "betas": list(betas), "decay": decay}
    return [one("Adam"), one("AdamW", decay=0.3),
            one("Adam with gradients near eps", scale=3e-8),
            one("other betas, with decay", decay=0.1, betas=(0.8, 0.95))]


@ex.act
def act(fn, weights, grads, lr, betas, decay):
    w, state, shown, touched = weights.clone(), {}, [], False
    for k, grad in enumerate(grads):
        given = grad.clone()
        fn(w, given, state, lr, tuple(betas), 1e-8, decay)
        touched = touched or not torch.equal(given, grad)
        if k in (0, 1, 11, 99, 199):
            shown.append(w.clone())
    return {"weights": torch.stack(shown), "touched": touched}


@ex.law
def law(out, weights, grads, lr, betas, decay):
    expect_parts(out, "weights", "touched")

    def build(params):
        if decay:
            return torch.optim.AdamW(params, lr=lr, betas=tuple(betas), weight_decay=decay)
        return torch.optim.Adam(params, lr=lr, betas=tuple(betas))
    expect_path(out["weights"], by_torch(build, weights, grads), AT)
    if out["touched"] is not False:  # seen from inside: the gradients do not come back
        raise Broken("the caller's gradient", "changed", "left alone", "Work on a copy.")


def adam(w, grad, state, lr, betas, eps, decay, *, fix_m=True, fix_v=True, start=0, inside=False,
         store=False, coupled=False, keep_decay=True):
    """The right step with the mistakes as options."""
    b1, b2 = betas
    g = grad + decay * w if coupled else grad
    t = state["t"] = state.get("t", start) + 1
    m = b1 * state.get("m", 0) + (1 - b1) * g
    v = b2 * state.get("v", 0) + (1 - b2) * g * g
    m_hat, v_hat = m / (1 - b1**t) if fix_m else m, v / (1 - b2**t) if fix_v else v
    state["m"], state["v"] = (m_hat, v_hat) if store else (m, v)
    if keep_decay and not coupled:
        w.mul_(1 - lr * decay)
    w.sub_(lr * m_hat / ((v_hat + eps).sqrt() if inside else v_hat.sqrt() + eps))


@ex.wrong("no bias correction", says="weights after")
def uncorrected(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, fix_m=False, fix_v=False)


@ex.wrong("only the first average corrected", says="weights after")
def corrects_m_only(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, fix_v=False)


@ex.wrong("a count that starts one too high", says="weights after")
def late_count(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, start=1)


@ex.wrong("eps under the root", says="weights after")
def eps_inside(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, inside=True)


@ex.wrong("the corrected averages kept as state", says="weights after")
def stores_corrected(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, store=True)


@ex.wrong("decay added to the gradient: L2, not decoupled", says="weights after", trap="04.4")
def coupled_decay(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, coupled=True)


@ex.wrong("no decay at all", says="weights after")
def without_decay(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, keep_decay=False)
