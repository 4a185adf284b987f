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

ex.promise("parts", "(weights, experts):", says=("type of the two parts", "two parts"))
ex.promise("likeliest", "the k likeliest experts of each token.",
           says=("experts of a token",))
ex.promise("logits", "logits: (..., E) float32 or bfloat16, one for each expert, no two of a "
           "token alike, nor their chances in float32.",
           cases=("bfloat16", "bfloat16, close logits", "bfloat16, many experts", "three axes",
                  "no axis but the last", "one token", "large logits", "logits far below zero"))
ex.promise("experts", "experts: (..., k) int64, the likeliest first.",
           says=("type of the experts", "shape of the experts", "dtype of the experts",
                 "order of the experts"))
ex.promise("chance", "weights: (..., k) float32, calculated in float32: the chance of each of "
           "them, under the softmax over all E.", says=("weights of the experts",
                                                        "dtype of the weights",
                                                        "shape of the weights",
                                                        "type of the weights"))
ex.promise("divided", "With renorm they are divided by their sum, so that they add to 1;",
           cases=("two, divided", "three, divided", "all, divided", "two of many, divided",
                  "bfloat16", "three axes", "the example, divided", "large logits"))
ex.promise("one", "with k = 1 never, for then the router would get no gradient.",
           cases=("one, divided", "one of many, divided", "one of two, divided",
                  "one, divided, bfloat16"))
ex.promise("flow", "The gradient of each weight flows to logits, through a sum that divides it as "
           "well.", says=("gradient at the logits", "unusable", "led to"))
ex.promise("k", "k: 1 to E.", cases=("all, divided", "all", "one", "one expert there is",
                                     "one, divided"))
ex.promise("left", "Nothing handed over changes.", says=("logits that changed",))
ex.promise("example", "Example: logits [2., 1., 0.], k 2: weights [0.6652, 0.2447], experts "
           "[0, 1]; with renorm [0.7311, 0.2689].",
           cases=("the example", "the example, divided"))


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
            one("one expert there is", 3, 1, k=1, renorm=False),
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
    kind = type(found).__name__
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
    look = f"k {k}, renorm {renorm}, {logits.shape[-1]} experts."
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
    expect_close("gradient at the logits", out["grad"], slopes.reshape(logits.shape),
                 rtol=1e-2 if half else 1e-3, atol=1e-3 if half else 3e-5, look=look)


# ---- wrong, by name

@not_an_answer
def made(logits, k, renorm, *, before=lambda z: z.float(), chances=lambda z: z.softmax(-1),
         largest=True, when=lambda k, renorm: renorm and k > 1,
         divide=lambda w: w / w.sum(-1, keepdim=True), after=lambda w: w,
         called=lambda i: i):
    """The right answer with its pieces as options."""
    weights, experts = chances(before(logits)).topk(k, dim=-1, largest=largest)
    if when(k, renorm):
        weights = divide(weights)
    return after(weights), called(experts)


# https://github.com/jingyaogong/minimind/issues/858
ex.wrong("one weight divided by itself", made, breaks=("one", "k"),
         when=lambda k, renorm: renorm)
# https://github.com/davidmrau/mixture-of-experts/issues/27
@ex.wrong("the softmax over the chosen alone", breaks=("chance", "example"))
def over_chosen(logits, k, renorm):
    best, experts = logits.float().topk(k, dim=-1)
    return best.softmax(-1), experts


ex.wrong("the logits as weights", lambda logits, k, renorm: tuple(
    logits.float().topk(k, dim=-1)), breaks=("chance", "example", "divided", "one"))
ex.wrong("never divided", made, breaks="divided", when=lambda k, renorm: False)
ex.wrong("divided where renorm is not set", made, breaks=("chance", "divided", "example"),
         when=lambda k, renorm: not renorm and k > 1)
ex.wrong("divided by k", made, breaks="divided", divide=lambda w: w / w.shape[-1])
ex.wrong("divided by the length, not the sum", made, breaks="divided",
         divide=lambda w: w / w.norm(dim=-1, keepdim=True))
ex.wrong("divided by the largest", made, breaks="divided",
         divide=lambda w: w / w.amax(-1, keepdim=True))
ex.wrong("the softmax once more over the chances", made, breaks="divided",
         divide=lambda w: w.softmax(-1))
ex.wrong("the sum detached", made, breaks="flow", says="gradient at the logits",
         divide=lambda w: w / w.detach().sum(-1, keepdim=True))
ex.wrong("the weights detached", made, breaks="flow", says="gradient at the logits",
         after=lambda w: w.detach())
ex.wrong("one in value, the chance in gradient", made, breaks="one",
         when=lambda k, renorm: renorm, divide=lambda w: (
             w / w.detach() if w.shape[-1] == 1 else w / w.sum(-1, keepdim=True)))
ex.wrong("calculated in bfloat16", made, breaks=("chance", "logits"), says="",
         before=lambda z: z if z.dtype == torch.bfloat16 else z.float(),
         after=lambda w: w.float())
@ex.wrong("experts by chances in bfloat16", breaks=("likeliest", "experts", "logits"))
def by_rounded(logits, k, renorm):
    experts = logits.softmax(-1).topk(k, dim=-1).indices
    weights = logits.float().softmax(-1).gather(-1, experts)
    return (weights / weights.sum(-1, keepdim=True) if renorm and k > 1 else weights), experts


ex.wrong("weights in the dtype of the logits", lambda logits, k, renorm: tuple(
    part.to(logits.dtype) if part.is_floating_point() else part
    for part in made(logits, k, renorm)), breaks=("chance", "logits"),
    says="dtype of the weights")
ex.wrong("the exponentials without their largest taken off", made, breaks="logits", says="",
         chances=lambda z: z.exp() / z.exp().sum(-1, keepdim=True))
ex.wrong("sigmoids for the softmax", made,
         breaks=("chance", "example", "likeliest", "experts"),
         chances=lambda z: z.sigmoid())
ex.wrong("the softmax over the tokens", made,
         breaks=("likeliest", "experts", "chance"), says="", chances=lambda z: z.softmax(0))
ex.wrong("the unlikeliest experts", made, breaks=("likeliest", "experts"),
         says="experts of a token", largest=False)
ex.wrong("the likeliest last", lambda logits, k, renorm: tuple(
    part.flip(-1) for part in made(logits, k, renorm)), breaks="experts",
    says="order of the experts")


@ex.wrong("experts by number, not by chance", breaks="experts", says="order of the experts")
def by_number(logits, k, renorm):
    weights, experts = made(logits, k, renorm)
    order = experts.argsort(-1)
    return weights.gather(-1, order), experts.gather(-1, order)


ex.wrong("experts in int32", made, breaks="experts", says="dtype of the experts",
         called=lambda i: i.int())
ex.wrong("a single expert without its axis", lambda logits, k, renorm: tuple(
    part[..., 0] if k == 1 else part for part in made(logits, k, renorm)), breaks=("experts", "k"),
    says="shape of the experts")
ex.wrong("experts first", lambda logits, k, renorm: made(logits, k, renorm)[::-1],
         breaks=("parts", "experts"), says="dtype of the experts")
ex.wrong("the weights alone", lambda logits, k, renorm: made(logits, k, renorm)[0],
         breaks="parts", says="type of the two parts")
ex.wrong("a list of two", lambda logits, k, renorm: list(made(logits, k, renorm)),
         breaks="parts", says="type of the two parts")


@ex.wrong("zeros for the experts that were not chosen", breaks="chance", says="")
def dense(logits, k, renorm):
    weights, experts = made(logits, k, renorm)
    return torch.zeros_like(logits, dtype=torch.float32).scatter(-1, experts, weights), experts


@ex.wrong("the logits taken off their largest in place", breaks="left")
def in_place(logits, k, renorm):
    found = made(logits, k, renorm)
    logits.data.sub_(logits.data.amax(-1, keepdim=True) + 1)
    return found
