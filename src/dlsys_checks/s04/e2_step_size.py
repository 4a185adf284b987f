"""Exercise 04.2, `step_size`."""

from __future__ import annotations

import copy

import torch
from torch import nn

from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_like, expect_parts

ex = exercise("04.2", "step_size",
              seen=("kind", "rates", "weights", "grads"), kept=("kept",))


@ex.cases
def cases(g):
    def one(name, kind, scale, steps):
        rate = 0.02 + 0.05 * float(torch.rand((), generator=g))
        return name, {"kind": kind, "rates": [rate, 2.5 * rate],
                      "weights": torch.randn(2, 5, generator=g),
                      "grads": scale * torch.randn(steps, 2, 5, generator=g)}
    return [one("Adam and tiny gradients", "adam", 1e-3, 1),
            one("SGD and large gradients", "sgd", 30.0, 1),
            one("momentum after three steps", "momentum", 1.0, 4),
            one("Adam after five steps", "adam", 2.0, 6)]


@ex.act
def act(fn, kind, rates, weights, grads):
    params = [nn.Parameter(w.clone()) for w in weights]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(params, rates)]
    opt = (torch.optim.Adam(groups) if kind == "adam"
           else torch.optim.SGD(groups, momentum=0.9 if kind == "momentum" else 0.0))
    for step in grads[:-1]:
        for p, grad in zip(params, step):
            p.grad = grad.clone()
        opt.step()
    for p, grad in zip(params, grads[-1]):
        p.grad = grad.clone()
    before = torch.stack([p.detach().clone() for p in params])
    size = fn(opt)
    kept = torch.stack([p.detach().clone() for p in params])
    opt.step()
    after = torch.stack([p.detach().clone() for p in params])
    return {"size": size, "drift": float((kept - before).abs().max()), "kept": kept,
            "after": after}


def last_move(kind, rates, weights, grads):
    """The weights before the last step and after it, by the published update rules in float64."""
    w, g = weights.double(), grads.double()
    lr = torch.tensor(rates, dtype=torch.float64)[:, None]
    b = m = v = torch.zeros_like(g[0])
    for t, grad in enumerate(g, 1):
        b = (0.9 if kind == "momentum" else 0.0) * b + grad
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
        adam = m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        before, w = w, w - lr * (adam if kind == "adam" else b)
    return before, w


@ex.law
def law(out, kind, rates, weights, grads):
    expect_parts(out, "size", "drift", "kept", "after")
    before, after = last_move(kind, rates, weights, grads)
    wanted = (after - before).abs().max().item()
    expect_close("farthest move of the next step", out["size"], wanted, rtol=1e-3, atol=1e-7)
    back = "Put the weights back."
    # The act alone can see the last bit; weights calculated here see all that matters.
    expect_equal("move of the weights by the measurement", out["drift"], 0.0, back)
    expect_close("weights after the measurement", out["kept"], before.float(), look=back)
    expect_like("weights after the real step", out["after"], out["kept"])
    real = (out["after"] - out["kept"]).abs().max().item()
    memory = "The optimizer's memory changed: restore it, too."
    expect_close("real step after the measurement", real, wanted, rtol=1e-3, atol=1e-7,
                 look=memory)
    expect_close("weights after the real step", out["after"], after.float(), rtol=1e-4, atol=1e-5,
                 look=memory)


def pairs_of(opt):
    return [(group["lr"], p) for group in opt.param_groups for p in group["params"]]


def measured(opt, distance=lambda d: d.abs().max(), pick=max, weights=True, memory=True):
    """Take a step, measure it, take back what the flags say."""
    params = [p for _, p in pairs_of(opt)]
    before = [p.detach().clone() for p in params]
    state = copy.deepcopy(opt.state_dict())
    opt.step()
    moves = [distance(p.detach() - b).item() for p, b in zip(params, before, strict=True)]
    for p, b in zip(params, before, strict=True) if weights else []:
        p.data.copy_(b)
    if memory:
        opt.load_state_dict(state)
    return pick(moves)


@ex.wrong("rate times gradient, whatever the optimizer", says="farthest move")
def rate_times_gradient(opt):
    return max(lr * p.grad.abs().max().item() for lr, p in pairs_of(opt))


@ex.wrong("the rate alone, as if every optimizer divided by the gradient", says="farthest move")
def rate_alone(opt):
    return max(lr for lr, _ in pairs_of(opt))


@ex.wrong("the weights left where the step took them", says="Put the weights back")
def leaves_weights(opt):
    return measured(opt, weights=False)


@ex.wrong("the optimizer's memory left one step ahead", says="restore it, too")
def leaves_memory(opt):
    return measured(opt, memory=False)


@ex.wrong("the mean move instead of the farthest", says="farthest move")
def mean_move(opt):
    return measured(opt, distance=lambda d: d.abs().mean())


@ex.wrong("the norm of the move instead of the farthest entry", says="farthest move")
def norm_of_move(opt):
    return measured(opt, distance=torch.Tensor.norm)


@ex.wrong("the first group only", says="farthest move")
def first_group(opt):
    return measured(opt, pick=lambda moves: moves[0])
