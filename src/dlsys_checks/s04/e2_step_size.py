"""Exercise 04.2, `step_size`."""

from __future__ import annotations

import copy

import torch
from torch import nn

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("04.2", "step_size",
              seen=("rule", "settings", "groups", "weights", "grads"), kept=("kept",))

ex.promise_table("""
farthest     | Return the largest distance that opt's next step would move a weight. | farthest move
gradients    | The gradients are already in place. A weight without a gradient does not move. | case
               a weight without a gradient
groups       | There may be one group or several. | case two groups, the first one farther; three
               groups, the middle one farthest
as they were | Afterwards, the weights, the gradients and the optimizer are as they were. | weights
               changed; gradients changed; memory changed; settings changed
next step    | So the next real step moves exactly as far as you say. | farthest move; real step
example      | Example: for SGD at rate 0.1 with gradients 3 and -5, return 0.5. | case the example
""")

SHAPES = ((2, 3), (4,), (1, 2, 2), ())


@ex.cases
def cases(g):
    draw = floats(g)

    def one(name, rule, counts=(2, 1), earlier=0, far=0, sign=1.0, scale=1.0, missing=(),
            settings=None):
        """far: the place of the tensor that moves farthest; counts: tensors of each group."""
        number, far = sum(counts), far % sum(counts)
        shapes = SHAPES[:number]
        base = draw(0.02, 0.06)
        rates, place = [], 0
        for count in counts:
            rates.append(base * (3 if place <= far < place + count else 1) * draw(0.9, 1.1))
            place += count
        grads = [[None if i in missing else scale * 0.3 * torch.randn(s, generator=g)
                  for i, s in enumerate(shapes)] for _ in range(earlier + 1)]
        if far not in missing:  # its last gradient outweighs the others
            for step in grads:
                step[far].view(-1)[-1] = 4.0 * scale * sign * draw(0.9, 1.1)
        groups = [{"count": c, "lr": r} for c, r in zip(counts, rates)]
        return name, {"rule": rule, "settings": settings or {}, "groups": groups,
                      "weights": [torch.randn(s, generator=g) for s in shapes], "grads": grads}

    some = integers(g)
    betas = [draw(0.8, 0.95), draw(0.98, 0.999)]
    return [one("SGD, before its first step", "SGD", (1,), sign=-1.0),
            one("SGD and large gradients", "SGD", (3,), far=1, scale=30.0),
            one("two groups, the first one farther", "SGD", (2, 2), far=1, sign=-1.0),
            one("three groups, the middle one farthest", "SGD", (1, 2, 1), far=2),
            one("momentum after some steps", "SGD", (2, 2), some(2, 5), far=3,
                settings={"momentum": draw(0.7, 0.95)}),
            one("momentum and decay", "SGD", (2,), some(1, 4), sign=-1.0,
                settings={"momentum": draw(0.7, 0.95), "weight_decay": draw(0.1, 0.3)}),
            one("Adam and tiny gradients", "Adam", (2, 1), far=2, scale=1e-3),
            one("Adam after some steps", "Adam", (1, 2), some(2, 7), far=1, scale=2.0,
                settings={"betas": betas}),
            one("AdamW and decay", "AdamW", (2, 2), some(1, 5), far=3, sign=-1.0,
                settings={"betas": betas, "weight_decay": draw(0.5, 1.0)}),
            one("a custom rule", "Sign", (1, 1), some(2, 4), far=1,
                settings={"beta": draw(0.3, 0.7)}),
            one("a weight without a gradient", "Adam", (2, 1), some(0, 3), far=2, missing=(1,)),
            ("the example", {"rule": "SGD", "settings": {}, "groups": [{"count": 1, "lr": 0.1}],
                             "weights": [torch.zeros(2)],
                             "grads": [[torch.tensor([3.0, -5.0])]]})]


@ex.act
def act(fn, rule, settings, groups, weights, grads):
    class Sign(torch.optim.Optimizer):
        """Moves by the rate against the sign of an average, and once by the average itself."""

        def __init__(self, groups, beta):
            super().__init__(groups, {"beta": beta, "steps": 0})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                group["steps"] += 1
                for p in group["params"]:
                    if p.grad is not None:
                        mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                        mean.mul_(group["beta"]).add_(p.grad)
                        p.sub_(group["lr"] * (mean.sign() + mean / group["steps"]))

    params = [nn.Parameter(w.clone()) for w in weights]
    rest = iter(params)
    parts = [{"params": [next(rest) for _ in range(group["count"])], "lr": group["lr"]}
             for group in groups]
    makers = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}
    opt = {**makers, "Sign": Sign}[rule](parts, **settings)

    def give(step):
        for p, grad in zip(params, step):
            p.grad = None if grad is None else grad.clone()

    def numbers():
        """All that the optimizer remembers, and its settings, as one long list each."""
        told = opt.state_dict()
        memory = [(i, name, value.tolist() if isinstance(value, torch.Tensor) else value)
                  for i, one in told["state"].items() for name, value in one.items()]
        return memory, [(key, str(v)) for group in told["param_groups"] for key, v in group.items()]

    def differences(mine, others):
        return sum(a != b for a, b in zip(mine, others)) + abs(len(mine) - len(others))

    for step in grads[:-1]:
        give(step)
        opt.step()
    give(grads[-1])
    before, then = [p.detach().clone() for p in params], numbers()
    sizes = [fn(opt), fn(opt)]
    kept, now = [p.detach().clone() for p in params], numbers()
    found = {
        "weights": sum(not torch.equal(a, b) for a, b in zip(kept, before)),
        "gradients": sum((p.grad is None) != (grad is None) or (
            grad is not None and not torch.equal(p.grad, grad))
            for p, grad in zip(params, grads[-1])),
        "memory": differences(then[0], now[0]), "settings": differences(then[1], now[1])}
    opt.step()
    live = [grad is not None for grad in grads[-1]]
    return {"sizes": sizes, "changed": found, "kept": kept,
            "after": [p for p, moves in zip(params, live) if moves],
            "strays": sum(not torch.equal(p, w) for p, w, moves in zip(params, kept, live)
                          if not moves)}


def move(rule, s, lr, w, grads):
    """One weight before the last step and after it, by the published rules, in float64."""
    m = v = torch.zeros_like(w)
    b1, b2 = s.get("betas", (0.9, 0.999))
    decay = s.get("weight_decay", 0.01 if rule == "AdamW" else 0.0)
    before = w
    for t, grad in enumerate(grads, 1):
        before = w
        if rule == "SGD":
            m = s.get("momentum", 0.0) * m + grad + decay * w
            w = w - lr * m
        elif rule == "Sign":
            m = s["beta"] * m + grad
            w = w - lr * (m.sign() + m / t)
        else:
            w = w - lr * decay * w
            m, v = b1 * m + (1 - b1) * grad, b2 * v + (1 - b2) * grad**2
            w = w - lr * m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + 1e-8)
    return before, w


def last_moves(rule, settings, groups, weights, grads):
    """Before and after the last step, for each weight; one without a gradient stays."""
    rates = [group["lr"] for group in groups for _ in range(group["count"])]
    found = []
    for i, (w, lr) in enumerate(zip(weights, rates, strict=True)):
        mine = [step[i].double() for step in grads if step[i] is not None]
        found.append(move(rule, settings, lr, w.double(), mine))
    return found


@ex.law
def law(out, rule, settings, groups, weights, grads):
    expect_parts(out, "sizes", "changed", "kept", "after", "strays")
    expect_parts(out["changed"], "weights", "gradients", "memory", "settings")
    moves = last_moves(rule, settings, groups, weights, grads)
    wanted = max(float((after - before).abs().max()) for before, after in moves)
    expect_length("sizes", out["sizes"], 2)
    expect_close("farthest move of the next step", out["sizes"][0], wanted, rtol=1e-3)
    look = {"weights": "Put the weights back.", "gradients": "The real step needs the gradients.",
            "memory": "A step also changes the optimizer's state, so restore it.",
            "settings": "Leave the rate and all other settings as they were."}
    # The act alone can see the last bit; weights calculated here see all that matters.
    for what, why in look.items():
        expect_equal(f"{what} changed by the measurement", out["changed"][what], 0, why)
    expect_close("farthest move, measured again", out["sizes"][1], wanted, rtol=1e-3)
    moving = [pair for pair, grad in zip(moves, grads[-1], strict=True) if grad is not None]
    for what, got, pairs, step in (("weights before the real step", out["kept"], moves, 0),
                                   ("weights after the real step", out["after"], moving, 1)):
        expect_length(what, got, len(pairs))
        for tensor, pair in zip(got, pairs, strict=True):
            expect_close(what, tensor, pair[step].float(), atol=1e-5 * (1 + wanted))
    expect_equal("weights without a gradient moved by the real step", out["strays"], 0)


def pairs_of(opt):
    return [(group["lr"], p) for group in opt.param_groups for p in group["params"]]


# ---- wrong, by name

@ex.wrong("returning the rate times the gradient, whatever the optimizer does", breaks="farthest")
def rate_times_gradient(opt):
    return max(lr * p.grad.abs().max().item() for lr, p in pairs_of(opt) if p.grad is not None)


ex.wrong("returning the largest learning rate, as if every step were one rate long",
         lambda opt: max(lr for lr, _ in pairs_of(opt)), breaks="farthest")


@not_an_answer
def measured(opt):
    params = [p for _, p in pairs_of(opt)]
    before = [p.detach().clone() for p in params]
    state = copy.deepcopy(opt.state_dict())
    opt.step()
    moves = [(p.detach() - b).abs().max().item() for p, b in zip(params, before, strict=True)]
    for p, b in zip(params, before, strict=True):
        p.data.copy_(b)
    opt.load_state_dict(state)
    out = max(moves)
    return out


wrong = ex.edits(measured)
wrong("taking the mean move instead of the largest", "farthest", ".max", ".mean")
wrong("taking the norm of each tensor's move instead of the largest entry", "farthest",
      "(p.detach() - b).abs().max()", "torch.Tensor.norm(p.detach() - b)")
wrong("deep-copying the optimizer, which leaves the copy without gradients", "farthest",
      "params =",
      "trial = copy.deepcopy(opt); trial.step(); return max((a.detach() - "
      "b.detach()).abs().max().item() for (_, a), (_, b) in zip(pairs_of(trial), pairs_of(opt), "
      "strict=True)); params =")


@ex.wrong("keeping references to the weights, which the step then changes",
         breaks=("farthest", "as they were"))
def noted_by_reference(opt):
    before, state = [p.data for _, p in pairs_of(opt)], copy.deepcopy(opt.state_dict())
    opt.step()
    moves = [(p.data - b).abs().max().item()
             for (_, p), b in zip(pairs_of(opt), before, strict=True)]
    opt.load_state_dict(state)
    return max(moves)


wrong("counting only weights that increase",
      "farthest", "(p.detach() - b).abs().max()", "torch.max(p.detach() - b)")
wrong("measuring the moves of the first group only", "farthest",
      "params =", 'count = len(opt.param_groups[0]["params"]); params =',
      "(moves)", "(moves[:count])")
wrong("measuring and restoring the first group only", ("farthest", "as they were"),
      "in pairs_of(opt)]", 'in pairs_of(opt)[:len(opt.param_groups[0]["params"])]]',
      says="weights changed")
wrong("measuring only the first tensor of each group", "farthest",
      "params =",
      'firsts = {id(group["params"][0]) for group in opt.param_groups}; which = [id(p) in firsts '
      "for _, p in pairs_of(opt)]; params =", "(moves)", "((m for m, w in zip(moves, which) if w))")
wrong("measuring only the first and last groups", "groups",
      "params =",
      "ends = {id(p) for group in (opt.param_groups[0], opt.param_groups[-1]) for p in "
      'group["params"]}; which = [id(p) in ends for _, p in pairs_of(opt)]; params =',
      "(moves)", "((m for m, w in zip(moves, which) if w))", says="farthest move")
wrong("assuming that every weight has a gradient", "gradients",
      "params =", "assert all(p.grad.shape == p.shape for _, p in pairs_of(opt)); params =",
      says="raised AttributeError")
wrong("replacing a missing gradient with zeros", ("as they were", "gradients"),
      "params =",
      "for _, p in pairs_of(opt): p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n   "
      " params =")
wrong("leaving the weights where the step took them", ("as they were", "next step"),
      "zip(params, before, strict=True):", "[]:", says="Put the weights back")
wrong("leaving the optimizer's state one step ahead", ("as they were", "next step"),
      "opt.load_state_dict(state)", "pass", says="so restore it")
wrong("emptying the optimizer's state", "as they were",
      "return out", "opt.state.clear(); return out", says="so restore it")
wrong("keeping a reference to the optimizer's state instead of a copy", "as they were",
      "params =", "own_state = opt.state_dict(); params =", "opt.load_state_dict(state)", "pass",
      "return out", "opt.load_state_dict(own_state); return out", says="so restore it")
wrong("clearing the gradients after the measurement", "as they were",
      "return out", "opt.zero_grad(); return out")


@ex.wrong("undoing the step with a second step at the negative rate", says="changed",
          breaks="as they were")
def opposite_step(opt):
    params = [p for _, p in pairs_of(opt)]
    before = [p.detach().clone() for p in params]
    opt.step()
    size = max((p.detach() - b).abs().max().item() for p, b in zip(params, before))
    for group in opt.param_groups:
        group["lr"] = -group["lr"]
    opt.step()
    return size


wrong("returning twice the move, once for the step and once for undoing it",
      "next step", "return out", "return 2 * out")
