"""Exercise 15.4, `route`."""

from __future__ import annotations

import torch

from dlsys_checks.kit import floats
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("15.4", "route", seen=("logits", "k", "renorm", "weight", "half"),
              says="weights of the experts")

ex.promise_table("""
parts     | Compute (weights, experts) from a router's logits. | type of the two parts; two parts
likeliest | Pick the k likeliest experts for each token. | experts of a token
logits    | logits: (..., E) float32 or bfloat16, one per expert. The logits of a token all differ,
            and so do the token's probabilities in float32. | case bfloat16; bfloat16, close logits;
            bfloat16, many experts; three axes; no axis but the last; one token; large logits;
            logits far below zero
experts   | experts: (..., k) int64, the likeliest first. | type of the experts; shape of the
            experts; dtype of the experts; order of the experts
chance    | weights: (..., k) float32, computed in float32: the probability of each of these experts
            under the softmax over all E experts. | weights of the experts; dtype of the weights;
            shape of the weights; type of the weights
divided   | With renorm, the weights are divided by their sum, so that they add up to 1. | case two,
            divided; three, divided; all, divided; two of many, divided; bfloat16; three axes; the
            example, divided; large logits
one       | For k = 1, they are never divided, because a weight of 1 would give the router no
            gradient. | case one, divided; one of many, divided; one of two, divided; one, divided,
            bfloat16
flow      | The gradient of each weight flows to logits, including through the sum that divides it.
            | gradient of the logits; unusable; led to
k         | k: 1 to E. | case all, divided; all; one; only one expert; one, divided
left      | Inputs are not changed. | logits that changed
example   | Example: logits [2., 1., 0.] and k 2 give weights [0.6652, 0.2447] and experts [0, 1];
            with renorm, weights [0.7311, 0.2689]. | case the example; the example, divided
""")


@ex.cases
def cases(g):
    between = floats(g)

    def one(name, *shape, k, renorm, half=False, size=None, shift=0.0):
        size = between(0.7, 1.3) if size is None else size
        ranks = torch.rand(shape, generator=g).argsort(-1).float()   # no two alike
        step = torch.rand(shape, generator=g) * 0.5
        logits = (ranks + (0.0 if half else step) - shape[-1] / 2) * size * 4 / shape[-1]
        if half:                    # steps of 1/8 survive the rounding
            logits = (ranks - shape[-1] // 2) / 8
        weight = 0.5 + torch.rand((*shape[:-1], k), generator=g)
        return name, {"logits": logits + shift, "k": k, "renorm": renorm, "weight": weight,
                      "half": half}

    return [one("one", 5, 4, k=1, renorm=False), one("one, divided", 5, 4, k=1, renorm=True),
            one("one of two, divided", 3, 2, k=1, renorm=True),
            one("one of many, divided", 4, 32, k=1, renorm=True),
            one("one, divided, bfloat16", 4, 6, k=1, renorm=True, half=True),
            one("two", 6, 5, k=2, renorm=False), one("two, divided", 6, 5, k=2, renorm=True),
            one("two of many, divided", 3, 40, k=2, renorm=True),
            one("three", 4, 8, k=3, renorm=False), one("three, divided", 4, 8, k=3, renorm=True),
            one("all", 3, 4, k=4, renorm=False), one("all, divided", 3, 4, k=4, renorm=True),
            one("only one expert", 3, 1, k=1, renorm=False),
            one("one token", 1, 6, k=2, renorm=False), one("three axes", 2, 3, 7, k=2, renorm=True),
            one("no axis but the last", 6, k=2, renorm=False),
            one("large logits", 4, 6, k=3, renorm=True, shift=100.0),
            one("logits far below zero", 4, 6, k=2, renorm=False, shift=-120.0),
            one("bfloat16", 4, 6, k=2, renorm=True, half=True),
            one("bfloat16, many experts", 3, 24, k=3, renorm=False, half=True),
            ("bfloat16, close logits", {
                "logits": torch.tensor([[0.001, 0.00101, 0.0, -1.0]]), "k": 2, "renorm": False,
                "weight": torch.tensor([[1.0, 2.0]]), "half": True}),
            ("the example", {"logits": torch.tensor([[2.0, 1.0, 0.0]]), "k": 2, "renorm": False,
                             "weight": torch.ones(1, 2), "half": False}),
            ("the example, divided", {"logits": torch.tensor([[2.0, 1.0, 0.0]]), "k": 2,
                                      "renorm": True, "weight": torch.tensor([[1.0, 2.0]]),
                                      "half": False})]


@ex.act
def act(fn, logits, k, renorm, weight, half):
    mine = logits.to(torch.bfloat16) if half else logits.clone()
    before = mine.clone()
    mine.requires_grad_()
    found = fn(mine, k, renorm)
    kind = "tuple" if isinstance(found, tuple) else type(found).__name__  # topk's pair is one
    found = list(found) if isinstance(found, (tuple, list)) else [found]
    first = found[0]
    if isinstance(first, torch.Tensor) and first.shape == weight.shape and first.requires_grad:
        (first * weight).sum().backward()
    grad = torch.zeros_like(mine) if mine.grad is None else mine.grad
    return {"kind": kind, "found": found, "grad": grad.float(),
            "moved": int((mine.detach() != before).sum())}


@ex.law
def law(out, logits, k, renorm, weight, half):
    expect_parts(out, "kind", "found", "grad", "moved")
    expect_equal("type of the two parts", out["kind"], "tuple")
    expect_length("two parts", out["found"], 2)
    expect_equal("logits that changed", out["moved"], 0, "Work on a copy.")
    weights, experts = out["found"]
    exact = (logits.to(torch.bfloat16) if half else logits).double()
    flat = exact.reshape(-1, exact.shape[-1])
    rows = [sorted(range(len(row)), key=lambda e, row=row: -float(row[e]))[:k] for row in flat]
    wanted, slopes = torch.zeros(len(flat), k), torch.zeros(len(flat), flat.shape[-1])
    for n, (row, best) in enumerate(zip(flat, rows)):
        every = renorm and k > 1                  # then the chosen alone share what there is
        among = best if every else list(range(len(row)))
        share = (row[among] - row[among].max()).exp()
        share = dict(zip(among, (share / share.sum()).tolist()))
        pull = [float(w) for w in weight.reshape(-1, k)[n]]
        mean = sum(w * share[e] for w, e in zip(pull, best))
        for e in among:
            slopes[n, e] = -share[e] * mean
        for place, (w, e) in enumerate(zip(pull, best)):
            wanted[n, place] = share[e]
            slopes[n, e] += share[e] * w
    shape = (*logits.shape[:-1], k)
    look = f"Here k is {k}, renorm is {renorm}, and there are {logits.shape[-1]} experts."
    best = torch.tensor(rows).reshape(shape)
    expect_type("experts", experts, torch.Tensor)
    expect_equal("shape of the experts", tuple(experts.shape), shape, look)
    expect_equal("dtype of the experts", str(experts.dtype), "torch.int64", look)
    expect_equal("experts of a token", experts.sort(-1).values, best.sort(-1).values, look)
    expect_equal("order of the experts", experts, best, look)
    expect_type("weights of the experts", weights, torch.Tensor)
    expect_equal("shape of the weights", tuple(weights.shape), shape, look)
    expect_equal("dtype of the weights", str(weights.dtype), "torch.float32", look)
    expect_close("weights of the experts", weights, wanted.reshape(shape), rtol=1e-4, atol=2e-5,
                 look=look)
    expect_close("gradient of the logits", out["grad"], slopes.reshape(logits.shape),
                 rtol=1e-2 if half else 1e-3, atol=1e-3 if half else 3e-5, look=look)


# ---- wrong, by name

@not_an_answer
def made(logits, k, renorm, *, before=lambda z: z.float(), after=lambda w: w):
    weights, experts = before(logits).softmax(-1).topk(k, dim=-1, largest=True)
    if renorm and k > 1:
        weights = weights / weights.sum(-1, keepdim=True)
    out = after(weights), experts
    return out


wrong = ex.edits(made)
# https://github.com/jingyaogong/minimind/issues/858
wrong("dividing the only weight by itself for k = 1", ("one", "k"), "renorm and k > 1", "renorm")
# https://github.com/davidmrau/mixture-of-experts/issues/27
wrong("taking the softmax over the chosen experts only", ("chance", "example"),
      "weights, experts =",
      "best, experts = logits.float().topk(k, dim=-1); return best.softmax(-1), experts; "
      "weights, experts =")
ex.wrong("using the logits as weights", lambda logits, k, renorm: tuple(
    logits.float().topk(k, dim=-1)), breaks=("chance", "example", "divided", "one"))
wrong("ignoring renorm", "divided",
      "if renorm and k > 1:\n        weights = weights / weights.sum(-1, keepdim=True)", "pass")
wrong("dividing only if renorm is False", ("chance", "divided", "example"),
      "if renorm", "if not renorm")
wrong("dividing the weights by k instead of their sum",
      "divided", "weights.sum(-1, keepdim=True)", "weights.shape[-1]")
wrong("dividing the weights by their norm instead of their sum", "divided",
      ".sum", ".norm", "-1, keepdim", "dim=-1, keepdim")
wrong("dividing the weights by the largest weight instead of their sum", "divided", ".sum", ".amax")
wrong("applying a second softmax to the chosen probabilities", "divided",
      "weights / weights.sum(-1, keepdim=True)", "weights.softmax(-1)")
wrong("detaching the sum that divides the weights", "flow",
      "weights.sum", "weights.detach().sum", says="gradient of the logits")
ex.wrong("detaching the weights", made, breaks="flow", says="gradient of the logits",
         after=lambda w: w.detach())
wrong("returning a weight of 1 with the gradient of the probability", "one",
      "renorm and k > 1", "renorm", "weights / weights.sum(-1, keepdim=True)",
      "weights / weights.detach() if weights.shape[-1] == 1 else weights / weights.sum(-1, "
      "keepdim=True)")
ex.wrong("calculating in bfloat16", made, breaks=("chance", "logits"), says="",
         before=lambda z: z if z.dtype == torch.bfloat16 else z.float(),
         after=lambda w: w.float())


@ex.wrong("choosing experts by probabilities in bfloat16",
          breaks=("likeliest", "experts", "logits"))
def by_rounded(logits, k, renorm):
    experts = logits.softmax(-1).topk(k, dim=-1).indices
    weights = logits.float().softmax(-1).gather(-1, experts)
    return (weights / weights.sum(-1, keepdim=True) if renorm and k > 1 else weights), experts


wrong("returning weights in the dtype of the logits", ("chance", "logits"),
      "return out",
      "return tuple(part.to(logits.dtype) if part.is_floating_point() else part for part in out)",
      says="dtype of the weights")
wrong("taking exponentials without subtracting the largest logit", "logits",
      "before(logits).softmax(-1)",
      "(lambda z: z.exp() / z.exp().sum(-1, keepdim=True))(before(logits))", says="")
wrong("using sigmoids instead of the softmax", ("chance", "example", "likeliest", "experts"),
      "before(logits).softmax(-1)", "before(logits).sigmoid()")
wrong("taking the softmax over the tokens instead of the experts",
      ("likeliest", "experts", "chance"), "(-1)", "(0)", says="")
wrong("choosing the unlikeliest experts", ("likeliest", "experts"),
      "largest=True", "largest=False", says="experts of a token")
wrong("returning the likeliest expert last", "experts",
      "return out", "return tuple(part.flip(-1) for part in out)", says="order of the experts")
wrong("ordering experts by number, not by probability", "experts",
      "return out",
      "weights, experts = out; order = experts.argsort(-1); return weights.gather(-1, order), "
      "experts.gather(-1, order)", says="order of the experts")
wrong("returning experts in int32", "experts",
      "(weights), experts", "(weights), experts.int()", says="dtype of the experts")
wrong("dropping the last axis of both results for k = 1", ("experts", "k"),
      "return out", "return tuple(part[..., 0] if k == 1 else part for part in out)",
      says="shape of the experts")
wrong("returning the experts before the weights", ("parts", "experts"),
      "return out", "return out[::-1]", says="dtype of the experts")
wrong("returning only the weights",
      "parts", "return out", "return out[0]", says="type of the two parts")
wrong("returning a list instead of a tuple",
      "parts", "return out", "return list(out)", says="type of the two parts")
wrong("returning a weight for each of the E experts, 0 for those not chosen", "chance",
      "return out",
      "weights, experts = out; return torch.zeros_like(logits, dtype=torch.float32).scatter(-1, "
      "experts, weights), experts", says="")
wrong("subtracting the largest logit in place", "left",
      "return out", "logits.data.sub_(logits.data.amax(-1, keepdim=True) + 1); return out")
