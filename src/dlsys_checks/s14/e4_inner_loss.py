"""Exercise 14.4, `inner_loss`."""

from __future__ import annotations

import math

import torch

from dlsys_checks.kit import floats
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("14.4", "inner_loss", seen=("before", "moved", "adv", "eps", "graph"), says="loss")

ex.promise_table("""
loss    | Compute PPO's loss for one inner step, a scalar: minus the mean, over all tokens, of the
          smaller of ratio * advantage and clipped ratio * advantage. | loss; gradient at logp; type
          of the
ratio   | A token's ratio is its probability now, divided by its probability when it was sampled; |
          case several tokens; one token an answer; one answer; as many tokens as answers; likelier
          and good; likelier and bad; far likelier and bad; e to the 25 times as likely, and bad;
          certain tokens; less likely and good; less likely and bad; far away; a wide clip; a narrow
          clip; small advantages; advantages of 0; a later step, the graph kept; float32; the
          example
eps     | the clipped ratio stays between 1 - eps and 1 + eps. | case a wide clip; a narrow clip;
          far away; likelier and bad; less likely and good
inputs  | logp, logp_sampled: (N, T), the token's log-probability now and then. adv: (N,), the
          advantage of each answer. | case as many tokens as answers; several tokens; one token an
          answer; one answer; certain tokens; advantages of 0; small advantages
first   | In the first inner step after sampling every ratio is 1, and the gradient is that of the
          mean of adv * logp, negated. | case the first step; the first step, the graph kept
flow    | Gradients flow only to logp, even if logp_sampled or adv have a graph. | case a later
          step, the graph kept; the first step, the graph kept
dtype   | All are float32 or all float64, and so is the loss. | dtype of the loss
left    | Inputs are not changed. | numbers changed; cut of
example | Example: logp [[-1., -0.5]], logp_sampled [[-1., -1.]], adv [2.], eps 0.2: -2.2, and the
          gradient at logp is [[-1., 0.]]. | case the example
""")


@ex.cases
def cases(g):
    between = floats(g)

    def one(name, n, t, *, eps=0.2, low=-0.6, high=0.6, sign=0, size=1.0, graph=False,
            dtype=torch.float64):
        before = -3 * torch.rand(n, t, generator=g, dtype=torch.float64) - 0.1
        moved = low + (high - low) * torch.rand(n, t, generator=g, dtype=torch.float64)
        for edge in (math.log(1 - eps), math.log(1 + eps)):     # none at an edge of the clip
            near = (moved - edge).abs() < 0.01
            moved = torch.where(near, edge + 0.03, moved)
        adv = size * torch.randn(n, generator=g, dtype=torch.float64)
        adv = adv + 0.2 * size * adv.sign()
        if sign:
            adv = sign * adv.abs()
        return name, {"before": before.to(dtype), "moved": moved.to(dtype), "adv": adv.to(dtype),
                      "eps": eps, "graph": graph}

    first = one("the first step", 4, 3)
    kept = one("the first step, the graph kept", 4, 3, graph=True)
    for _, inputs in (first, kept):
        inputs["moved"] = torch.zeros_like(inputs["moved"])
    beyond = one("e to the 25 times as likely, and bad", 3, 4, low=24.0, high=26.0, sign=-1)
    beyond[1]["before"] -= 27.0
    certain = one("certain tokens", 4, 4)      # a log-probability of 0, now and then
    certain[1]["before"][0, 1], certain[1]["moved"][0, 1] = -0.5, 0.5
    certain[1]["before"][2, 0], certain[1]["moved"][2, 0] = 0.0, -0.125
    zero = one("advantages of 0", 5, 3)
    zero[1]["adv"][[1, 3]] = 0.0
    return [one("several tokens", 5, 7), one("one token an answer", 6, 1), one("one answer", 1, 5),
            one("as many tokens as answers", 4, 4),
            one("likelier and good", 3, 4, low=0.05, high=0.9, sign=1),
            one("likelier and bad", 3, 4, low=0.3, high=0.9, sign=-1),
            one("far likelier and bad", 3, 4, low=1.5, high=4.0, sign=-1),
            beyond, certain, one("less likely and good", 3, 4, low=-0.9, high=-0.35, sign=1),
            one("less likely and bad", 3, 4, low=-0.9, high=-0.05, sign=-1),
            one("far away", 3, 4, low=-4.0, high=4.0),
            one("a wide clip", 5, 4, eps=between(0.5, 0.7), low=-1.5, high=1.0),
            one("a narrow clip", 5, 4, eps=between(0.04, 0.08), low=-0.3, high=0.3),
            one("small advantages", 4, 3, size=1e-3), zero, first, kept,
            one("a later step, the graph kept", 4, 3, graph=True),
            one("float32", 5, 6, dtype=torch.float32),
            ("the example", {"before": torch.tensor([[-1.0, -1.0]]),
                             "moved": torch.tensor([[0.0, 0.5]]), "adv": torch.tensor([2.0]),
                             "eps": 0.2, "graph": False})]


@ex.act
def act(fn, before, moved, adv, eps, graph):
    weights, scale = before.clone().requires_grad_(), torch.ones((), dtype=adv.dtype)
    scale.requires_grad_()
    now = weights + moved
    then = weights * 1.0 if graph else before.clone()
    gain = adv * scale if graph else adv.clone()
    kept = [t.detach().clone() for t in (now, then, gain)]
    loss = fn(now, then, gain, eps)
    if isinstance(loss, torch.Tensor) and loss.dim() == 0 and loss.requires_grad:
        loss.backward()
    changed = sum(int((a.detach() != b).sum()) for a, b in zip((now, then, gain), kept))
    cut = [name for name, t, had in (("logp", now, True), ("logp_sampled", then, graph),
                                     ("adv", gain, graph)) if t.requires_grad != had]
    return {"loss": loss, "cut": ", ".join(cut) or "none", "moved": changed,
            "grad": torch.zeros_like(before) if weights.grad is None else weights.grad,
            "other": 0.0 if scale.grad is None else float(scale.grad)}


@ex.law
def law(out, before, moved, adv, eps, graph):
    expect_parts(out, "loss", "cut", "grad", "other", "moved")
    expect_equal("numbers changed in what was handed over", out["moved"], 0, "Work on copies.")
    expect_equal("graph of what was handed over: cut of", out["cut"], "none",
                 "detach() gives another tensor, detach_() cuts this one for everybody.")
    n, t = before.shape
    total, slopes = 0.0, torch.zeros(n, t, dtype=torch.float64)
    shift = ((before + moved).double() - before.double()).tolist()
    for i, gain in enumerate(adv.tolist()):
        for j in range(t):
            ratio = math.exp(shift[i][j])
            beyond = ratio > 1 + eps if gain > 0 else ratio < 1 - eps
            if beyond:
                total -= gain * (1 + eps if gain > 0 else 1 - eps)
            else:
                total -= gain * ratio
                slopes[i, j] = -gain * ratio / (n * t)
    low = before.dtype == torch.float32
    size = float(adv.abs().max())
    near = {"rtol": 1e-4 if low else 1e-7, "atol": size * (1e-5 if low else 1e-10)}
    expect_close("loss", out["loss"], torch.tensor(total / (n * t)).to(before.dtype), **near)
    expect_close("gradient at logp, and at what made logp_sampled", out["grad"],
                 slopes.to(before.dtype), **near)
    expect_close("gradient at what made adv", out["other"], 0.0, atol=1e-9)


# ---- wrong, by name

@not_an_answer
def made(logp, logp_sampled, adv, eps, *, old=lambda logp, then: then.detach(),
         ratio_of=torch.exp, gain=lambda adv: adv.detach()[:, None],
         clip=lambda ratio, eps: ratio.clamp(1 - eps, 1 + eps), both=torch.minimum,
         over=lambda terms: -terms.mean()):
    """A right answer with its pieces as options."""
    ratio = ratio_of(logp - old(logp, logp_sampled))
    adv = gain(adv)
    return over(both(ratio * adv, clip(ratio, eps) * adv))


# https://github.com/tensorforce/tensorforce/issues/312
ex.wrong("using the new log-probability, detached, as the old one", made,
         breaks=("loss", "ratio", "eps", "example"),
         old=lambda logp, then: logp.detach())
ex.wrong("keeping the graph of logp_sampled", made, breaks="flow", says="gradient at",
         old=lambda logp, then: then)
ex.wrong("keeping the graph of adv", made, breaks="flow", says="gradient at",
         gain=lambda adv: adv[:, None])
ex.wrong("clipping nothing", made, breaks=("loss", "eps", "example"), clip=lambda ratio, eps: ratio)
ex.wrong("clipping without the minimum", made, breaks=("loss", "ratio"), both=lambda a, b: b)
ex.wrong("taking the larger of the two",
         made, breaks=("loss", "ratio", "example"), both=torch.maximum)
ex.wrong("taking the smaller ratio, then the advantage",
         lambda logp, then, adv, eps: -(torch.minimum(
    (logp - then.detach()).exp(), (logp - then.detach()).exp().clamp(1 - eps, 1 + eps))
    * adv.detach()[:, None]).mean(), breaks=("loss", "ratio"))
ex.wrong("holding the log-ratio between -eps and eps", lambda logp, then, adv, eps: made(
    logp, then, adv, eps, clip=lambda ratio, eps: ratio.log().clamp(-eps, eps).exp()),
    breaks=("loss", "eps", "example"))
ex.wrong("using the lower bound 1 / (1 + eps)", made, breaks=("loss", "eps"),
         clip=lambda ratio, eps: ratio.clamp(1 / (1 + eps), 1 + eps))
ex.wrong("clipping above alone", made, breaks=("loss", "eps"), clip=lambda ratio, eps: ratio.clamp(
    max=1 + eps))
ex.wrong("clipping below alone", made, breaks=("loss", "eps", "example"),
         clip=lambda ratio, eps: ratio.clamp(min=1 - eps))
ex.wrong("setting eps to 0.2 always",
         made, breaks="eps", clip=lambda ratio, eps: ratio.clamp(0.8, 1.2))
# https://github.com/rasbt/reasoning-from-scratch/issues/243
ex.wrong("using one ratio an answer: the product over its tokens",
         lambda logp, then, adv, eps: made(
    logp.sum(-1, keepdim=True), then.sum(-1, keepdim=True), adv, eps),
    breaks=("loss", "ratio", "inputs"))
ex.wrong("using one ratio an answer: the mean over its tokens", lambda logp, then, adv, eps: made(
    logp.mean(-1, keepdim=True), then.mean(-1, keepdim=True), adv, eps),
    breaks=("loss", "ratio", "inputs", "example"))
ex.wrong("treating a log-probability of 0 as a pad", lambda logp, then, adv, eps: made(
    logp, then, adv, eps, over=lambda terms: -terms)[logp != 0].mean(), breaks="inputs")
ex.wrong("treating a log-probability of 0 at sampling as a pad", lambda logp, then, adv, eps: made(
    logp, then, adv, eps, over=lambda terms: -terms)[then != 0].mean(), breaks="inputs")
ex.wrong("holding the log-ratio between -10 and 10", made, breaks="ratio",
         ratio_of=lambda d: d.clamp(-10, 10).exp())
ex.wrong("holding the log-ratio between -20 and 20", made, breaks="ratio",
         ratio_of=lambda d: d.clamp(-20, 20).exp())
ex.wrong("dividing then by now", lambda logp, then, adv, eps: made(-logp, -then, adv, eps),
         breaks=("loss", "ratio", "first"))
ex.wrong("using the difference instead of the ratio",
         made, breaks=("loss", "ratio", "first", "example"),
         ratio_of=lambda d: d)
ex.wrong("using 1 plus the difference", made, breaks="ratio", ratio_of=lambda d: 1 + d)
ex.wrong("taking the ratio of log-probabilities", lambda logp, then, adv, eps: made(
    (logp / then.detach()).log(), torch.zeros_like(then), adv, eps), says="",
    breaks=("loss", "ratio", "first"))
ex.wrong("returning what is to be maximised",
         made, breaks=("loss", "first", "example"), over=lambda terms:
         terms.mean())
ex.wrong("summing over tokens", made, breaks=("loss", "example"), over=lambda terms: -terms.sum())
ex.wrong("summing over tokens, then averaging over answers", made, breaks=("loss", "inputs"),
         over=lambda terms: -terms.sum(-1).mean())
ex.wrong("returning one loss an answer", made, breaks="loss", over=lambda terms: -terms.mean(-1))
ex.wrong("averaging over tokens that are not clipped", lambda logp, then, adv, eps: made(
    logp, then, adv, eps, both=lambda a, b: torch.where(a <= b, a, torch.nan),
    over=lambda terms: -terms.nanmean()), says="", breaks=("loss", "eps"))
ex.wrong("using another answer's advantage: along the tokens", lambda logp, then, adv, eps: made(
    logp, then, adv, eps, gain=lambda adv: adv.detach()[None] if logp.shape[0] == logp.shape[1]
    else adv.detach()[:, None]), breaks="inputs")
ex.wrong("dividing the advantages by their spread", made, breaks=("loss", "inputs"),
         gain=lambda adv: (adv / (adv.std(correction=0) + 1e-8)).detach()[:, None])
ex.wrong("normalising the advantages inside the loss", made, breaks=("loss", "inputs"),
         gain=lambda adv: ((adv - adv.mean()) / (((adv - adv.mean()).square().sum() / (
             len(adv) - 1)).sqrt() + 1e-8)).detach()[:, None])
ex.wrong("using the sign of the advantage alone", made, breaks=("loss", "inputs", "example"),
         gain=lambda adv: adv.detach().sign()[:, None])
ex.wrong("always computing in float32", lambda logp, then, adv, eps: made(
    logp.float(), then.float(), adv.float(), eps), says="dtype of the loss", breaks="dtype")
ex.wrong("always computing in float64", lambda logp, then, adv, eps: made(
    logp.double(), then.double(), adv.double(), eps), says="dtype of the loss", breaks="dtype")
ex.wrong("returning a number instead of a tensor", lambda logp, then, adv, eps: made(
    logp, then, adv, eps).item(), says="type of the loss", breaks="loss")
ex.wrong("detaching logp", lambda logp, then, adv, eps: made(logp.detach(), then, adv, eps),
         breaks=("loss", "first"))
ex.wrong("leaving no gradient where a ratio is 1", made, breaks=("first", "example"),
         says="gradient at", ratio_of=lambda d: d.exp() * (d != 0) + (d == 0))


@ex.wrong("updating what was noted at the sampling", breaks="left")
def in_place(logp, then, adv, eps):
    loss = made(logp, then, adv, eps)
    then.data.copy_(logp.data)
    adv.data.mul_(0)
    return loss


@ex.wrong("detaching logp_sampled in place", breaks="left")
def then_cut(logp, then, adv, eps):
    return made(logp, then.detach_(), adv, eps)


@ex.wrong("detaching adv in place", breaks="left")
def adv_cut(logp, then, adv, eps):
    return made(logp, then, adv.detach_(), eps)


@ex.wrong("counting a bad advantage three times at most, as dual clip does", breaks="ratio")
def dual_clip(logp, then, adv, eps):
    least = 3 * adv.detach()[:, None]
    return made(logp, then, adv, eps, both=lambda a, b: torch.where(
        least < 0, torch.maximum(torch.minimum(a, b), least), torch.minimum(a, b)))
