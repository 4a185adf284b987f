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
          smaller of ratio * advantage and clipped ratio * advantage. | loss; gradient of logp; type
          of the
ratio   | A token's ratio is its probability now, divided by its probability when it was sampled. |
          case several tokens; one token per answer; one answer; as many tokens as answers; likelier
          and good; likelier and bad; far likelier and bad; e**25 times as likely, and bad; certain
          tokens; less likely and good; less likely and bad; far away; a wide clip; a narrow clip;
          small advantages; advantages of 0; a later step, the graph kept; float32; the example
eps     | The clipped ratio stays between 1 - eps and 1 + eps. | case a wide clip; a narrow clip;
          far away; likelier and bad; less likely and good
inputs  | logp, logp_sampled: (N, T), each token's log-probability now and at sampling. adv: (N,),
          the advantage of each answer. | case as many tokens as answers; several tokens; one
          token per answer; one answer; certain tokens; advantages of 0; small advantages
first   | In the first inner step after sampling, every ratio is 1, and the gradient is minus the
          gradient of the mean of adv * logp. | case the first step; the first step, the graph kept
flow    | Gradients flow only to logp, even if logp_sampled or adv has a graph. | case a later step,
          the graph kept; the first step, the graph kept
dtype   | All inputs are float32 or all are float64, and the loss has the same dtype. | dtype of the
          loss
left    | Inputs are not changed. | values changed; graph was cut
example | Example: logp [[-1., -0.5]], logp_sampled [[-1., -1.]], adv [2.], eps 0.2 give -2.2, and
          the gradient of logp is [[-1., 0.]]. | case the example
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
    beyond = one("e**25 times as likely, and bad", 3, 4, low=24.0, high=26.0, sign=-1)
    beyond[1]["before"] -= 27.0
    certain = one("certain tokens", 4, 4)      # a log-probability of 0, now and then
    certain[1]["before"][0, 1], certain[1]["moved"][0, 1] = -0.5, 0.5
    certain[1]["before"][2, 0], certain[1]["moved"][2, 0] = 0.0, -0.125
    zero = one("advantages of 0", 5, 3)
    zero[1]["adv"][[1, 3]] = 0.0
    return [one("several tokens", 5, 7), one("one token per answer", 6, 1), one("one answer", 1, 5),
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
    expect_equal("values changed in the arguments", out["moved"], 0, "Work on copies.")
    expect_equal("arguments whose graph was cut", out["cut"], "none",
                 "detach() returns a new tensor; detach_() detaches the caller's own.")
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
    expect_close("gradient of logp and of what logp_sampled was computed from", out["grad"],
                 slopes.to(before.dtype), **near)
    expect_close("gradient of what adv was computed from", out["other"], 0.0, atol=1e-9)


# ---- wrong, by name

@not_an_answer
def made(logp, logp_sampled, adv, eps):
    ratio = (logp - logp_sampled.detach()).exp()
    gain = adv.detach()[:, None]
    clipped = ratio.clamp(1 - eps, 1 + eps)
    return -torch.minimum(ratio * gain, clipped * gain).mean()


wrong = ex.edits(made)
OLD, GAIN, CLIPPED = "logp_sampled.detach()", "adv.detach()", "1 - eps, 1 + eps"
DIFFERENCE, MEAN = f"(logp - {OLD})", ".mean()"
RATIO, SMALLER = f"{DIFFERENCE}.exp()", "torch.minimum(ratio * gain, clipped * gain)"
# https://github.com/tensorforce/tensorforce/issues/312
wrong("using the new log-probability, detached, in place of the old one",
      ("loss", "ratio", "eps", "example"), OLD, "logp.detach()")
wrong("keeping the graph of logp_sampled", "flow", OLD, "logp_sampled", says="gradient of")
wrong("keeping the graph of adv", "flow", GAIN, "adv", says="gradient of")
wrong("not clipping at all", ("loss", "eps", "example"), f"ratio.clamp({CLIPPED})", "ratio")
wrong("using the clipped product without taking the minimum",
      ("loss", "ratio"), SMALLER, "(clipped * gain)")
wrong("taking the larger of the two products", ("loss", "ratio", "example"), "minimum", "maximum")
wrong("taking the smaller ratio and then multiplying by the advantage", ("loss", "ratio"),
      SMALLER, "(torch.minimum(ratio, clipped) * gain)")
wrong("clamping the log-ratio to the range from -eps to eps", ("loss", "eps", "example"),
      f"ratio.clamp({CLIPPED})", "ratio.log().clamp(-eps, eps).exp()")
wrong("using 1 / (1 + eps) as the lower bound of the ratio",
      ("loss", "eps"), "1 - eps", "1 / (1 + eps)")
wrong("clipping the ratio only from above", ("loss", "eps"), CLIPPED, "max=1 + eps")
wrong("clipping the ratio only from below", ("loss", "eps", "example"), CLIPPED, "min=1 - eps")
wrong("always using an eps of 0.2", "eps", CLIPPED, "0.8, 1.2")
# https://github.com/rasbt/reasoning-from-scratch/issues/243
wrong("using one ratio per answer, the product of its token ratios", ("loss", "ratio", "inputs"),
      RATIO, f"{DIFFERENCE}.sum(-1, keepdim=True).exp()")
wrong("using one ratio per answer, the geometric mean of its token ratios",
      ("loss", "ratio", "inputs", "example"), RATIO, f"{DIFFERENCE}.mean(-1, keepdim=True).exp()")
wrong("treating a log-probability of 0 in logp as padding", "inputs", MEAN, "[logp != 0].mean()")
wrong("treating a log-probability of 0 in logp_sampled as padding", "inputs",
      MEAN, "[logp_sampled != 0].mean()")
wrong("clamping the log-ratio to the range from -10 to 10", "ratio",
      RATIO, f"{DIFFERENCE}.clamp(-10, 10).exp()")
wrong("clamping the log-ratio to the range from -20 to 20", "ratio",
      RATIO, f"{DIFFERENCE}.clamp(-20, 20).exp()")
wrong("dividing the old probability by the new one",
      ("loss", "ratio", "first"), DIFFERENCE, f"({OLD} - logp)")
wrong("using the difference of the log-probabilities as the ratio",
      ("loss", "ratio", "first", "example"),
      RATIO, DIFFERENCE)
wrong("using 1 plus the difference of the log-probabilities as the ratio",
      "ratio", RATIO, f"1 + {DIFFERENCE}")
wrong("dividing one log-probability by the other", ("loss", "ratio", "first"),
      RATIO, f"logp / {OLD}", says="")
wrong("returning the objective without the minus sign",
      ("loss", "first", "example"), "return -", "return ")
wrong("summing over all tokens instead of averaging", ("loss", "example"), MEAN, ".sum()")
wrong("summing over an answer's tokens and then averaging over the answers", ("loss", "inputs"),
      MEAN, ".sum(-1).mean()")
wrong("returning one loss per answer", "loss", MEAN, ".mean(-1)")
wrong("averaging only over tokens that are not clipped", ("loss", "eps"), f"{SMALLER}.mean()",
      "torch.where(ratio * gain <= clipped * gain, ratio * gain, torch.nan).nanmean()", says="")
wrong("broadcasting the advantages along the tokens, not the answers", "inputs",
      f"{GAIN}[:, None]", f"{GAIN}[None] if len(logp) == logp.shape[1] else {GAIN}[:, None]")
wrong("dividing the advantages by their standard deviation", ("loss", "inputs"),
      GAIN, "(adv / (adv.std(correction=0) + 1e-8)).detach()")
wrong("normalizing the advantages inside the loss", ("loss", "inputs"), GAIN,
      "((adv - adv.mean()) / (((adv - adv.mean()).square().sum() / (len(adv) - 1)).sqrt()"
      " + 1e-8)).detach()")
wrong("using only the sign of the advantage", ("loss", "inputs", "example"),
      GAIN, "adv.detach().sign()")
wrong("always computing in float32", "dtype", MEAN, ".float().mean()", says="dtype of the loss")
wrong("always computing in float64", "dtype", MEAN, ".double().mean()", says="dtype of the loss")
wrong("returning a number instead of a tensor", "loss", MEAN, ".mean().item()",
      says="type of the loss")
wrong("detaching logp", ("loss", "first"), "(logp -", "(logp.detach() -")
wrong("losing the gradient where a ratio is 1", ("first", "example"),
      RATIO, f"{RATIO} * (logp != logp_sampled) + (logp == logp_sampled)", says="gradient of")
wrong("overwriting logp_sampled and adv", "left", "return", "loss =",
      MEAN, ".mean(); logp_sampled.data.copy_(logp.data); adv.data.mul_(0); return loss")
wrong("detaching logp_sampled in place", "left", OLD, "logp_sampled.detach_()")
wrong("detaching adv in place", "left", GAIN, "adv.detach_()")
wrong("limiting a bad answer to three times its advantage, as dual clip does", "ratio", SMALLER,
      f"torch.where(gain < 0, torch.maximum({SMALLER}, 3 * gain), {SMALLER})")
