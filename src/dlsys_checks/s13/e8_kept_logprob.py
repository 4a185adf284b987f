"""Exercise 13.8, `kept_logprob`."""

from __future__ import annotations

import math

import torch

from dlsys_checks.kit import floats
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("13.8", "kept_logprob",
              seen=("logits", "tokens", "temperature", "kept", "weight", "half"),
              says="log-probabilities")

ex.promise_table("""
under       | Compute the log-probability of each token under the distribution that it was sampled
              from: the softmax of logits / temperature over only the kept tokens. |
              log-probabilities; gradient of the logits
logits      | logits: (..., V) float32 or bfloat16. | case bfloat16; answers of several tokens;
              three axes; large logits; logits far below zero; no axis but the last
tokens      | tokens: (...) int64, each of them kept. | shape of the
temperature | temperature: above 0. | case a low temperature; a high temperature; a very low
              temperature; almost temperature 0
kept        | kept: (..., V) bool, as the server reports it, whatever the server's rule. | case a
              random cut; one token kept; all tokens kept
others      | Logits of tokens that are not kept have no effect, even if they are infinite or nan. |
              case minus infinity at other tokens; huge logits at other tokens; infinity at other
              tokens; nan at other tokens
form        | Returns (...) float32, computed in float32. | dtype of the; type of the;
              log-probabilities
flow        | Gradients flow to logits. | gradient of the logits; unusable; led to
left        | Inputs are not changed. | values changed
example     | Example: logits [2., 2., 5.], token 0, temperature 1, kept [True, True, False] give
              -0.6931. | case the example
""")


@ex.cases
def cases(g):
    between = floats(g)

    def one(name, *shape, size=2.0, temperature=None, cut="top", half=False):
        logits = size * torch.randn(*shape, generator=g)
        chance = (logits / size).softmax(-1)
        if cut == "top":
            kept = chance >= chance.amax(-1, keepdim=True) * 0.3
        elif cut == "one":
            kept = chance >= chance.amax(-1, keepdim=True)
        else:
            kept = torch.rand(*shape, generator=g) > (0.5 if cut == "any" else -1.0)
        kept = kept.scatter(-1, torch.randint(shape[-1], (*shape[:-1], 1), generator=g), True)
        if cut != "all":
            out = kept.long().argmin(-1, keepdim=True)     # at least one is cut
            kept = kept.scatter(-1, out, False)
            kept = kept | (~kept.any(-1, keepdim=True) & (torch.arange(shape[-1]) != out))
        if cut == "one":
            kept = torch.nn.functional.one_hot(kept.long().argmax(-1), shape[-1]).bool()
        tokens = torch.multinomial(kept.float().reshape(-1, shape[-1]), 1, generator=g)
        return name, {"logits": logits, "tokens": tokens.reshape(shape[:-1]), "kept": kept,
                      "temperature": between(0.6, 0.9) if temperature is None else temperature,
                      "weight": 0.5 + torch.rand(shape[:-1], generator=g), "half": half}

    def changed(found, value):
        found[1]["logits"] = torch.where(found[1]["kept"], found[1]["logits"], value)
        return found

    cold = one("a very low temperature", 4, 6, temperature=0.001, size=1.0, cut="any")
    cold[1]["logits"] = torch.where(cold[1]["kept"], cold[1]["logits"] - 20.0, 5.0)
    coldest = one("almost temperature 0", 4, 6, temperature=1e-8, size=1.0, cut="any")
    coldest[1]["logits"] = torch.where(coldest[1]["kept"], coldest[1]["logits"] - 20.0, 5.0)
    far = one("logits far below zero", 4, 6, cut="any")
    far[1]["logits"] = far[1]["logits"] - 200.0
    return [one("a few tokens", 5, 7), one("answers of several tokens", 3, 4, 9),
            one("three axes", 2, 3, 2, 5), one("no axis but the last", 6),
            one("one row", 1, 8), one("many tokens to choose from", 3, 200),
            one("a low temperature", 5, 6, temperature=0.05, size=1.0),
            one("a high temperature", 5, 6, temperature=3.0),
            one("temperature 1", 5, 6, temperature=1.0),
            one("a random cut", 6, 8, cut="any"), one("all tokens kept", 4, 6, cut="all"),
            one("one token kept", 4, 6, cut="one"), one("large logits", 4, 6, size=90.0, cut="any"),
            far, cold, coldest,
            changed(one("infinity at other tokens", 5, 7, cut="any"), math.inf),
            changed(one("nan at other tokens", 5, 7, cut="any"), math.nan),
            changed(one("minus infinity at other tokens", 5, 7, cut="any"), -math.inf),
            changed(one("huge logits at other tokens", 5, 7, cut="any"), 3e4),
            one("bfloat16", 5, 9, half=True), one("bfloat16, many to choose from", 3, 300,
                                                  half=True, cut="any"),
            ("the example", {"logits": torch.tensor([[2.0, 2.0, 5.0]]),
                             "tokens": torch.tensor([0]), "temperature": 1.0,
                             "kept": torch.tensor([[True, True, False]]),
                             "weight": torch.ones(1), "half": False})]


@ex.act
def act(fn, logits, tokens, temperature, kept, weight, half):
    mine = logits.to(torch.bfloat16) if half else logits.clone()
    mine.requires_grad_()
    given, chosen = kept.clone(), tokens.clone()
    found = fn(mine, chosen, temperature, given)
    if isinstance(found, torch.Tensor) and found.shape == weight.shape and found.requires_grad:
        (found * weight).sum().backward()
    grad = torch.zeros_like(mine) if mine.grad is None else mine.grad
    before = logits.to(torch.bfloat16) if half else logits
    moved = (mine.detach().nan_to_num(7.0) != before.nan_to_num(7.0)).sum()
    moved += (given != kept).sum() + (chosen != tokens).sum()
    return {"found": found, "grad": grad.float(), "moved": int(moved)}


@ex.law
def law(out, logits, tokens, temperature, kept, weight, half):
    expect_parts(out, "found", "grad", "moved")
    expect_equal("values changed in the arguments", out["moved"], 0, "Work on copies.")
    z = (logits.to(torch.bfloat16) if half else logits).double() / temperature
    reach = float(z.masked_fill(~kept, 0.0).abs().max()) + 1.0
    flat, at, unsure = z.reshape(-1, z.shape[-1]), tokens.reshape(-1), 1.0
    wanted, slopes = torch.empty(len(flat)), torch.zeros_like(flat)
    for row, (values, mask) in enumerate(zip(flat, kept.reshape(flat.shape))):
        some = values[mask]
        top = some.max()
        share = (some - top).exp()
        # Rounding moves a logit by less than 1e-6 of the largest. Where one token is ahead by 20
        # more than that, it has all the probability, and rounding moves none.
        lead = float(top - some.sort().values[-2:][0]) if len(some) > 1 else math.inf
        if lead - 2e-6 * reach < 20:
            unsure = reach
        wanted[row] = (values[at[row]] - top - share.sum().log()).float()
        slopes[row, mask] = -share / share.sum()
        slopes[row, at[row]] += 1.0
    look = (f"The temperature is {temperature:.3g}; {int(kept.sum())} of {kept.numel()} entries "
            "are kept.")
    expect_close("log-probabilities", out["found"], wanted.reshape(tokens.shape), rtol=1e-5,
                 atol=2e-6 * reach, look=look)
    slopes = (slopes * weight.reshape(-1, 1).double() / temperature).float().reshape(z.shape)
    expect_close("gradient of the logits", out["grad"], slopes,
                 rtol=1e-2 if half else 1e-4, atol=(4e-3 if half else 1e-5) * unsure / temperature)
    if out["grad"][~kept].abs().max() if (~kept).any() else 0:
        raise Broken("gradient of the logits that were cut", float(out["grad"][~kept].abs().max()),
                     "0")


# ---- wrong, by name

@not_an_answer
def made(logits, tokens, temperature, kept):
    z = torch.where(kept, logits.float() / temperature, -math.inf)
    return z.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


wrong = ex.edits(made)
HOT, LOW, PICKED, ONE = "logits.float() / temperature", "-math.inf", "tokens[..., None]", "[..., 0]"
CUT, LOG = f"torch.where(kept, {HOT}, -math.inf)", "z.log_softmax(-1)"
# https://github.com/huggingface/trl/issues/6789
wrong("taking the softmax over all tokens, without the cut", ("under", "example"), CUT, HOT)
# https://github.com/huggingface/trl/issues/4159
wrong("leaving out the temperature", "under", " / temperature", "")
wrong("leaving out both the cut and the temperature", ("under", "example"), CUT, "logits.float()")
wrong("multiplying by the temperature", "under", "/ temperature", "* temperature")
wrong("dividing the log-probabilities by the temperature", "under",
      HOT, "logits.float()", ONE, f"{ONE} / temperature")
wrong("setting the logits of removed tokens to 0, not to minus infinity",
      ("under", "others"), LOW, "0.0")
wrong("multiplying the logits by the mask of kept tokens",
      ("under", "others", "example"), CUT, f"{HOT} * kept")
wrong("using a floor of -50 instead of minus infinity", ("logits", "temperature"), LOW, "-50.0")
wrong("raising logits below -100 to -100", "logits",
      "logits.float()", "logits.float().clamp(min=-100.0)")
wrong("using a floor of -10000 instead of minus infinity", ("temperature", "others"), LOW, "-1e4")
wrong("using a floor of -1e9 instead of minus infinity", ("temperature", "others"), LOW, "-1e9")
wrong("adding the logarithm of the mask of kept tokens",
      "others", CUT, f"{HOT} + kept.float().log()", says="")
wrong("inverting the mask of kept tokens", ("under", "example", "kept"), "(kept", "(~kept", says="")
wrong("returning the probability instead of its logarithm",
      ("under", "example"), LOG, "z.softmax(-1)")
wrong("flipping the sign of the result, as in a loss", ("under", "example"), "return ", "return -")
wrong("taking the logarithm of a softmax, which can be 0", ("under", "logits"),
      LOG, "z.softmax(-1).log()", says="")
wrong("adding a small number inside the logarithm", ("under", "logits"),
      LOG, "(z.softmax(-1) + 1e-8).log()", says="")
wrong("applying the temperature only to the kept probability mass", "under",
      CUT, "logits.float()", ONE, f"{ONE} - (({HOT}).softmax(-1) * kept).sum(-1).log()")
wrong("also keeping every token at least as likely as the sampled one",
      ("under", "kept", "example"),
      "(kept", "(kept | (logits >= logits.gather(-1, tokens[..., None]))")
wrong("returning the entry after the token's own entry",
      "under", PICKED, f"({PICKED} + 1) % z.shape[-1]")
wrong("scoring the likeliest token instead of the sampled one",
      "under", PICKED, "z.argmax(-1, keepdim=True)")
wrong("calculating in bfloat16", "form", "logits.float()", "logits", ONE, f"{ONE}.float()")
wrong("returning the result in the dtype of the logits", "form", ONE, f"{ONE}.to(logits.dtype)",
      says="dtype of the")
wrong("returning float64", "form", "logits.float()", "logits.double()", says="dtype of the")
wrong("leaving an axis of size 1 in the result", "tokens", ONE, "")
wrong("summing over the tokens of an answer", "tokens", ONE, f"{ONE}.sum(-1)")
wrong("detaching the logits", "flow", "logits.float()", "logits.detach().float()")
wrong("overwriting the logits of removed tokens in place", "left", "return", "found =",
      ONE, f"{ONE}; logits.data.masked_fill_(~kept, 7.0); return found")
