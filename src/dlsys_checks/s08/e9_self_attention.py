"""Exercise 08.9, `self_attention`."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("08.9", "self_attention", seen=("x", "weight", "heads", "p", "calls", "order"))

ex.promise_table("""
result     | Compute multi-head self-attention (B, T, d) with dropout. | result
weight     | Args: x, weight: (B, T, d) and (3d, d), float32. | result in eval
memory     | Any memory order is possible. | case columns first in memory
parts      | F.linear(x, weight) contains q, k and v in this order. | result in eval
heads      | q, k and v each have their heads side by side, with d / heads values per head. | result
             in eval
tokens     | Every token looks at all tokens of its row. | result in eval
dropped    | If training is True, each attention weight is set to zero with probability p, 0 <= p <
             1. | fraction of weights; weights in training
one by one | Each weight is dropped independently of the others. | neighbours; weights in training
anew       | In training, every call makes a new draw. | equal calls; fraction of weights
divided    | The remaining weights are divided by 1 - p. | weights in training
eval       | If training is False, nothing is dropped and nothing is drawn. | result in eval; draws
             in eval
grad mode  | Neither case depends on whether gradients are on or off. | result in eval; weights in
             training; fraction of weights
left       | x and weight are unchanged. | changed
gradients  | Gradients reach x and weight. | gradient
trained    | Gradients flow in training and outside it. | gradient
computes   | Each call computes its result again. | negated in place
results    | A call leaves earlier results unchanged. | after later calls
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, batch, tokens, heads, dim, p, calls=2, order="rows"):
        d = heads * dim
        x = torch.randn(batch, tokens, d, generator=g)
        weight = torch.randn(3 * d, d, generator=g) / math.sqrt(d)
        return name, {"x": x, "weight": weight, "heads": heads, "p": p, "calls": calls,
                      "order": order}

    def rate():
        return round(0.2 + 0.4 * float(torch.rand((), generator=g)), 2)
    return [one("two heads", whole(2, 4), whole(4, 7), 2, 8, 0.0),
            one("many heads", 2, whole(3, 6), whole(5, 8), 8, 0.0),
            one("one head", whole(2, 4), whole(4, 7), 1, 12, 0.0),
            one("heads of one value", 2, whole(3, 6), whole(3, 6), 1, 0.0),
            one("one token", whole(2, 4), 1, 2, 4, 0.0),
            one("one row", 1, whole(4, 7), 3, 8, 0.0),
            one("columns first in memory", 2, whole(4, 7), 2, 6, 0.0, order="columns"),
            one("dropout", 3, 4, 1, 16, rate(), 40),
            one("dropout, one token", 3, 1, 2, 8, rate(), 40),
            one("dropout, three heads", 2, 4, 3, 16, rate(), 40),
            one("dropout, a large rate", 2, 5, 2, 16, 0.8, 40)]


@ex.act
def act(fn, x, weight, heads, p, calls, order):
    mine, its = x.clone(), weight.clone()
    if order == "columns":
        mine, its = mine.mT.contiguous().mT, its.T.contiguous().T
    mine.requires_grad_()
    its.requires_grad_()
    state = torch.get_rng_state()
    with_grad = fn(mine, its, heads, p, False)
    grads = torch.autograd.grad(with_grad.sin().sum(), (mine, its), allow_unused=True)
    with torch.no_grad():
        without = fn(mine, its, heads, p, False)
        drawn = int((torch.get_rng_state() != state).sum())
        trained = [fn(mine, its, heads, p, True) for _ in range(calls // 4)]
    plain, its_plain = mine.detach(), its.detach()  # which ask for no gradient
    trained += [fn(plain, its_plain, heads, p, True) for _ in range(calls // 4)]
    trained += [fn(mine, its, heads, p, True) for _ in range(calls - 2 * (calls // 4))]
    shown = trained[-1].detach().clone()
    its_grads = torch.autograd.grad(trained[-1].sin().sum(), (mine, its), allow_unused=True)
    changed = int((mine.detach() != x).sum() + (its.detach() != weight).sum())
    seen = [with_grad.detach().clone(), without.clone()]
    with torch.no_grad():
        mine.neg_()
        turned = fn(mine, its, heads, p, False)
    return {"eval": seen, "grads": list(grads), "drawn": drawn,
            "trained": [*(t.detach().clone() for t in trained[:-1]), shown],
            "trained grads": list(its_grads), "changed": changed, "turned": turned.clone(),
            "later": [with_grad.detach().clone(), without.clone()]}


def parts_of(x, weight, heads):
    """Attention weights (B, H, T, T) and values (B, H, T, D) by einsum; float64."""
    d = x.shape[-1]
    w = weight.double().reshape(3, heads, d // heads, d)
    q, k, v = torch.einsum("btc,shec->sbhte", x.double(), w)
    scores = torch.einsum("bhie,bhje->bhij", q, k) * (d // heads) ** -0.5
    return torch.softmax(scores, -1), v


def joined(a, v):
    return torch.einsum("bhij,bhje->bihe", a, v).flatten(2)


def expect_dropped(trained, a, v, p):
    """What was kept in the last call, (B, H, T, T); each weight has to be 0 or a / (1 - p).

    Raise Broken unless that is so, as often as p says, and independently.
    """
    heads, kept = a.shape[1], []
    modes = ("gradients off", "no gradient asked for", "gradients on", "gradients on")
    for k, out in enumerate(trained):
        y = out.double().unflatten(-1, (heads, -1)).transpose(1, 2)
        found = y @ torch.linalg.pinv(v) * (1 - p) / a
        off = torch.minimum(found.abs(), (found - 1).abs()) * a / a.amax(-1, keepdim=True)
        if not float(off.max()) < 5e-3:
            raise Broken(f"weights in training, {modes[4 * k // len(trained)]}", "other values",
                         f"0 or {1 / (1 - p):.3g} times its value in eval",
                         "Apply dropout to the weights, after the softmax.")
        kept.append(found > 0.5)
    kept = torch.stack(kept).double()
    # A few weights may well be drawn alike twice.
    if kept[0].numel() > 20 and float((kept[1:] == kept[:1]).all(dim=(1, 2, 3, 4)).double().max()):
        raise Broken("equal calls in training", "two", "none", "Draw again at every call.")
    n, share = kept.numel(), float(1 - kept.mean())
    if abs(share - p) > 5.5 * math.sqrt(p * (1 - p) / n):
        raise Broken("fraction of weights dropped in training", share, p)
    same = p * p + (1 - p) ** 2
    for axis, name in enumerate(("rows of the batch", "heads", "queries", "keys"), 1):
        for lag in range(1, kept.shape[axis]):
            ahead = kept.narrow(axis, lag, kept.shape[axis] - lag)
            alike = ahead == kept.narrow(axis, 0, kept.shape[axis] - lag)
            share = float(alike.double().mean())
            if abs(share - same) > 7 * math.sqrt(same * (1 - same) / alike.numel()) + 0.02:
                raise Broken(f"fraction of neighbours among {name} that are dropped or kept "
                             "together",
                             share, same, "Draw separately for each weight.")
    return kept[-1]


@ex.law
def law(out, x, weight, heads, p, calls, order):
    expect_parts(out, "eval", "grads", "drawn", "trained", "trained grads", "changed", "turned",
                 "later")
    a, v = parts_of(x, weight, heads)
    right = joined(a, v).float()
    expect_length("calls in eval", out["eval"], 2)
    for grad, got in zip(("on", "off"), out["eval"], strict=True):
        expect_close(f"result in eval, gradients {grad}", got, right, rtol=1e-3, atol=1e-5)
    expect_equal("draws in eval", out["drawn"], 0, "Draw nothing in eval.")
    expect_length("calls in training", out["trained"], calls)
    for got in out["trained"]:
        expect_like("result in training", got, right)
    kept = torch.ones_like(a)
    if p:
        kept = expect_dropped(out["trained"], a, v, p)
    else:
        for got in out["trained"]:
            expect_close("weights in training, p = 0: result", got, right, rtol=1e-3, atol=1e-5)
    expect_grads("", out["grads"], x, weight, heads, torch.ones_like(a))
    expect_grads(" in training", out["trained grads"], x, weight, heads, kept / (1 - p))
    expect_equal("values of x and weight changed", out["changed"], 0)
    expect_close("result in eval after x was negated in place", out["turned"],
                 joined(*parts_of(-x, weight, heads)).float(), rtol=1e-3, atol=1e-5)
    expect_length("calls in eval, after later calls", out["later"], 2)
    for got in out["later"]:
        expect_close("result in eval, read again after later calls", got, right, rtol=1e-3,
                     atol=1e-5)


def expect_grads(when, found, x, weight, heads, factors):
    """Raise Broken unless these are the gradients of the sum of sines, weights times factors."""
    leaves = [t.double().requires_grad_() for t in (x, weight)]
    a, v = parts_of(*leaves, heads)
    grads = torch.autograd.grad(joined(a * factors, v).sin().sum(), leaves)
    expect_length(f"gradients{when}", found, 2)
    for name, got, grad in zip(("x", "weight"), found, grads, strict=True):
        expect_close(f"gradient for {name}{when}", got, grad.float(), rtol=2e-3,
                     atol=1e-4 * max(1e-3, float(grad.abs().max())))


def three(x, weight, heads):
    batch, tokens, d = x.shape
    parts = (x @ weight.T).reshape(batch, tokens, 3, heads, d // heads)
    return parts.permute(2, 0, 3, 1, 4)


# ---- wrong, by name

@not_an_answer
def attend(x, weight, heads, p, training):
    q, k, v = three(x, weight, heads)
    a = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    a = F.dropout(a, p, training)
    return (a @ v).transpose(1, 2).flatten(2)


wrong = ex.edits(attend)
PARTS, SCORES = "three(x, weight, heads)", "(q @ k.mT / math.sqrt(q.shape[-1]))"
DROP, OUT = "F.dropout(a, p, training)", "(a @ v).transpose(1, 2).flatten(2)"
wrong("applying dropout in every mode",
      "eval", DROP, "F.dropout(a, p, True)")
wrong("applying dropout according to the grad mode", "grad mode", DROP,
      "F.dropout(a, p, torch.is_grad_enabled())")
wrong("applying dropout only if training is True and gradients are on", "grad mode",
      DROP, "F.dropout(a, p, training and torch.is_grad_enabled())")
wrong("never dropping a weight", ("dropped", "divided"), DROP, "a")
wrong("swapping p and 1 - p", ("dropped", "divided"),
      DROP, "F.dropout(a, 1 - p if p else p, training)")
wrong("dropping weights with probability p / 2", "dropped",
      DROP, "a * (torch.rand_like(a) >= p / 2) / (1 - p) if training else a")
wrong("not dividing the remaining weights by 1 - p", "divided",
      DROP, "a * (torch.rand_like(a) >= p) if training else a")
wrong("dividing the remaining weights by their sum", "divided",
      DROP, DROP + "\n    if training and p: a = a / a.sum(-1, keepdim=True).clamp(min=1e-9)")
wrong("applying dropout to the scores before the softmax", ("dropped", "divided"),
      SCORES, f"F.dropout({SCORES}, p, training)", DROP, "a")
wrong("applying dropout to the result, not to the weights", "one by one",
      DROP, "a", OUT, f"F.dropout({OUT}, p, training)")
wrong("dropping a key for all queries together", "one by one",
      DROP, "a", "a @ v",
      "a @ (v * (torch.rand(*v.shape[:3], 1) >= p) / (1 - p) if training else v)")
wrong("dropping all keys of a query together", "one by one",
      DROP, "a * (torch.rand(*a.shape[:3], 1) >= p) / (1 - p) if training else a",
      says="neighbours among keys")
wrong("making one draw for all rows of the batch", "one by one",
      DROP, "a * (torch.rand_like(a[:1]) >= p) / (1 - p) if training else a",
      says="neighbours among rows")
wrong("dropping only if x or weight requires a gradient", "dropped",
      DROP, "F.dropout(a, p, training and (x.requires_grad or weight.requires_grad))")
wrong("making one draw for all heads", "one by one",
      DROP, "a * (torch.rand_like(a[:, :1]) >= p) / (1 - p) if training else a")
wrong("making the same draw at every call", "anew",
      "a = F", "dice = torch.Generator().manual_seed(0); a = F",
      DROP, "a * (torch.rand(a.shape, generator=dice) >= p) / (1 - p) if training else a")
wrong("drawing random numbers outside training as well, without using them", "eval", "a = F",
      "torch.rand(3); a = F")
wrong("leaving out the transpose, so that each token attends among its own heads", "tokens",
      PARTS, "(t.unflatten(-1, (heads, -1)) for t in F.linear(x, weight).chunk(3, -1))",
      OUT, "(a @ v).flatten(2)")
wrong("adding a causal mask", "tokens",
      SCORES, SCORES + ".masked_fill(torch.ones(2 * x.shape[1:2]).triu(1).bool(), -math.inf)")
wrong("giving neighbouring values to different heads, not to the same head", ("heads", "dropped"),
      PARTS, "(t.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2) for t in F.linear(x, weight).chunk("
      "3, -1))", OUT, "(a @ v).permute(0, 2, 3, 1).flatten(2)")
wrong("taking q, k and v in a different order", "parts", "q, k, v =", "v, q, k =")
wrong("not dividing by the square root of the head's size", ("result", "tokens"), SCORES,
      "(q @ k.mT)")
wrong("dividing by sqrt(d) instead of sqrt(d / heads)", "heads", "q.shape", "x.shape")
wrong("dividing by the head's size, not by its square root", ("result", "tokens"), "math.sqrt", "")
wrong("taking the softmax over the queries, not over the keys", ("result", "tokens", "dropped"),
      "softmax(-1)", "softmax(-2)")
wrong("assuming that each head's q, k and v are side by side", ("parts", "heads", "dropped"),
      PARTS, "F.linear(x, weight).unflatten(-1, (heads, -1)).transpose(1, 2).chunk(3, -1)")
wrong("leaving the heads before the tokens", "result", OUT, "a @ v", says="shape of the result")
wrong("reshaping heads and tokens without swapping them", "result",
      OUT, "(a @ v).reshape(x.shape)", says="result in eval")
wrong("scaling x in place", "left",  # by one or two last digits
      "a = F", "if not training: x.data.mul_(1 + 2e-7)\n    a = F")
wrong("detaching the weight", "gradients",
      PARTS, "three(x, weight.detach(), heads)", says="gradient for weight")
wrong("detaching the attention weights in training", "trained",
      DROP, "F.dropout(a.detach(), p) if training else a", says="in training")
wrong("reading the weight as (d, 3d)", "weight",
      PARTS, "three(x, weight.reshape(weight.shape[1], -1).T, heads)")
wrong("calling view() on x, whatever its memory order", "memory",
      PARTS, "three(x.view(-1).view(x.shape), weight, heads)", says="raised RuntimeError")


KNOWN: dict = {}


@ex.wrong("caching results outside training by tensor object, so that new values are missed",
          says="negated in place",
          breaks="computes")
def remembered(x, weight, heads, p, training):
    if training or torch.is_grad_enabled():
        return attend(x, weight, heads, p, training)
    if KNOWN.get("x") is not x:
        KNOWN.update(x=x, out=attend(x, weight, heads, p, False))
    return KNOWN["out"].clone()


ROOM: dict = {}


@ex.wrong("returning, under no_grad, one buffer that every call overwrites", breaks="results")
def one_room(x, weight, heads, p, training):
    out = attend(x, weight, heads, p, training)
    if training or out.requires_grad:
        return out
    held = ROOM.setdefault(out.shape, out)
    return held.copy_(out)
