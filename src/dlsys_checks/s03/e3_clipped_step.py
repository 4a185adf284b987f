"""Exercise 03.3, `clipped_step`."""

from __future__ import annotations

import math

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_checks.rounding import ROUNDED
from dlsys_checks.s03.common import between, pair
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("03.3", "clipped_step", kept=("unreached",),
              seen=("kind", "groups", "unreached", "strengths", "scale", "max_norm", "leftover"),
              says="norm before clipping")

ex.promise_table("""
step       | Take one step on a scaled loss, with clipping. | after the step; steps of the
             optimizer; after step
norms      | Returns: The gradient's norms before and after clipping, as two floats. | norm before
             clipping; norm after clipping; returned value
scaled     | Args: optimizer, max_norm: the optimizer, and the limit for the norm. loss, scale:
             loss is the true loss times scale, as in mixed precision. | case a scale of 65536; a
             scale below one; the example
backward   | The backward pass has not run yet. | case gradients left over from before; an
             infinite gradient left over; three steps in a row; three steps of AdamW; an old
             gradient that the loss does not reach
leftover   | Gradients of an earlier step can be left in .grad. | case gradients left over from
             before; an infinite gradient left over; three steps in a row; three steps of AdamW;
             an old gradient that the loss does not reach
true size  | The step and both norms are for the true loss, without the scale. | norm before
             clipping; norm after clipping; after step
one number | Each norm is a single number for all groups together. | case two groups; three
             groups; gradients left over from before; a parameter that the loss does not reach;
             three steps in a row; three steps of AdamW; an old gradient that the loss does not
             reach
reached    | Only parameters that the loss reaches count, and the step changes no other
             parameters. | case a parameter that the loss does not reach; an old gradient that
             the loss does not reach
example    | Example: for a gradient of norm 6 and max_norm 2, return (6.0, 2.0). | case the
             example
""")

OPTIMIZERS = {"sgd": (torch.optim.SGD, {}), "momentum": (torch.optim.SGD, {"momentum": 0.9}),
              "adamw": (torch.optim.AdamW, {"weight_decay": 0.1, "eps": 1e-8})}


@ex.cases
def cases(g):
    def parameter():
        shape = [(3, 2), (4,), (1, 5), (2, 2, 2), ()][between(g, 0, 4)]
        start = torch.randn(shape, generator=g)
        away = 0.5 + torch.rand(shape, generator=g)
        return [start, start + away * torch.randn(shape, generator=g).sign()]

    def pulls(groups):
        """Norm of the gradient start - target over all parameters."""
        return math.sqrt(sum(float((s - t).square().sum()) for group in groups
                             for s, t in group["pairs"]))

    def one(name, sizes, ratio, kind="sgd", scale=None, leftover=0.0, steps=1, unreached=False,
            strength=1.0):
        """`ratio`: the first gradient's norm over the limit; sizes: parameters of the groups."""
        groups = [{"lr": 0.02 + 0.08 * float(torch.rand((), generator=g)),
                   "pairs": [parameter() for _ in range(n)]} for n in sizes]
        strengths = [strength * (1.0 + float(torch.rand((), generator=g))) for _ in range(steps)]
        return name, {"kind": kind, "groups": groups, "strengths": strengths,
                      "unreached": [torch.randn(3, generator=g)] if unreached else [],
                      "scale": scale or 2.0 ** between(g, 1, 10), "leftover": leftover,
                      "max_norm": strengths[0] * pulls(groups) / ratio}

    def far():
        return 2.0 + 20 * float(torch.rand((), generator=g))

    still = {"pairs": [[torch.full((2,), 3.0)] * 2], "lr": 0.1}
    simple = {"pairs": [[torch.tensor([4.0, 1.0]), torch.tensor([-2.0, 1.0])]], "lr": 0.1}
    return [one("a gradient far above the limit", [2], far()),
            one("a gradient below the limit", [1], 0.3),
            one("a gradient just below the limit", [2], 0.97),
            one("a small gradient below its limit", [2], 0.5, strength=1e-5),
            one("two groups", [2, 1], far(), kind="momentum"),
            one("three groups", [1, 2, 2], far()),
            one("a scale of 65536", [2], far(), scale=65536.0),
            one("a scale below one", [1], far(), scale=0.3),
            one("gradients left over from before", [1, 2], far(), leftover=1e4),
            one("an infinite gradient left over", [2], far(), leftover=math.inf),
            one("a parameter that the loss does not reach", [1, 1], far(), unreached=True),
            one("an old gradient that the loss does not reach", [1, 1], far(), kind="adamw",
                leftover=2.0, unreached=True),
            one("three steps in a row", [2, 1], far(), kind="momentum", steps=3),
            one("three steps of AdamW", [1, 2], far(), kind="adamw", steps=3),
            ("a gradient of zero", {
                "kind": "adamw", "groups": [still], "unreached": [], "strengths": [1.0],
                "scale": 8.0, "max_norm": 0.5 + float(torch.rand((), generator=g)),
                "leftover": 0.0}),
            ("the example", {"kind": "sgd", "groups": [simple], "unreached": [],
                             "strengths": [1.0], "scale": 16.0, "max_norm": 2.0,
                             "leftover": 0.0})]


@ex.act
def act(fn, kind, groups, unreached, strengths, scale, max_norm, leftover):
    params = [[nn.Parameter(start.clone()) for start, _ in group["pairs"]] for group in groups]
    alone = [nn.Parameter(start.clone()) for start in unreached]
    optimizer = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW,
                 "momentum": torch.optim.SGD}[kind](
        [{"params": mine + (alone if k == 0 else []), "lr": group["lr"]}
         for k, (mine, group) in enumerate(zip(params, groups))],
        **{"sgd": {}, "adamw": {"weight_decay": 0.1}, "momentum": {"momentum": 0.9}}[kind])
    live = [p for mine in params for p in mine]
    if leftover:
        for p in [*live, *alone]:
            p.grad = torch.full_like(p, leftover)
    taken, shown = [], []
    optimizer.register_step_post_hook(lambda *_: taken.append(1))
    for strength in strengths:
        pulls = [(p - target).square().sum() for mine, group in zip(params, groups)
                 for p, (_, target) in zip(mine, group["pairs"])]
        answer = fn(optimizer, sum(pulls) * (0.5 * strength) * scale, scale, max_norm)
        shown.append({"answer": answer, "weights": [p.detach().clone() for p in live]})
    return {"steps": len(taken), "shown": shown, "unreached": alone}


def expected_steps(kind, groups, strengths, max_norm):
    """Norms, weights after each step, and the largest that each has been, in float64.

    The gradient is strength * (w - target).
    """
    build, options = OPTIMIZERS[kind]
    w = [[nn.Parameter(start.double()) for start, _ in group["pairs"]] for group in groups]
    optimizer = build([{"params": mine, "lr": group["lr"]}
                       for mine, group in zip(w, groups, strict=True)], **options)
    pairs = [(p, target.double()) for mine, group in zip(w, groups, strict=True)
             for p, (_, target) in zip(mine, group["pairs"], strict=True)]
    reach = [p.detach().abs() for p, _ in pairs]
    for strength in strengths:
        for p, target in pairs:
            p.grad = strength * (p.detach() - target)
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p, _ in pairs))
        for p, _ in pairs:
            p.grad *= min(1.0, max_norm / norm) if norm else 1.0
        optimizer.step()
        reach = [torch.maximum(r, p.detach().abs()) for r, (p, _) in zip(reach, pairs)]
        yield norm, [p.detach().float().clone() for p, _ in pairs], reach


@ex.law
def law(out, kind, groups, unreached, strengths, scale, max_norm, leftover):
    expect_parts(out, "steps", "shown", "unreached")
    expect_length("calls", out["shown"], len(strengths))
    wanted = expected_steps(kind, groups, strengths, max_norm)
    for k, (got, (norm, weights, reach)) in enumerate(zip(out["shown"], wanted, strict=True), 1):
        expect_parts(got, "answer", "weights")
        pre, post = pair(got["answer"], "pre, post")
        expect_close("norm before clipping", pre, norm,
                     look="Divide the gradients by the scale, then take one norm over them all.")
        expect_close("norm after clipping", post, min(norm, max_norm),
                     look="Take one norm over all gradients, measured again after clipping.")
        expect_length("parameters", got["weights"], len(weights))
        for i, (mine, right, terms) in enumerate(zip(got["weights"], weights, reach, strict=True)):
            expect_close(f"parameter {i} after step {k}", mine, right, rtol=1e-5,
                         atol=ROUNDED * float(terms.max()),
                         look="The step uses the clipped gradient.")
    expect_length("parameters without a gradient", out["unreached"], len(unreached))
    for mine, start in zip(out["unreached"], unreached, strict=True):
        expect_equal("parameter without a gradient, after the step", mine, start)
    expect_equal("steps of the optimizer", out["steps"], len(strengths),
                 "Call optimizer.step() once. It knows the momentum and the rate of each group.")


def all_of(optimizer):
    """The parameters of all groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def gradients(optimizer, loss, scale):
    """Fresh gradients with the scale divided out; returns the parameters that have one."""
    optimizer.zero_grad()
    loss.backward()
    params = [p for p in all_of(optimizer) if p.grad is not None]
    for p in params:
        p.grad.div_(scale)
    return params


def total(params):
    return nn.utils.get_total_norm([p.grad for p in params if p.grad is not None]).item()


@not_an_answer
def divided(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    post = total(params)
    optimizer.step()
    return pre, post


# ---- wrong, by name

@not_an_answer
def clipped(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    optimizer.step()
    return pre, total(params)


wrong = ex.edits(clipped)
OPTIMIZER = "optimizer.step"
PRE = "pre = nn.utils.clip_grad_norm_(params, max_norm).item()"
GRADIENTS = "gradients(optimizer, loss, scale)"
wrong("clipping after the step", "step",
      "optimizer.step()", "pass", "pre =", OPTIMIZER + "(); pre =")
wrong("taking no step at all", "step", "optimizer.step()", "pass", says="after step")
wrong("updating the weights by hand instead of calling optimizer.step()", "step",
      "optimizer.step()",
      "with torch.no_grad():\n        for group in optimizer.param_groups:\n            for p in "
      'group["params"]:\n                if p.grad is not None: p -= group["lr"] * p.grad')
wrong("returning min(norm, 1) as the norm after clipping", "norms",
      "params =",
      "pre = nn.utils.clip_grad_norm_(gradients(optimizer, loss, scale), max_norm).item(); "
      "optimizer.step(); return pre, min(pre, 1.0); params =")
wrong("returning clip_grad_norm_'s return value as the norm after clipping", "norms",
      "params =",
      "pre = nn.utils.clip_grad_norm_(gradients(optimizer, loss, scale), max_norm).item(); "
      "optimizer.step(); return pre, pre; params =")
wrong("returning the norms as tensors", "norms",
      "nn.utils.clip_grad_norm_(params, max_norm).item()",
      "nn.utils.clip_grad_norm_(params, max_norm)",
      "total(params)", "nn.utils.get_total_norm([p.grad for p in params])", says="type of the norm")
wrong("clipping each tensor separately", "norms",
      "total(params)", "post", PRE,
      "pre = total(params)\n    for p in params: nn.utils.clip_grad_norm_(p, max_norm)\n    post "
      "= total(params)")
wrong("scaling up gradients whose norm is below the limit", "norms",
      "total(params)", "post", PRE,
      "pre = total(params)\n    for p in params: p.grad.mul_(max_norm / (pre + 1e-6))\n    post "
      "= total(params)")
wrong("adding up the tensors' norms instead of taking one norm", "norms",
      PRE,
      "pre = sum(p.grad.norm().item() for p in params); nn.utils.clip_grad_norm_(params, "
      "max_norm); post = sum(p.grad.norm().item() for p in params)", "total(params)", "post",
      says="norm before clipping")
wrong("clipping each group separately", "one number",
      "total(params)", "post", PRE,
      "pre = total(params)\n    for group in optimizer.param_groups: "
      'nn.utils.clip_grad_norm_(group["params"], max_norm)\n    post = total(params)',
      says="norm after clipping")
wrong("clipping the gradients before dividing them by the scale", "true size",
      "scale)", "1.0)", "total(params)", "post",
      "nn.utils.clip_grad_norm_(params, max_norm).item()",
      "nn.utils.clip_grad_norm_(params, max_norm).item() / scale\n    for p in params: "
      "p.grad.div_(scale)\n    post = total(params)")
wrong("clipping and measuring the gradients before dividing them by the scale", "true size",
      "scale)", "1.0)", "total(params)", "post",
      OPTIMIZER, f"for p in params: p.grad.div_(scale)\n    post = total(params); {OPTIMIZER}")
wrong("never dividing the gradients by the scale", "true size",
      "scale)", "1.0)", "total(params)", "post", OPTIMIZER, f"post = total(params); {OPTIMIZER}")
wrong("returning the norm before clipping without dividing it by the scale", "true size",
      OPTIMIZER, f"post = total(params); {OPTIMIZER}",
      "return pre, total(params)", "out = pre, post; pre, post = out; return pre * scale, post")
wrong("rounding the scale to a whole number of at least one", "scaled",
      "scale)", "max(1, int(scale)))", OPTIMIZER, f"post = total(params); {OPTIMIZER}",
      "return pre, total(params)", "out = pre, post; return out")
wrong("adding the new gradients to old ones that were not cleared", "leftover",
      "params =", "(loss / scale).backward(); params =",
      GRADIENTS, "[p for p in all_of(optimizer) if p.grad is not None]", "total(params)", "post",
      OPTIMIZER, f"post = total(params); {OPTIMIZER}", trap="02.1")
wrong("adding the new gradients to old ones and dividing both by the scale", "leftover",
      "params = gradients(optimizer, loss, scale)",
      "loss.backward(); params = [p for p in all_of(optimizer) if p.grad is not None]\n    for p "
      "in params: p.grad.div_(scale)", "total(params)", "post",
      OPTIMIZER, f"post = total(params); {OPTIMIZER}", trap="02.1")
wrong("multiplying the old gradients by zero, which turns infinity into NaN", "leftover",
      "params =",
      "for p in all_of(optimizer):\n        if p.grad is not None: p.grad *= 0\n    (loss / "
      "scale).backward(); params =",
      GRADIENTS, "[p for p in all_of(optimizer) if p.grad is not None]", "total(params)", "post",
      OPTIMIZER, f"post = total(params); {OPTIMIZER}", says="norm before clipping: got nan",
      trap="02.1")
wrong("skipping backward if there is already a gradient", "backward",
      "params =",
      "if all(p.grad is None for p in all_of(optimizer)): (loss / scale).backward()\n    params =",
      GRADIENTS, "[p for p in all_of(optimizer) if p.grad is not None]", "total(params)", "post",
      OPTIMIZER, f"post = total(params); {OPTIMIZER}")
wrong("clipping each entry at the limit, as clip_grad_value_ does", "norms",
      "total(params)", "post",
      PRE, "pre = total(params); nn.utils.clip_grad_value_(params, max_norm); post = total(params)")
wrong("clipping only the first parameter group", "one number",
      GRADIENTS, 'optimizer.param_groups[0]["params"]', "params =", GRADIENTS + "; params =",
      "total(params)", "post", OPTIMIZER, f"post = total(params); {OPTIMIZER}")
wrong("handling only the first two parameter groups", "one number",
      GRADIENTS, '[p for group in optimizer.param_groups[:2] for p in group["params"]]',
      "params =", GRADIENTS + "; params =", "total(params)", "post",
      OPTIMIZER, f"post = total(params); {OPTIMIZER}")
wrong("assuming that every parameter has a gradient", "reached",
      "params = gradients(optimizer, loss, scale)\n    pre = nn.utils.clip_grad_norm_(params, "
      "max_norm).item()",
      "optimizer.zero_grad(); (loss / scale).backward(); pre = "
      "nn.utils.clip_grad_norm_(all_of(optimizer), max_norm).item(); post = "
      "sum(float(p.grad.square().sum()) for p in all_of(optimizer)) ** 0.5",
      "total(params)", "post", says="raised AttributeError")


@ex.wrong("returning the example's numbers without taking a step",
          says="after step", breaks="example")
def placeholder(optimizer, loss, scale, max_norm):
    return (6.0, 2.0) if max_norm == 2.0 else divided(optimizer, loss, scale, max_norm)


@ex.wrong("setting old gradients to zero instead of None, so that weight decay still acts",
          says="parameter without a gradient", breaks="reached")
def clears_to_zeros(optimizer, loss, scale, max_norm):
    optimizer.zero_grad(set_to_none=False)
    (loss / scale).backward()
    pre = nn.utils.clip_grad_norm_(all_of(optimizer), max_norm).item()
    post = total(all_of(optimizer))
    optimizer.step()
    return pre, post
