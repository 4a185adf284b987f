"""Exercise 03.3, `clipped_step`."""

from __future__ import annotations

import math

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_checks.s03.common import between, pair
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("03.3", "clipped_step", kept=("unreached",),
              seen=("kind", "groups", "unreached", "strengths", "scale", "max_norm", "leftover"),
              says="norm before clipping")

ex.promise("step", "One step on a scaled loss, with clipping;",
           says=("after the step", "steps of the optimizer", "after step"))
ex.promise("norms", "the norms before and after.",
           says=("norm before clipping", "norm after clipping", "returned value"))
ex.promise("scaled", "loss: has been multiplied by `scale` (as in mixed precision);",
           cases=("a scale of 65536", "a scale below one", "the example"))
ex.promise("backward", "its backward pass has not run,",
           cases=("gradients left over from before", "an infinite gradient left over",
                  "three steps in a row", "three steps of AdamW"))
ex.promise("leftover", "and gradients of an earlier step may be left over.",
           cases=("gradients left over from before", "an infinite gradient left over",
                  "three steps in a row", "three steps of AdamW"))
ex.promise("true size", "The step and both norms are those of the loss without that factor.",
           says=("norm before clipping", "norm after clipping", "after step"))
ex.promise("one number", "A norm is one number over all parameters of all groups",
           cases=("two groups", "three groups", "gradients left over from before",
                  "a parameter that the loss does not reach", "three steps in a row",
                  "three steps of AdamW"))
ex.promise("reached", "that the loss reaches; the step leaves the others alone.",
           cases=("a parameter that the loss does not reach",))
ex.promise("example", "Example: for a gradient of norm 6 and max_norm 2 it returns (6.0, 2.0).",
           cases=("the example",))

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
        for p in live:
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
    """Norms and weights after each step in float64; the gradient is strength * (w - target)."""
    build, options = OPTIMIZERS[kind]
    w = [[nn.Parameter(start.double()) for start, _ in group["pairs"]] for group in groups]
    optimizer = build([{"params": mine, "lr": group["lr"]}
                       for mine, group in zip(w, groups, strict=True)], **options)
    pairs = [(p, target.double()) for mine, group in zip(w, groups, strict=True)
             for p, (_, target) in zip(mine, group["pairs"], strict=True)]
    for strength in strengths:
        for p, target in pairs:
            p.grad = strength * (p.detach() - target)
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p, _ in pairs))
        for p, _ in pairs:
            p.grad *= min(1.0, max_norm / norm) if norm else 1.0
        optimizer.step()
        yield norm, [p.detach().float().clone() for p, _ in pairs]


@ex.law
def law(out, kind, groups, unreached, strengths, scale, max_norm, leftover):
    expect_parts(out, "steps", "shown", "unreached")
    expect_length("calls", out["shown"], len(strengths))
    wanted = expected_steps(kind, groups, strengths, max_norm)
    for k, (got, (norm, weights)) in enumerate(zip(out["shown"], wanted, strict=True), 1):
        expect_parts(got, "answer", "weights")
        pre, post = pair(got["answer"], "pre, post")
        expect_close("norm before clipping", pre, norm,
                     look="Of all parameters together, with the loss scale divided out.")
        expect_close("norm after clipping", post, min(norm, max_norm),
                     look="Of all gradients together, measured again.")
        expect_length("parameters", got["weights"], len(weights))
        for i, (mine, right) in enumerate(zip(got["weights"], weights, strict=True)):
            expect_close(f"parameter {i} after step {k}", mine, right, rtol=1e-5,
                         look="The step uses the clipped gradient.")
    expect_length("parameters without a gradient", out["unreached"], len(unreached))
    for mine, start in zip(out["unreached"], unreached, strict=True):
        expect_equal("parameter without a gradient, after the step", mine, start)
    expect_equal("steps of the optimizer", out["steps"], len(strengths),
                 "One call of optimizer.step(), which knows momentum and the rate of each group.")


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

@ex.wrong("clipping after the step", breaks="step")
def too_late(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    optimizer.step()
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    return pre, total(params)


@ex.wrong("no step at all", says="after step", breaks="step")
def no_step(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    return pre, total(params)


@ex.wrong("a step of its own in place of optimizer.step()", breaks="step")
def own_step(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p -= group["lr"] * p.grad
    return pre, total(params)


@ex.wrong("min(norm, 1) reported as the norm afterwards", breaks="norms")
def made_up(optimizer, loss, scale, max_norm):
    pre = nn.utils.clip_grad_norm_(gradients(optimizer, loss, scale), max_norm).item()
    optimizer.step()
    return pre, min(pre, 1.0)


@ex.wrong("the return value of clip_grad_norm_ taken for the norm afterwards", breaks="norms")
def return_value(optimizer, loss, scale, max_norm):
    pre = nn.utils.clip_grad_norm_(gradients(optimizer, loss, scale), max_norm).item()
    optimizer.step()
    return pre, pre


@ex.wrong("norms as tensors", says="type of the norm", breaks="norms")
def tensors(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = nn.utils.clip_grad_norm_(params, max_norm)
    optimizer.step()
    return pre, nn.utils.get_total_norm([p.grad for p in params])


@ex.wrong("each tensor clipped by itself", breaks="norms")
def per_tensor(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = total(params)
    for p in params:
        nn.utils.clip_grad_norm_(p, max_norm)
    post = total(params)
    optimizer.step()
    return pre, post


@ex.wrong("gradients below the limit brought up to it", breaks="norms")
def always_scaled(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = total(params)
    for p in params:
        p.grad.mul_(max_norm / (pre + 1e-6))
    post = total(params)
    optimizer.step()
    return pre, post


@ex.wrong("the norms of the tensors added up", says="norm before clipping", breaks="norms")
def sum_of_norms(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = sum(p.grad.norm().item() for p in params)
    nn.utils.clip_grad_norm_(params, max_norm)
    post = sum(p.grad.norm().item() for p in params)
    optimizer.step()
    return pre, post


@ex.wrong("each group clipped by itself", says="norm after clipping", breaks="one number")
def per_group(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = total(params)
    for group in optimizer.param_groups:
        nn.utils.clip_grad_norm_(group["params"], max_norm)
    post = total(params)
    optimizer.step()
    return pre, post


@ex.wrong("clipping before the scale is divided out", breaks="true size")
def before_unscale(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, 1.0)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item() / scale
    for p in params:
        p.grad.div_(scale)
    post = total(params)
    optimizer.step()
    return pre, post


@ex.wrong("clipped and measured before the scale is divided out", breaks="true size")
def unscaled_last(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, 1.0)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    for p in params:
        p.grad.div_(scale)
    post = total(params)
    optimizer.step()
    return pre, post


@ex.wrong("the scale never divided out", breaks="true size")
def never_unscaled(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, 1.0)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    post = total(params)
    optimizer.step()
    return pre, post


@ex.wrong("the norm before reported with the scale still in it", breaks="true size")
def scaled_report(optimizer, loss, scale, max_norm):
    pre, post = divided(optimizer, loss, scale, max_norm)
    return pre * scale, post


@ex.wrong("the scale taken for a whole number above one", breaks="scaled")
def whole_scale(optimizer, loss, scale, max_norm):
    return divided(optimizer, loss, max(1, int(scale)), max_norm)


@ex.wrong("gradients added to those left over", trap="02.1", breaks="leftover")
def no_zero_grad(optimizer, loss, scale, max_norm):
    (loss / scale).backward()
    params = [p for p in all_of(optimizer) if p.grad is not None]
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    post = total(params)
    optimizer.step()
    return pre, post


@ex.wrong("gradients left over divided by the scale and kept", trap="02.1", breaks="leftover")
def scaled_leftovers(optimizer, loss, scale, max_norm):
    loss.backward()
    params = [p for p in all_of(optimizer) if p.grad is not None]
    for p in params:
        p.grad.div_(scale)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    post = total(params)
    optimizer.step()
    return pre, post


@ex.wrong("gradients multiplied by zero, which keeps infinity as NaN",
          says="norm before clipping: got nan", trap="02.1", breaks="leftover")
def times_zero(optimizer, loss, scale, max_norm):
    for p in all_of(optimizer):
        if p.grad is not None:
            p.grad *= 0
    (loss / scale).backward()
    params = [p for p in all_of(optimizer) if p.grad is not None]
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    post = total(params)
    optimizer.step()
    return pre, post


@ex.wrong("no backward pass where a gradient lies already", breaks="backward")
def has_run(optimizer, loss, scale, max_norm):
    if all(p.grad is None for p in all_of(optimizer)):
        (loss / scale).backward()
    params = [p for p in all_of(optimizer) if p.grad is not None]
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    post = total(params)
    optimizer.step()
    return pre, post


@ex.wrong("each entry cut at the limit, clip_grad_value_", breaks="norms")
def by_value(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = total(params)
    nn.utils.clip_grad_value_(params, max_norm)
    post = total(params)
    optimizer.step()
    return pre, post


@ex.wrong("the first parameter group only", breaks="one number")
def first_group(optimizer, loss, scale, max_norm):
    gradients(optimizer, loss, scale)
    params = optimizer.param_groups[0]["params"]
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    post = total(params)
    optimizer.step()
    return pre, post


@ex.wrong("two groups, and no more", breaks="one number")
def two_groups(optimizer, loss, scale, max_norm):
    gradients(optimizer, loss, scale)
    params = [p for group in optimizer.param_groups[:2] for p in group["params"]]
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    post = total(params)
    optimizer.step()
    return pre, post


@ex.wrong("a gradient of every parameter taken for granted", says="raised AttributeError",
          breaks="reached")
def all_reached(optimizer, loss, scale, max_norm):
    optimizer.zero_grad()
    (loss / scale).backward()
    pre = nn.utils.clip_grad_norm_(all_of(optimizer), max_norm).item()
    post = sum(float(p.grad.square().sum()) for p in all_of(optimizer)) ** 0.5
    optimizer.step()
    return pre, post


@ex.wrong("the example's numbers returned without a step", says="after step", breaks="example")
def placeholder(optimizer, loss, scale, max_norm):
    return (6.0, 2.0) if max_norm == 2.0 else divided(optimizer, loss, scale, max_norm)
