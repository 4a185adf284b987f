"""Exercise 03.3, `clipped_step`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.s03.common import pair
from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_close, expect_parts

ex = exercise("03.3", "clipped_step",
              seen=("x", "y", "weight", "scale", "max_norm", "leftover"))


@ex.cases
def cases(g):
    def one(name, scale, max_norm, leftover=False):
        return name, {"x": torch.randn(6, 5, generator=g) * 3,
                      "y": torch.randn(6, generator=g) + 20,
                      "weight": torch.randn(1, 5, generator=g),
                      "scale": scale, "max_norm": max_norm, "leftover": leftover}
    return [one("a gradient far above the limit", 4.0, 0.5),
            one("a gradient below the limit", 2.0, 1e6),
            one("gradients left over from before", 8.0, 2.0, leftover=True),
            one("a loss scaled by 1024", 1024.0, 3.0)]


@ex.act
def act(fn, x, y, weight, scale, max_norm, leftover):
    model = nn.Linear(5, 1)
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.fill_(0.5)
    if leftover:
        for p in model.parameters():
            p.grad = torch.full_like(p, 1e4)
    optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.25)
    loss = F.mse_loss(model(x)[:, 0], y) * scale
    answer = fn(optimizer, loss, scale, max_norm)
    return {"answer": answer, "weight": model.weight, "bias": model.bias}


@ex.law
def law(out, x, y, weight, scale, max_norm, leftover):
    expect_parts(out, "answer", "weight", "bias")
    pre, post = pair(out["answer"], "pre, post")
    error = x.double() @ weight.double()[0] + 0.5 - y.double()
    grad = torch.cat([2 * error @ x.double() / len(y), 2 * error.mean().reshape(1)])
    norm = float(grad.norm())
    expect_close("norm before clipping", pre, norm, rtol=1e-3,
                 look="Of all parameters together, with the loss scale divided out.")
    expect_close("norm after clipping", post, min(norm, max_norm), rtol=1e-3,
                 look="Of all gradients together, measured again.")
    step = 0.25 * grad * min(1, max_norm / norm)
    for name, moved in (("weight", step[None, :5]), ("bias", step[5:])):
        start = weight.double() if name == "weight" else torch.tensor([0.5]).double()
        expect_close(f"{name} after the step", out[name], (start - moved).float(), rtol=1e-4,
                     atol=1e-4, look="The step uses the clipped gradient.")


def gradients(optimizer, loss, scale):
    """Fresh gradients with the scale divided out; returns the parameters of all groups."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad()
    loss.backward()
    for p in params:
        p.grad.div_(scale)
    return params


def total(params):
    return nn.utils.get_total_norm([p.grad for p in params]).item()


@ex.wrong("clipping after the step", says="after the step")
def too_late(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    optimizer.step()
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    return pre, total(params)


@ex.wrong("min(norm, 1) reported as the norm afterwards", says="norm after clipping")
def made_up(optimizer, loss, scale, max_norm):
    pre = nn.utils.clip_grad_norm_(gradients(optimizer, loss, scale), max_norm).item()
    optimizer.step()
    return pre, min(pre, 1.0)


@ex.wrong("the return value of clip_grad_norm_ taken for the norm afterwards",
          says="norm after clipping")
def return_value(optimizer, loss, scale, max_norm):
    pre = nn.utils.clip_grad_norm_(gradients(optimizer, loss, scale), max_norm).item()
    optimizer.step()
    return pre, pre


@ex.wrong("each tensor clipped by itself", says="norm after clipping")
def per_tensor(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = total(params)
    for p in params:
        nn.utils.clip_grad_norm_(p, max_norm)
    optimizer.step()
    return pre, total(params)


@ex.wrong("clipping before the scale is divided out", says="norm after clipping")
def before_unscale(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, 1.0)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item() / scale
    for p in params:
        p.grad.div_(scale)
    optimizer.step()
    return pre, total(params)


@ex.wrong("the scale never divided out", says="norm before clipping")
def never_unscaled(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, 1.0)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    optimizer.step()
    return pre, total(params)


@ex.wrong("gradients added to those left over", says="norm before clipping", trap="02.1")
def no_zero_grad(optimizer, loss, scale, max_norm):
    params = [p for group in optimizer.param_groups for p in group["params"]]
    loss.backward()
    for p in params:
        p.grad.div_(scale)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    optimizer.step()
    return pre, total(params)


@ex.wrong("each entry cut at the limit, clip_grad_value_", says="norm after clipping")
def by_value(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = total(params)
    nn.utils.clip_grad_value_(params, max_norm)
    optimizer.step()
    return pre, total(params)


@ex.wrong("the first parameter group only", says="norm before clipping")
def first_group(optimizer, loss, scale, max_norm):
    gradients(optimizer, loss, scale)
    params = optimizer.param_groups[0]["params"]
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    optimizer.step()
    return pre, total(params)
