"""Exercise 04.8, `adam_step`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_checks.s04.common import by_torch, expect_by_hand, expect_manners, expect_paths
from dlsys_helpers.acting import library_calls
from dlsys_helpers.expect import expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("04.8", "adam_step", by_hand=("Adam", "AdamW", "adam", "adamw"),
              seen=("tables", "grads", "rates", "settings"), says="weights after")

NEAR_EPS = ("gradients near eps", "a large eps", "an entry without a gradient", "tiny values",
            "two weights, each with its settings")
DECAYED = ("a few steps", "a gradient of zeros", "200 steps", "a rate that changes", "other betas",
           "two weights in turn", "a column of a table",
           "one value", "many values", "huge values", "gradients that fade", *NEAR_EPS)
ex.promise_table("""
step        | Take one step of AdamW | weights after
in place    | on w, in place. | case a column of a table
Adam        | With weight_decay 0.0, AdamW is Adam. | case no decay; the example
by hand     | Write the rule out, without torch.optim. | optimizers of torch.optim
numbers     | Args: w, grad: (N,) float32. | case one value; many values; tiny values; huge values
left alone  | Do not change grad. | the caller's gradient
own state   | state: a dict for this weight alone. | case two weights in turn; two weights, each
              with its settings
empty state | It is empty before the first step. | raised KeyError
rate        | lr: may change from step to step. | case a rate that changes
settings    | betas, eps, weight_decay: may differ from weight to weight. | case two weights, each
              with its settings; other betas; gradients that fade; a large eps
""")
ex.promise("decoupled", "The decay is decoupled, so first multiply w by 1 - lr * "
                        "weight_decay.", cases=DECAYED, says=("weights after",))
ex.promise("200 steps", "Over 200 steps, the weights match torch.optim.AdamW's.",
           cases=("200 steps",))
ex.promise("eps", "This also holds for gradients near eps.", cases=NEAR_EPS)
ex.promise("example", "Example: with w 1, gradient -7, rate 0.1 and decay 0, w becomes 1.1.",
           cases=("the example",))


@ex.cases
def cases(g):
    between = floats(g)
    whole = integers(g)

    def setting(betas=(0.9, 0.999), eps=1e-8, decay=None):
        return {"betas": list(betas), "eps": eps,
                "decay": between(0.3, 1.5) if decay is None else decay}

    def drawn():
        return setting((between(0.3, 0.8), between(0.8, 0.97)), 10 ** between(-2, -1))

    def gradients(steps, n, scale):
        sign = torch.randint(0, 2, (steps, n), generator=g) * 2 - 1.3  # they drift
        return sign.sign() * (0.1 + torch.rand(steps, n, generator=g)) * scale

    def one(name, *settings, sizes=(), steps=0, columns=1, scale=1.0, new_rates=False):
        settings = settings or (setting(),)
        sizes, steps = sizes or (whole(2, 6),) * len(settings), steps or whole(9, 14)
        rates = [between(0.03, 0.1)] * steps
        if new_rates:
            rates = [between(0.01, 0.2) for _ in rates]
        return name, {"tables": [torch.randn(n, columns, generator=g) + 1 for n in sizes],
                      "grads": [gradients(steps, n, scale) for n in sizes],
                      "rates": rates, "settings": list(settings)}

    idle = one("an entry without a gradient")
    idle[1]["grads"][0][:, whole(0, 2)] = 0.0
    zeros = one("a gradient of zeros")
    zeros[1]["grads"][0][whole(1, 8)] = 0.0
    fading = one("gradients that fade", setting((between(0.5, 0.9), between(0.7, 0.9))))
    fading[1]["grads"][0] *= 0.5 ** torch.arange(len(fading[1]["rates"]))[:, None]
    n = whole(2, 6)
    turns = (n, n, n + 1)[:whole(2, 4)]
    return [one("a few steps"), one("no decay", setting(decay=0.0)),
            one("a rate that changes", new_rates=True),
            one("other betas", setting((between(0.0, 0.8), between(0.8, 0.99)))),
            one("a large eps", setting(eps=10 ** between(-3, 0))),
            one("gradients near eps", scale=10 ** between(-8.5, -7.5)), idle, zeros,
            fading,
            one("two weights in turn", *[setting(decay=0.7)] * len(turns), sizes=turns),
            one("two weights, each with its settings", drawn(), drawn()),
            one("a column of a table", columns=whole(2, 5)), one("200 steps", steps=200),
            one("one value", sizes=(1,)), one("many values", sizes=(whole(300, 900),)),
            one("tiny values", scale=1e-4), one("huge values", scale=1e9),
            ("the example", {"tables": [torch.ones(1, 1)], "grads": [torch.tensor([[-7.0]])],
                             "rates": [0.1], "settings": [setting(decay=0.0)]})]


@ex.act
def act(fn, tables, grads, rates, settings):
    # A column is a view: what is not done in place does not reach its table.
    tables = [table.clone() for table in tables]
    views = [table.shape[1] > 1 for table in tables]
    ws = [t[:, 0] if view else t[:, 0].clone() for t, view in zip(tables, views)]
    others, states = [t[:, 1:].clone() for t in tables], [{} for _ in tables]
    paths, touched = [[] for _ in tables], 0
    with library_calls("Adam", "AdamW", "NAdam", "RAdam", "SparseAdam") as used:
        for k, rate in enumerate(rates):
            for i, (w, now) in enumerate(zip(ws, settings)):
                given = grads[i][k].clone()
                fn(w, given, states[i], rate, tuple(now["betas"]), now["eps"], now["decay"])
                touched += not torch.equal(given, grads[i][k])
                paths[i].append((tables[i][:, 0] if views[i] else w).clone())
    beside = sum(int((t[:, 1:] != o).sum()) for t, o in zip(tables, others))
    return {"paths": [torch.stack(path) for path in paths], "touched": touched,
            "beside": beside, "used": sorted(used)}


@ex.law
def law(out, tables, grads, rates, settings):
    expect_parts(out, "paths", "touched", "beside", "used")
    expect_by_hand(out["used"])

    def wanted(table, grad, now):
        def build(ws):
            return torch.optim.AdamW(ws, lr=0.1, betas=tuple(now["betas"]), eps=now["eps"],
                                     weight_decay=now["decay"])
        return by_torch(build, table[:, 0], grad, [{"lr": rate} for rate in rates])
    expect_paths(out["paths"], [*map(wanted, tables, grads, settings)], tables)
    expect_manners(out)


# ---- wrong, by name

@not_an_answer
def adam(w, grad, state, lr, betas, eps, decay, *, fix_m=True, fix_v=True, start=0, inside=False,
         store=False, coupled=False, shrink=None, after=False, folded_eps=False):
    """The right step with the mistakes as options."""
    b1, b2 = betas
    g = grad + decay * w if coupled else grad
    t = state["t"] = state.get("t", start) + 1
    m = b1 * state.get("m", 0) + (1 - b1) * g
    v = b2 * state.get("v", 0) + (1 - b2) * g * g
    m_hat, v_hat = m / (1 - b1**t) if fix_m else m, v / (1 - b2**t) if fix_v else v
    state["m"], state["v"] = (m_hat, v_hat) if store else (m, v)
    shrink = 1 - lr * decay if shrink is None else shrink
    size = (v_hat + eps).sqrt() if inside else v_hat.sqrt() + eps * (
        (1 - b2**t) ** -0.5 if folded_eps else 1)
    w.mul_(1 if coupled or after else shrink)
    w.sub_(lr * m_hat / size)
    w.mul_(shrink if after else 1)


@not_an_answer
def right(w, grad, state, lr, betas, eps, weight_decay):
    b1, b2 = betas
    g = grad
    t = state["t"] = state.get("t", 0) + 1
    m = b1 * state.get("m", 0) + (1 - b1) * g
    v = b2 * state.get("v", 0) + (1 - b2) * g * g
    m_hat, v_hat = m / (1 - b1**t), v / (1 - b2**t)
    state["m"], state["v"] = m, v
    shrink = 1 - lr * weight_decay
    size = v_hat.sqrt() + eps
    w.mul_(shrink)
    w.sub_(lr * m_hat / size)
    w.mul_(1)


wrong = ex.edits(right)
wrong("leaving out the bias correction", "step", "m / (1 - b1**t), v / (1 - b2**t)", "m, v")
wrong("correcting only the first average", "step", "v / (1 - b2**t)", "v")
wrong("correcting only the second average", "step", "m / (1 - b1**t)", "m")
wrong("counting steps from 0, so that the correction divides by zero", "step",
      '"t", 0', '"t", -1', says="got nan")
wrong("dividing by 1 - beta at every step instead of by 1 - beta**t",
      "step", "b1, b2 =", 'state["t"] = 0; b1, b2 =')
wrong("starting the step count at 2 instead of 1", "step", '"t", 0', '"t", 1')
wrong("keeping the corrected averages in state instead of the uncorrected ones",
      "step", "m, v", "m_hat, v_hat")
wrong("swapping the two betas", "step", "b2 = betas", "b2 = betas[::-1]")
wrong("returning a new tensor and leaving w unchanged", "step",
      "b1, b2 =", "new = w.clone(); b1, b2 =", "w.mul_(shrink)", "new.mul_(shrink)",
      "w.sub_", "new.sub_", "w.mul_(1)", "new.mul_(1); return new")


@ex.wrong("skipping a gradient of zeros as if it were None", trap="04.7", breaks="step")
def zero_is_none(w, grad, state, lr, betas, eps, weight_decay):
    if grad.any():
        adam(w, grad, state, lr, betas, eps, weight_decay)


wrong("replacing w.data, which disconnects a view from its base", "in place",
      "b1, b2 =", "new = w.clone(); b1, b2 =", "w.mul_(shrink)", "new.mul_(shrink)",
      "w.sub_", "new.sub_", "w.mul_(1)", "new.mul_(1); w.data = new")
wrong("using AdamW's default of 0.01 if no decay was asked for", "Adam",
      "b1, b2 =", "decay = weight_decay or 0.01; b1, b2 =", "lr * weight_decay", "lr * decay",
      trap="04.4")


@ex.wrong("using torch's own optimizer", breaks="by hand")
def by_library(w, grad, state, lr, betas, eps, weight_decay):
    if not state:
        state["opt"] = torch.optim.AdamW([w], betas=betas, eps=eps, weight_decay=weight_decay)
    state["opt"].param_groups[0]["lr"] = lr
    w.grad = grad.clone()
    state["opt"].step()
    w.grad = None


wrong("clipping gradients to a norm of 100", "numbers",
      "b1, b2 =",
      'grad = grad * min(1.0, 100 / (float(grad.norm()) + 1e-30) * (1 + 1e-3 * state.get("t", '
      "0))); b1, b2 =")


@ex.wrong("scaling the caller's gradient in place", breaks="left alone")
def works_in_gradient(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad.clone(), state, lr, betas, eps, weight_decay)
    grad.mul_(1 - betas[0])


@ex.wrong("keeping one state for all weights, outside the state dict", breaks="own state")
def one_memory(w, grad, state, lr, betas, eps, weight_decay, memory={}):  # noqa: B006
    if not state:
        memory[len(w)] = {}
        state["begun"] = True
    adam(w, grad, memory[len(w)], lr, betas, eps, weight_decay)


wrong("reading the state dict before anything was written to it", "empty state",
      "b1, b2 =", 'state["t"] += 1; b1, b2 =')
wrong("using the first step's rate in every step", "rate",
      "b1, b2 =", 'lr = state.setdefault("first", lr); b1, b2 =')
wrong("using betas of 0.9 and 0.999, whatever is asked for", "settings",
      "b2 = betas", "b2 = (0.9, 0.999)")
wrong("using an eps of 1e-8, whatever is asked for", "settings", "() + eps", "() + 1e-8")
wrong("adding the decay to the gradient, which is L2 regularization, not decoupled decay",
      "decoupled",
      "g = grad", "g = grad + weight_decay * w", "(shrink)", "(1)", trap="04.4")
wrong("leaving out the decay", "decoupled", "1 - lr * weight_decay", "1")
wrong("shrinking the weight after the step", "decoupled",
      "w.mul_(shrink)", "w.mul_(1); w.sub_(lr * m_hat / size); w.mul_(shrink)",
      "w.sub_(lr * m_hat / size)\n    w.mul_(1)", "pass")
wrong("shrinking the weight by the decay alone, without the rate", "decoupled",
      "lr * weight_decay", "weight_decay")


@ex.wrong("no longer correcting the second average after step 100",
          breaks="200 steps")
def stops_correcting(w, grad, state, lr, betas, eps, weight_decay):
    adam(w, grad, state, lr, betas, eps, weight_decay, fix_v=state.get("t", 0) < 100)


wrong("adding eps under the root instead of to the root",
      "eps", "v_hat.sqrt() + eps", "(v_hat + eps).sqrt()")
wrong("adding eps to the root of the uncorrected average", "eps",
      "() + eps", "() + eps * (1 - b2**t) ** (-0.5)")
wrong("leaving out eps, so that a gradient of zeros divides by zero", "eps",
      "v_hat.sqrt() + eps", "v_hat.sqrt()")
