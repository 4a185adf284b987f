"""Exercise 04.4, `decoupled_step`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.kit import floats
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("04.4", "decoupled_step", kept=("untouched",),
              seen=("kind", "options", "groups", "rates", "decays", "untouched"), says="after step")

ex.promise_table("""
one step      | Take one step of `opt` | after step; steps of the optimizer
without decay | Args: opt: was made without decay, and its groups keep a decay of 0. | weight_decay
                of the groups
decoupled     | with decoupled weight decay. | after step
factor        | First multiply each weight by 1 - lr * weight_decay. | after step
own rate      | Here, lr is the rate of the weight's own group. | case rates that change; two
                groups; three groups; two optimizers in turn; SGD with momentum
then steps    | Then let opt take its usual step. | after step; steps of the optimizer
no gradient   | A parameter whose grad is None does not change. | case a parameter without a
                gradient; a gradient of zero
with Adam     | With torch.optim.Adam, the result is AdamW. | case Adam; Adam with amsgrad; three
                groups
with SGD      | With torch.optim.SGD, the result is SGDW. | case SGD; SGD with momentum; SGD with
                Nesterov's momentum; no decay
example       | Example: for SGD at rate 0.1, weight 2, gradient 1 and decay 0.5, the weight becomes
                2 * 0.95 - 0.1 = 1.8. | case the example
""")


@ex.cases
def cases(g):
    def between(low, high):
        return int(torch.randint(low, high + 1, (), generator=g))

    share = floats(g)

    def parameter(steps):
        """A weight of some shape and its gradients, one row a step."""
        shape = [(3, 2), (4,), (1, 5), (2, 2, 2), ()][between(0, 4)]
        size = torch.tensor([0.05, 1.0, 4.0])[between(0, 2)]
        return {"start": torch.randn(shape, generator=g) + 1,
                "grads": torch.randn(steps, *shape, generator=g) * size}

    def one(name, kind, sizes, steps, falling=False, decay=None, untouched=0, **options):
        """`sizes`: parameters of each group; the rates of its steps stay, or fall with them."""
        rates = [[(0.5 ** k if falling else 1.0) * r for k in range(steps)]
                 for r in [share(0.05, 0.1) * (2.0 + n) for n in range(len(sizes))]]
        return name, {"kind": kind, "options": options, "rates": rates,
                      "groups": [[parameter(steps) for _ in range(n)] for n in sizes],
                      "decays": [share(0.3, 0.9) if decay is None else decay
                                 for _ in range(steps)],
                      "untouched": [torch.randn(3, generator=g) for _ in range(untouched)]}
    still = one("a gradient of zero", "sgd", [2], 2)
    still[1]["groups"][0][0]["grads"].zero_()
    example = {"start": torch.tensor([2.0]), "grads": torch.tensor([[1.0]])}
    betas = [share(0.7, 0.95), share(0.9, 0.99)]
    return [one("Adam", "adam", [2], between(20, 40), betas=betas, eps=10.0 ** -between(3, 8)),
            one("SGD", "sgd", [2], between(5, 9)),
            one("SGD with momentum", "sgd", [1, 1], between(5, 9), momentum=share(0.7, 0.9)),
            one("SGD with Nesterov's momentum", "sgd", [1], 4, momentum=0.8, nesterov=True),
            one("Adam with amsgrad", "adam", [1], between(5, 9), amsgrad=True),
            one("two groups", "sgd", [2, 1], between(2, 4)),
            one("three groups", "adam", [1, 2, 2], between(3, 6)),
            one("rates that change", "sgd", [2, 1], between(3, 5), falling=True),
            one("no decay", "sgd", [2], 3, decay=0.0),
            one("a parameter without a gradient", "sgd", [2], between(2, 4), untouched=2),
            still,
            ("the example", {"kind": "sgd", "options": {}, "groups": [[example]],
                             "rates": [[0.1]], "decays": [0.5], "untouched": []}),
            one("two optimizers in turn", "two", [1, 1], between(3, 5))]


@ex.act
def act(fn, kind, options, groups, rates, decays, untouched):
    params = [[nn.Parameter(p["start"].clone()) for p in group] for group in groups]
    alone = [nn.Parameter(start.clone()) for start in untouched]
    lists = [{"params": [*mine, *alone[k::len(params)]], "lr": rate[0]}
             for k, (mine, rate) in enumerate(zip(params, rates))]
    build = torch.optim.Adam if kind == "adam" else torch.optim.SGD
    opts = [build([part]) for part in lists] if kind == "two" else [build(lists, **options)]
    taken, shown = [], []
    for opt in opts:
        opt.register_step_post_hook(lambda *_: taken.append(1))
    for step, decay in enumerate(decays):
        for mine, group in zip(params, groups):
            for p, given in zip(mine, group):
                p.grad = given["grads"][step].clone()
        for part, rate in zip([part for opt in opts for part in opt.param_groups], rates):
            part["lr"] = rate[step]
        for opt in opts:
            fn(opt, decay)
        shown.append([p.detach().clone() for mine in params for p in mine])
    return {"weights": shown, "steps": len(taken), "untouched": alone,
            "decays": [part["weight_decay"] for opt in opts for part in opt.param_groups]}


def by_adamw(options, group, rates, decays):
    """Weights after each step of torch's AdamW, whose decay changes from step to step."""
    params = [nn.Parameter(p["start"].double()) for p in group]
    opt = torch.optim.AdamW(params, **options)
    for step, (rate, decay) in enumerate(zip(rates, decays, strict=True)):
        opt.param_groups[0].update(lr=rate, weight_decay=decay)
        for p, given in zip(params, group, strict=True):
            p.grad = given["grads"][step].double()
        opt.step()
        yield [p.detach().float() for p in params]


def by_hand(options, group, rates, decays):
    """w <- (1 - lr decay) w - lr b with b <- momentum b + g, in float64."""
    momentum = options.get("momentum", 0.0)
    w = [p["start"].double() for p in group]
    b = [torch.zeros_like(v) for v in w]
    for step, (rate, decay) in enumerate(zip(rates, decays, strict=True)):
        g = [p["grads"][step].double() for p in group]
        b = [momentum * old + new for old, new in zip(b, g, strict=True)]
        if options.get("nesterov"):
            g = [new + momentum * old for new, old in zip(g, b, strict=True)]
        else:
            g = b
        w = [v - rate * decay * v - rate * d for v, d in zip(w, g, strict=True)]
        yield [v.float() for v in w]


@ex.law
def law(out, kind, options, groups, rates, decays, untouched):
    expect_parts(out, "weights", "steps", "untouched", "decays")
    expect_length("steps", out["weights"], len(decays))
    expect_length("groups", out["decays"], len(groups))
    for decay in out["decays"]:
        expect_type("weight_decay of the groups", decay, (int, float))
        if decay != 0:
            raise Broken("weight_decay of the groups", decay, 0,
                         "A decay in the group would be added to the gradient.")
    route = by_adamw if kind == "adam" else by_hand
    paths = [route(options, group, rate, decays)
             for group, rate in zip(groups, rates, strict=True)]
    names = [f"weight {i} of group {k}" for k, group in enumerate(groups)
             for i in range(len(group))]
    for step, (got, *wanted) in enumerate(zip(out["weights"], *paths, strict=True), 1):
        right = [w for group in wanted for w in group]
        expect_length("weights", got, len(right))
        for name, mine, w in zip(names, got, right, strict=True):
            expect_close(f"{name} after step {step} of {len(decays)}", mine, w, rtol=2e-5,
                         atol=2e-6 * max(1.0, float(w.abs().max())))
    expect_length("weights without a gradient", out["untouched"], len(untouched))
    for mine, start in zip(out["untouched"], untouched, strict=True):
        expect_equal("weight without a gradient", mine, start, "Leave it alone.")
    expect_equal("steps of the optimizer", out["steps"],
                 len(decays) * (len(groups) if kind == "two" else 1),
                     "Call opt.step() exactly once.")


def live(opt):
    return [(group, p) for group in opt.param_groups for p in group["params"]
            if p.grad is not None]


@not_an_answer
@torch.no_grad()
def subtracted(opt, weight_decay):
    for group, p in live(opt):
        p.sub_(group["lr"] * weight_decay * p)
    opt.step()


# ---- wrong, by name

@ex.wrong("adding the decay to the gradient, which is L2 regularization, not decoupled decay",
          breaks="decoupled")
def into_the_gradient(opt, weight_decay):
    for _, p in live(opt):
        p.grad.add_(p.detach(), alpha=weight_decay)
    opt.step()


@not_an_answer
@torch.no_grad()
def decayed(opt, weight_decay):
    for group, p in live(opt):
        p.mul_(1 - group["lr"] * weight_decay)
    opt.step()


wrong = ex.edits(decayed)
WEIGHT_DECAY = 'p.mul_(1 - group["lr"] * weight_decay)'
wrong("setting the group's weight_decay, which is L2 regularization, not decoupled decay",
      "without decay",
      "group, p", "group", "live(opt)", "opt.param_groups",
      WEIGHT_DECAY, 'group["weight_decay"] = weight_decay')
wrong("shrinking the weight after the step", "factor",
      "opt.step()", "pass", "for group", "opt.step()\n    for group")
wrong("shrinking the weights by the decay alone, without the rate", "factor",
      "group, p", "_, p", 'group["lr"] * weight_decay', "weight_decay")
wrong("adding the decay instead of subtracting it, so that weights grow", "factor",
      WEIGHT_DECAY, 'p.add_(p, alpha=group["lr"] * weight_decay)')
wrong("using exp(-lr * decay) instead of 1 - lr * decay", "factor",
      '1 - group["lr"] * weight_decay', 'torch.tensor(-group["lr"] * weight_decay).exp()')
wrong("using the first group's rate for every group", "own rate",
      "group, p", "_, p", "- group", "- opt.param_groups[0]")
wrong("using the rate that the optimizer was created with", "own rate",
      'group["lr"]', 'group.setdefault("made_with", group["lr"])')
wrong("using the optimizer's default rate for every group", ("own rate", "factor"),
      "group, p", "_, p", "- group", "- opt.defaults")
wrong("shrinking only the weights of the first two groups", "own rate",
      "group, p", "group", "live(opt)", "opt.param_groups[:2]",
      WEIGHT_DECAY, f'for p in group["params"]:\n            if p.grad is not None: {WEIGHT_DECAY}')
wrong("shrinking only the first weight of each group", "factor",
      "group, p", "group", "live(opt)", "opt.param_groups",
      "p.mul_", 'p = group["params"][0]; p.mul_')
wrong("shrinking parameters without a gradient as well", "no gradient",
      "group, p", "group", "live(opt)", "opt.param_groups",
      WEIGHT_DECAY, f'for p in group["params"]: {WEIGHT_DECAY}', says="weight without a gradient")
wrong("treating a gradient of zero as None", "no gradient",
      WEIGHT_DECAY, f"if p.grad.any(): {WEIGHT_DECAY}")
wrong("shrinking every weight by the same fixed amount", "decoupled",
      WEIGHT_DECAY, 'p.sub_(group["lr"] * weight_decay * p.sign())')


@ex.wrong("taking a step of plain SGD instead of calling opt.step()", breaks="then steps")
@torch.no_grad()
def own_step(opt, weight_decay):
    for group, p in live(opt):
        p.mul_(1 - group["lr"] * weight_decay).sub_(group["lr"] * p.grad)


wrong("shrinking the weights without calling opt.step()", "one step", "opt.step()", "pass")
wrong("calling opt.step() twice", "one step",
      WEIGHT_DECAY, 'p.sub_(group["lr"] * weight_decay * p)', "step()", "step(); opt.step()")


@ex.wrong("adding the decay to the gradient if the optimizer is Adam", breaks="with Adam")
def only_sgd(opt, weight_decay):
    (into_the_gradient if "betas" in opt.defaults else subtracted)(opt, weight_decay)


@ex.wrong("adding the decay to the gradient if the optimizer has momentum", breaks="with SGD")
def only_adam(opt, weight_decay):
    (into_the_gradient if opt.defaults.get("momentum") else subtracted)(opt, weight_decay)


wrong("leaving weights that are whole numbers unchanged", "example",
      WEIGHT_DECAY, f"if (p != p.round()).any(): {WEIGHT_DECAY}")
