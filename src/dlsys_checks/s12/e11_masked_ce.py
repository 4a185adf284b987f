"""Exercise 12.11, `masked_ce`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_like, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("12.11", "masked_ce", seen=("logits", "target", "allowed", "smoothing"),
              says="cross-entropy")

ex.promise_table("""
mean       | Compute the mean cross-entropy over the allowed classes of each row. | cross-entropy
sizes      | Args: logits: (N, C) float32, between -1e15 and 1e15 where allowed. target: (N,) int64,
             an allowed class for each row. allowed: (N, C) bool. | case one row; two classes; many
             classes; logits of some hundreds; logits of minus some hundreds; logits far apart;
             logits of many millions; logits of minus a million; logits near the lowest allowed
nothing    | A logit of a class that is not allowed makes no difference, even if it is infinite or
             NaN. | case infinities at the other classes; a NaN at the other classes; large logits
             at the other classes
gradient 0 | Its gradient is 0. | gradient where not allowed
spread     | The target distribution of a row has 1 - smoothing at the target, and smoothing is
             spread evenly over all allowed classes of the row, the target included. |
             cross-entropy; gradient of the allowed
result     | Returns: A tensor of shape () that has gradients. | shape of the cross-entropy;
             gradient of the allowed; type of; graph of the cross-entropy
left       | The arguments are left as they are. | arguments that changed; in-place
example    | Example: a row with a single allowed class gives 0. | case the example
""")


@ex.cases
def cases(g):
    def one(name, rows, width, other=None, smoothing=None, chance=0.5):
        logits = 3 * torch.randn(rows, width, generator=g)
        target = torch.randint(width, (rows,), generator=g)
        allowed = torch.rand(rows, width, generator=g) < chance
        allowed[0, (target[0] + 1) % width] = False  # some class is not
        allowed[0, (target[0] + 2) % width] = True   # and one beside the target is
        allowed[torch.arange(rows), target] = True
        if other is not None:
            logits[~allowed] = other
        if smoothing is None:
            smoothing = (0.05 + 0.4 * torch.rand((), generator=g)).item()
        return name, {"logits": logits, "target": target, "allowed": allowed,
                      "smoothing": smoothing}
    def scaled(name, factor, shift, other=None):
        _, given = one(name, 6, 5, other)
        given["logits"] = given["logits"] * factor + shift
        return name, given
    example = {"logits": 3 * torch.randn(1, 3, generator=g), "target": torch.tensor([1]),
               "allowed": torch.tensor([[False, True, False]]), "smoothing": 0.1}
    return [one("a few rows", 6, 5), one("no smoothing", 5, 4, smoothing=0.0),
            one("only smoothing", 4, 6, smoothing=1.0),
            one("infinities at the other classes", 7, 5, -torch.inf),
            one("a NaN at the other classes", 6, 6, torch.nan),
            one("large logits at the other classes", 5, 5, 1e30), one("one row", 1, 7),
            one("two classes", 4, 2, chance=0.7), one("many classes", 3, 60),
            scaled("logits of some hundreds", 1, 300),
            scaled("logits of minus some hundreds", 1, -300, -20.0),
            scaled("logits far apart", 100, 0),
            scaled("logits of many millions", 1e10, 0),
            scaled("logits of minus a million", 1e3, -1e6),
            scaled("logits near the lowest allowed", 1e13, -3e14),
            one("nearly all classes allowed", 8, 6, chance=0.95),
            one("a second call that allows other classes", 6, 5), ("the example", example)]


@ex.act
def act(fn, logits, target, allowed, smoothing):
    fn(torch.zeros(2, 3), torch.tensor([0, 2]), torch.ones(2, 3).bool(), 0.3)
    given = logits.clone().requires_grad_()
    copies = target.clone(), allowed.clone()
    out = fn(given, *copies, smoothing)
    if isinstance(out, torch.Tensor) and out.requires_grad:
        (3 * out.sum()).backward()
    changed = [not torch.equal(given.nan_to_num(7), logits.nan_to_num(7)),
               not torch.equal(copies[0], target), not torch.equal(copies[1], allowed)]
    return {"out": out, "changed": sum(changed), "graph": int(given.grad is not None),
            "grad": torch.zeros_like(logits) if given.grad is None else given.grad}


@ex.law
def law(out, logits, target, allowed, smoothing):
    expect_parts(out, "out", "changed", "graph", "grad")
    loss, grad = by_rows(logits, target, allowed, smoothing)
    expect_like("cross-entropy", out["out"], loss)
    expect_close("cross-entropy", out["out"], loss, rtol=1e-4, atol=1e-5,
                 look=f"The smoothing is {smoothing:.3g}; allowed classes per row: "
                      f"{allowed.sum(1).tolist()}.")
    expect_equal("graph of the cross-entropy (1 if there is one)", out["graph"], 1)
    expect_like("gradient of the allowed classes", out["grad"], grad)
    outside = out["grad"][~allowed] + 0.0
    expect_equal("gradient where not allowed", outside, torch.zeros_like(outside))
    expect_close("gradient of the allowed classes, times 3", out["grad"], grad, rtol=1e-3,
                 atol=1e-5)
    expect_equal("arguments that changed", out["changed"], 0)


def by_rows(logits, target, allowed, smoothing):
    """Loss and gradient, row by row in float64, with the classes that are not allowed cut out."""
    grad, losses = torch.zeros_like(logits), []
    for i, row in enumerate(logits.double()):
        places = allowed[i].nonzero()[:, 0]
        p = (row[places] - row[places].logsumexp(0)).exp()
        wanted = torch.full_like(p, smoothing / len(places))
        wanted[places == target[i]] += 1 - smoothing
        losses.append(-(wanted * (row[places] - row[places].logsumexp(0))).sum())
        grad[i, places] = (3 * (p - wanted) / len(logits)).float()
    return torch.stack(losses).mean().float(), grad


# ---- wrong, by name

@ex.wrong("using cross_entropy's label_smoothing, which includes all classes",
          says="cross-entropy: got inf",
          breaks=("spread", "example"))
def torch_smoothing(logits, target, allowed, smoothing):
    z = torch.where(allowed, logits, -torch.inf)
    return F.cross_entropy(z, target, label_smoothing=smoothing)


def of_logarithms(log_p, target, allowed, smoothing):
    label = log_p.gather(1, target[:, None])[:, 0]
    spread = torch.where(allowed, log_p, 0).sum(1) / allowed.sum(1)
    return -((1 - smoothing) * label + smoothing * spread).mean()


def _pass_on(logits, allowed):
    """Zero, with a gradient of 1 at the classes that are not allowed."""
    z = torch.where(allowed, 0.0, logits)
    z = z.nan_to_num(0.0, 0.0, 0.0) if not z.isfinite().all() else z
    return (z - z.detach()).sum()


@not_an_answer
def smoothed(logits, target, allowed, smoothing, *, count=None):
    z = torch.where(allowed, logits, -torch.inf)
    log_p = z.log_softmax(1)
    label = log_p.gather(1, target[:, None])[:, 0]
    kept = torch.where(allowed, log_p, 0)
    spread = kept.sum(1) / (allowed.sum(1) if count is None else count)
    out = -((1 - smoothing) * label + smoothing * spread).mean()
    return out


wrong = ex.edits(smoothed)
wrong("using -1e9 instead of minus infinity, and smoothing over all classes", ("spread", "example"),
      "z =",
      "z = torch.where(allowed, logits, -1e9); return F.cross_entropy(z, target, "
      "label_smoothing=smoothing); z =")


@ex.wrong("dividing the smoothing by the number of all classes", breaks="spread")
def over_all(logits, target, allowed, smoothing):
    return smoothed(logits, target, allowed, smoothing, count=logits.shape[1])


@ex.wrong("dividing by the same number of allowed classes in every row", breaks="spread")
def first_count(logits, target, allowed, smoothing):
    return smoothed(logits, target, allowed, smoothing, count=allowed.sum(1)[0])


wrong("not smoothing at all", "spread", "(1 - smoothing) * label + smoothing", "label + 0.0")


@ex.wrong("smoothing over the allowed classes except the target", breaks="spread")
def without_target(logits, target, allowed, smoothing):
    n = allowed.sum(1)
    log_p = torch.where(allowed, torch.where(allowed, logits, -torch.inf).log_softmax(1), 0)
    label = log_p.gather(1, target[:, None])[:, 0]
    return -((1 - smoothing) * label + smoothing * (log_p.sum(1) - label)
             / (n - 1).clamp(min=1)).mean()


wrong("multiplying log-probabilities by the mask, where 0 times minus infinity is NaN",
      ("spread", "example"),
      "z = torch.where(allowed, logits, -torch.inf)\n    log_p = z.log_softmax(1)",
      "log_p = torch.where(allowed, logits, -torch.inf).log_softmax(1)",
      "kept = torch.where(allowed, log_p, 0)\n    spread = kept.sum(1) / (allowed.sum(1) if "
      "count is None else count)", "spread = (log_p * allowed).sum(1) / allowed.sum(1)",
      says="cross-entropy: got nan")
wrong("summing over the rows instead of averaging",
      "mean", "return out", "return out * max(2, len(logits))")


@ex.wrong("ignoring the mask", breaks=("mean", "nothing", "gradient 0", "example"))
def no_mask(logits, target, allowed, smoothing):
    return F.cross_entropy(logits, target, label_smoothing=smoothing)


wrong("setting forbidden logits to 0, so that they still compete", ("mean", "spread", "example"),
      "-torch.inf", "0.0")
wrong("subtracting 1e9 from forbidden logits, which can be larger than that", ("nothing", "mean"),
      "z =",
      "return of_logarithms((logits - 1e9 * ~allowed).log_softmax(1), target, allowed, "
      "smoothing); z =")
wrong("adding minus infinity to forbidden logits, which leaves a NaN as it is", "nothing",
      "z =",
      "z = logits + torch.zeros_like(logits).masked_fill(~allowed, -torch.inf); return "
      "of_logarithms(z.log_softmax(1), target, allowed, smoothing); z =")
wrong("multiplying the logits by the mask, which leaves zeros that still compete",
      ("mean", "spread", "nothing", "example"), "z =",
      "return of_logarithms((logits * allowed).log_softmax(1), target, allowed, smoothing); z =")
wrong("taking the softmax over all classes, then masking it and dividing by its sum",
      ("mean", "spread", "nothing", "gradient 0", "example", "result"), "z =",
      "p = logits.softmax(1) * allowed; return of_logarithms((p / p.sum(1, keepdim=True)).log(), "
      "target, allowed, smoothing); z =")


@ex.wrong("putting nan_to_num around the loss", breaks=("spread", "example"))
def hidden(logits, target, allowed, smoothing):
    return torch_smoothing(logits, target, allowed, smoothing).nan_to_num(posinf=0.0)


wrong("passing a gradient to the logits of forbidden classes", "gradient 0",
      "return out", "return out + _pass_on(logits, allowed)")
wrong("returning a number without gradients", "result", ", logits", ", logits.detach()")
wrong("returning a Python number", "result", "return out", "return out.item()")


@ex.wrong("returning a loss for each row", breaks="result")
def rows(logits, target, allowed, smoothing):
    return smoothed(logits, target, allowed, smoothing)[None].expand(2)


wrong("masking the logits in place", "left",
      "z =", "with torch.no_grad(): logits[~allowed] = -torch.inf\n    z =")


@ex.wrong("computing exp(), sum() and log() one after the other, without logsumexp()",
          says="cross-entropy: got", breaks="sizes")
def naive(logits, target, allowed, smoothing):
    z = torch.where(allowed, logits, -torch.inf)
    total = z.exp().sum(1).log()
    label = z.gather(1, target[:, None])[:, 0]
    mean = torch.where(allowed, logits, 0).sum(1) / allowed.sum(1)
    return (total - (1 - smoothing) * label - smoothing * mean).mean()


@ex.wrong("taking log() of softmax() instead of calling log_softmax()",
          says="cross-entropy: got", breaks="sizes")
def log_of_softmax(logits, target, allowed, smoothing):
    p = torch.where(allowed, logits, -torch.inf).softmax(1)
    log_p = torch.where(allowed, p, 1).log()
    label = log_p.gather(1, target[:, None])[:, 0]
    return -((1 - smoothing) * label + smoothing * log_p.sum(1) / allowed.sum(1)).mean()


wrong("clamping the logits to the range from -50 to 50",
      "sizes", ", logits", ", logits.clamp(-50, 50)")
wrong("setting forbidden logits to -100", ("sizes", "mean"), "-torch.inf", "-100.0")
wrong("setting forbidden logits to -1e4", "sizes", "-torch.inf", "-1e4")
wrong("setting forbidden logits to -1e9", "sizes", "-torch.inf", "-1e9")
wrong("returning a zero without gradients if every row allows only one class", "result",
      "z =", "if (allowed.sum(1) == 1).all(): return torch.zeros(())\n    z =")
wrong("handling at most ten classes", "sizes",
      "z =",
      "few = allowed.clone(); few[:, 10:] &= F.one_hot(target, logits.shape[1])[:, 10:].bool(); "
      "z =", "allowed, logits", "few, logits", "allowed, log_p", "few, log_p",
      "allowed.sum", "few.sum")
