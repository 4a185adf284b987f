"""Exercise 04.9, `lion_step`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_checks.s04.common import expect_manners, expect_paths
from dlsys_helpers.expect import expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("04.9", "lion_step", seen=("tables", "grads", "rates", "settings"),
              says="weights after")

PLAIN = ("a few steps", "60 steps", "gradients of zeros", "two weights in turn",
         "two weights, each with its settings", "a rate that changes", "other betas",
         "a column of a table", "an entry without a gradient", "one value", "many values",
         "tiny values", "huge values")
ex.promise("step", "Then take one step of Lion.", says=("weights after",))
ex.promise("in place", "Work in place.", cases=("a column of a table",))
ex.promise("decay", "Apply decoupled decay to w.", cases=(*PLAIN, "the example"),
           says=("weights after",))
ex.promise("numbers", "Args: w, grad: (N,) float32.",
           cases=("one value", "many values", "tiny values", "huge values"))
ex.promise("left alone", "Do not change grad.", says=("the caller's gradient",))
ex.promise("own state", "state: a dict for this weight alone.",
           cases=("two weights in turn", "two weights, each with its settings"))
ex.promise("empty state", "It is empty before the first step.", says=("raised KeyError",))
ex.promise("rate", "lr: may change from step to step.", cases=("a rate that changes",))
ex.promise("settings", "betas, weight_decay: may differ from weight to weight.",
           cases=("two weights, each with its settings", "other betas", "no decay"))
ex.promise("first beta", "The first beta blends the direction of the step.",
           cases=(*PLAIN, "no decay"))
ex.promise("second beta", "The second beta updates the momentum.", cases=(*PLAIN, "no decay"))
ex.promise("start", "The momentum starts at zero.", cases=(*PLAIN, "no decay"))
ex.promise("sign of 0", "The sign of 0 is 0.",
           cases=("an entry without a gradient", "gradients of zeros"))
ex.promise("example", "Example: with w 1, gradient -3, rate 0.1 and decay 0.5, the first step "
                      "makes w 0.95 + 0.1 = 1.05.", cases=("the example",))


def blends(grads, b1, b2):
    """What Lion takes the sign of at each step, in float64. Source: Chen et al. 2023, alg. 2."""
    m, out = torch.zeros_like(grads[0], dtype=torch.float64), []
    for g in grads.double():
        out.append(b1 * m + (1 - b1) * g)
        m = b2 * m + (1 - b2) * g
    return torch.stack(out)


@ex.cases
def cases(g):
    between = floats(g)
    whole = integers(g)

    def setting(betas=(0.9, 0.99), decay=None):
        return {"betas": list(betas), "decay": between(0.3, 1.5) if decay is None else decay}

    def drawn():
        return setting((between(0.3, 0.8), between(0.85, 0.97)))

    def gradients(steps, n, scale, betas):
        made = torch.randn(steps, n, generator=g)
        while blends(made, *betas).abs().min() < 1e-5:  # a sign that rounding could turn
            made = torch.randn(steps, n, generator=g)
        return made * scale

    def one(name, *settings, sizes=(), steps=0, columns=1, scale=1.0, new_rates=False):
        settings = settings or (setting(),)
        sizes, steps = sizes or (whole(3, 7),) * len(settings), steps or whole(12, 20)
        rates = [between(0.03, 0.1)] * steps
        if new_rates:
            rates = [between(0.01, 0.2) for _ in rates]
        return name, {"tables": [torch.randn(n, columns, generator=g) + 1 for n in sizes],
                      "grads": [gradients(steps, n, scale, now["betas"])
                                for n, now in zip(sizes, settings, strict=True)],
                      "rates": rates, "settings": list(settings)}

    idle, zeros = one("an entry without a gradient"), one("gradients of zeros")
    idle[1]["grads"][0][:, whole(0, 3)] = 0.0
    zeros[1]["grads"][0][:whole(2, 5)] = 0.0  # later ones would leave a memory, and a direction
    zeros[1]["grads"][0][1] = -0.0
    n = whole(3, 7)
    turns = (n, n, n + 1)[:whole(2, 4)]
    return [one("a few steps"), one("no decay", setting(decay=0.0)),
            one("a rate that changes", new_rates=True),
            one("other betas", setting((between(0.0, 0.8), between(0.85, 0.95)))), idle, zeros,
            one("two weights in turn", *[setting(decay=0.7)] * len(turns), sizes=turns),
            one("two weights, each with its settings", drawn(), drawn()),
            one("a column of a table", columns=whole(2, 5)), one("60 steps", steps=60),
            one("one value", sizes=(1,), steps=40),
            one("many values", sizes=(whole(60, 90),)),
            one("tiny values", scale=1e-20), one("huge values", scale=1e20),
            ("the example", {"tables": [torch.ones(1, 1)],
                             "grads": [torch.tensor([[-3.0]])], "rates": [0.1],
                             "settings": [setting(decay=0.5)]})]


@ex.act
def act(fn, tables, grads, rates, settings):
    # A column is a view: what is not done in place does not reach its table.
    tables = [table.clone() for table in tables]
    views = [table.shape[1] > 1 for table in tables]
    ws = [t[:, 0] if view else t[:, 0].clone() for t, view in zip(tables, views)]
    others, states = [t[:, 1:].clone() for t in tables], [{} for _ in tables]
    paths, touched = [[] for _ in tables], 0
    for k, rate in enumerate(rates):
        for i, (w, now) in enumerate(zip(ws, settings)):
            given = grads[i][k].clone()
            fn(w, given, states[i], rate, tuple(now["betas"]), now["decay"])
            touched += not torch.equal(given, grads[i][k])
            paths[i].append((tables[i][:, 0] if views[i] else w).clone())
    beside = sum(int((t[:, 1:] != o).sum()) for t, o in zip(tables, others))
    return {"paths": [torch.stack(path) for path in paths], "touched": touched,
            "beside": beside}


@ex.law
def law(out, tables, grads, rates, settings):
    expect_parts(out, "paths", "touched", "beside")

    def wanted(table, grad, now):
        w, path = table[:, 0].double(), []
        for blend, rate in zip(blends(grad, *now["betas"]), rates, strict=True):
            w = w - rate * (blend.sign() + now["decay"] * w)
            path.append(w)
        return torch.stack(path).float()
    expect_paths(out["paths"], [*map(wanted, tables, grads, settings)], tables)
    expect_manners(out)


# ---- wrong, by name

def lion(w, grad, state, lr, b1, b2, decay, *, early=False, bare=False, coupled=False,
         after=False, shrink=None, sign=torch.sign, start=0.0):
    """The right step with the mistakes as options."""
    g = grad + decay * w if coupled else grad
    m = state["m"] if "m" in state else start * grad
    state["m"] = b2 * m + (1 - b2) * g
    m = state["m"] if early else m
    move = m if bare else b1 * m + (1 - b1) * g
    shrink = 1 - lr * decay if shrink is None else shrink
    w.mul_(1 if coupled or after else shrink)
    w.sub_(lr * sign(move))
    w.mul_(shrink if after else 1)


@not_an_answer
def right(w, grad, state, lr, betas, weight_decay):
    m = state["m"] if "m" in state else 0.0 * grad
    state["m"] = betas[1] * m + (1 - betas[1]) * grad
    move = betas[0] * m + (1 - betas[0]) * grad
    shrink = 1 - lr * weight_decay
    w.mul_(shrink)
    w.sub_(lr * torch.sign(move))


wrong = ex.edits(right)
wrong("updating the momentum before computing the direction", "step",
      "move =", 'm = state["m"]; move =')
wrong("using the second beta for both the direction and the momentum", "first beta",
      "move = betas[0] * m + (1 - betas[0]) * grad", 'm = state["m"]', "(move)", "(m)")


def in_its_memory(w, grad, state, lr, betas, weight_decay, blend):
    """The right step with the blend made in the momentum's own memory."""
    w.mul_(1 - lr * weight_decay)
    m = state.setdefault("m", torch.zeros_like(w))
    w.sub_(lr * blend(m, grad, betas[0]).sign())
    m.mul_(betas[1]).add_(grad, alpha=1 - betas[1])


ex.wrong("shrinking the momentum in place while blending", in_its_memory, breaks="step",
         blend=lambda m, grad, beta: m.mul_(beta).add(grad, alpha=1 - beta))
ex.wrong("overwriting the momentum with the blend", in_its_memory, breaks="step",
         blend=lambda m, grad, beta: m.mul_(beta).add_(grad, alpha=1 - beta))
wrong("taking the sign of the gradient alone", "step",
      "betas[1] * m", "0.0 * m", "(1 - betas[1]) * grad", "grad", "betas[0] * m", "0.0 * m",
      "(1 - betas[0]) * grad", "grad")
wrong("using the blend itself, without its sign", "step", "torch.sign(move)", "move")
wrong("returning a new tensor and leaving w unchanged", "step",
      "m =", "new = w.clone(); m =", "w.mul_", "new.mul_", "w.sub_", "new.sub_",
      "move))", "move)); return new")
wrong("replacing w.data, which disconnects a view from its base", "in place",
      "m =", "new = w.clone(); m =", "w.mul_", "new.mul_", "w.sub_", "new.sub_",
      "move))", "move)); w.data = new")
wrong("adding the decay to the gradient, where the sign swallows it", "decay",
      "m =", "g = grad + weight_decay * w; m =", "1]) * grad", "1]) * g", "0]) * grad", "0]) * g",
      "w.mul_(shrink)", "pass", trap="04.4")
wrong("shrinking the weight by the decay alone, without the rate",
      "decay", "lr * weight_decay", "weight_decay")
wrong("shrinking the weight after the step", "decay",
      "w.sub_(lr * torch.sign(move))", "pass", "w.mul_", "w.sub_(lr * torch.sign(move)); w.mul_")
wrong("leaving out the decay", "decay", "1 - lr * weight_decay", "1")
wrong("using x / (|x| + 1e-12) as the sign, so that tiny gradients move nothing", "numbers",
      "torch.sign(move)", "move / (move.abs() + 1e-12)")


@ex.wrong("scaling the caller's gradient in place", breaks="left alone")
def works_in_gradient(w, grad, state, lr, betas, weight_decay):
    lion(w, grad.clone(), state, lr, *betas, weight_decay)
    grad.mul_(1 - betas[0])


@ex.wrong("keeping one momentum for all weights, outside the state dict", breaks="own state")
def one_memory(w, grad, state, lr, betas, weight_decay, memory={}):  # noqa: B006
    if not state:
        memory[len(w)] = {}
        state["begun"] = True
    lion(w, grad, memory[len(w)], lr, *betas, weight_decay)


wrong("reading the state dict before anything was written to it", "empty state",
      "m =", 'state = {"m": state["m"]}; m =')
wrong("using the first step's rate in every step",
      "rate", "m =", 'lr = state.setdefault("first", lr); m =')
wrong("using betas of 0.9 and 0.99, whatever is asked for", "settings",
      "betas[1] * m", "0.99 * m", "- betas[1]", "- 0.99", "betas[0] * m", "0.9 * m",
      "- betas[0]", "- 0.9")
wrong("using a decay of 0.01 if no decay was asked for", "settings",
      "m =", "decay = weight_decay or 0.01; m =", "lr * weight_decay", "lr * decay", trap="04.4")
wrong("using the first beta for both the direction and the momentum",
      "second beta", "[1] * m", "[0] * m", "- betas[1]", "- betas[0]")


@ex.wrong("swapping the two betas", breaks=("first beta", "second beta"))
def swapped_betas(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, betas[1], betas[0], weight_decay)


wrong("starting the momentum with the first gradient", "start", "0.0 * grad", "grad")


@ex.wrong("using a direction of 1 where the blend is 0", breaks="sign of 0")
def zero_moves(w, grad, state, lr, betas, weight_decay):
    lion(w, grad, state, lr, *betas, weight_decay, sign=lambda x: (x >= 0) * 2.0 - 1)


wrong("dividing by the absolute value of the blend, which is NaN where it is 0", "sign of 0",
      "torch.sign(move)", "move / move.abs()")
