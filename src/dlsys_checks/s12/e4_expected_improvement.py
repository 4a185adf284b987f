"""Exercise 12.4, `expected_improvement`."""

from __future__ import annotations

import math

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_like, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("12.4", "expected_improvement", seen=("mean", "std", "best"),
              says="expected improvement")

ex.promise("improvement", "Compute how far each loss is expected to fall below the best loss. A "
                          "candidate's loss is normally distributed, and a smaller loss is "
                          "better. The improvement is best minus the loss, or 0 if that is "
                          "negative; the result is the expected improvement.",
           says=("expected improvement",))
ex.promise("each", "Returns: One value for each candidate.", says=("shape of", "type of"))
ex.promise("shapes", "Args: mean, std: the means and standard deviations, float64, of the same "
                     "shape, which can be any.",
           cases=("a single number", "a table", "no candidate", "one candidate"))
ex.promise("left", "They are left as they are.", says=("values that changed", "in-place"))
ex.promise("dtype", "The result is a float64 tensor of the shape of mean.",
           says=("dtype of", "shape of"))
ex.promise("certain", "Where std is 0, the loss equals its mean, and the result is not NaN.",
           cases=("certain losses", "all losses certain", "certain, at the best loss"))
ex.promise("tiny", "No constant is added to std, because tiny standard deviations count.",
           cases=("tiny standard deviations", "tiny numbers", "the tiniest standard deviations",
                  "tiny standard deviations at the best loss",
                  "tiny standard deviations at a best loss not 0"))
ex.promise("unlikely", "An unlikely improvement is small but not zero, and it is correct to a "
           "thousandth even for a mean 30 standard deviations above best.",
           cases=("far above the best", "8 above the best"))
ex.promise("example", "Example: mean [1., 2.], std [2., 0.] and best 1. give [0.798, 0.].",
           cases=("the example",))


@ex.cases
def cases(g):
    def one(name, shape=(6,), best=None, scale=1.0, above=None, std=None):
        best = torch.randn((), generator=g, dtype=torch.float64).item() * scale \
            if best is None else best
        wide = (0.2 + 2 * torch.rand(shape, generator=g, dtype=torch.float64)) * scale
        far = torch.randn(shape, generator=g, dtype=torch.float64).clamp(-2, 2) * 2
        if above is not None:
            far = above * (1 - 0.1 * torch.rand(shape, generator=g, dtype=torch.float64))
        mean = best + wide * far
        if std is not None:
            wide[torch.tensor(std)] = 0.0
        return name, sheet(mean, wide, best)

    def sheet(mean, std, best):
        # One axis more, which act takes away: so no input is what comes out, even of no number.
        return {"mean": mean[None], "std": std[None], "best": best}
    tiny = 1e-12 * (1 + torch.rand(2, 4, generator=g, dtype=torch.float64))
    level, example = ([0.5, 0.5, 1.5, 0.25], [0.0, 1.0, 0.0, 0.0]), ([1.0, 2.0], [2.0, 0.0])
    level, example = (torch.tensor(pair, dtype=torch.float64) for pair in (level, example))
    return [one("some candidates"), one("a best loss of 0", best=0.0),
            one("a best loss below 0", best=-3.5), one("many candidates", (300,)),
            one("one candidate", (1,)), one("a single number", ()), one("no candidate", (0,)),
            one("a table", (3, 4)), one("large numbers", scale=1e6),
            one("tiny numbers", scale=1e-9), ("tiny standard deviations", sheet(*tiny, 0.0)),
            ("the tiniest standard deviations", sheet(*tiny * 1e-150, 0.0)),
            ("tiny standard deviations at the best loss",
             sheet(torch.zeros(4).double(), torch.tensor([1e-13, 1e-40, 1e-120, 1e-200],
                   dtype=torch.float64) * (1 + tiny[0] * 4e11), 0.0)),
            ("tiny standard deviations at a best loss not 0", sheet(*torch.tensor(
                [[0.1, 0.1, 0.3], [1e-10, 3e-13, 1e-10]], dtype=torch.float64), 0.1)),
            one("certain losses", (8,), std=[0, 3, 4, 7]),
            one("all losses certain", (5,), std=[0, 1, 2, 3, 4]),
            ("certain, at the best loss", sheet(*level, 0.5)),
            one("far below the best", above=-20.0), one("8 above the best", above=8.0),
            one("far above the best", above=30.0),
            ("the example", sheet(*example, 1.0))]


@ex.act
def act(fn, mean, std, best):
    given = mean[0].clone(), std[0].clone()
    fn(torch.ones(2, 2).double(), torch.ones(2, 2).double(), 5.0)
    out = fn(*given, best)
    changed = (given[0] != mean[0]).sum() + (given[1] != std[0]).sum()
    return {"out": out, "changed": int(changed)}


@ex.law
def law(out, mean, std, best):
    expect_parts(out, "out", "changed")
    mean, std = mean[0], std[0]
    wanted = [by_sum(m, s, best) for m, s in zip(mean.flatten().tolist(), std.flatten().tolist(),
                                                 strict=True)]
    wanted = torch.tensor(wanted, dtype=torch.float64).reshape(mean.shape)
    expect_like("expected improvement", out["out"], wanted)
    expect_close("expected improvement", out["out"], wanted, rtol=1e-3, atol=0.0,
                 look=there(out["out"] - wanted, mean, std, best))
    expect_equal("values that changed", out["changed"], 0)


def there(gap, mean, std, best):
    """The inputs where an answer is farthest off, in words."""
    if not gap.numel():
        return ""
    worst = gap.abs().nan_to_num(nan=torch.inf).flatten().argmax()
    m, s = mean.flatten()[worst].item(), std.flatten()[worst].item()
    return f"Here mean is {m:.4g}, std {s:.4g}, best {best:.4g}."


def by_sum(mean, std, best, parts=400):
    """The integral over the losses below best, by Simpson's rule.

    In deviations: of t times the density at t + a, for a candidate a above best; of one below it
    the gain is added to that of one as far above.
    """
    if std == 0:
        return max(best - mean, 0.0)
    a = abs(mean - best) / std
    end = min(12.0, 45 / (a + 1e-9))
    total = 0.0
    for k in range(parts + 1):
        t = end * k / parts
        weight = 1 if k in (0, parts) else 4 if k % 2 else 2
        total += weight * t * math.exp(-t * t / 2 - a * t)
    total *= end / parts / 3 * math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    return std * total + max(best - mean, 0.0)


# ---- wrong, by name

def below(z):
    """Probability that a standard normal is below z, with all digits of a tiny one."""
    return torch.erfc(-z / math.sqrt(2)) / 2


@not_an_answer
def improved(mean, std, best):
    gain = best - mean
    z = gain / torch.where(std > 0, std, 1)
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    out = torch.where(std > 0, gain * below(z) + std * density, gain.clamp(min=0))
    return out


wrong = ex.edits(improved)
wrong("using the textbook's sign, which is for a maximum",
      "improvement", "best - mean", "-best - -mean")
wrong("copying the lesson's repair, which divides by 0 and loses tiny probabilities",
      ("certain", "example", "unlikely"), "gain =",
      "z = (best - mean) / std; density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi); return "
      "std * (z * torch.special.ndtr(z) + density); gain =")


@ex.wrong("returning the result of a division by a std of 0", breaks=("certain", "example"))
def divides(mean, std, best):
    z = (best - mean) / std
    return std * (z * below(z) + torch.exp(-z * z / 2) / math.sqrt(2 * math.pi))


wrong("computing 0 / 0 where std is 0 and the mean equals best", "certain",
      "gain =",
      "gain = best - mean; z = gain / std; return gain * below(z) + std * torch.exp(-z * z / 2) "
      "/ math.sqrt(2 * math.pi); gain =")
ex.wrong("subtracting 0.01 from every difference best - mean, to explore",
         lambda mean, std, best: improved(
    mean, std, best - 0.01), breaks=("improvement", "certain", "tiny", "unlikely", "example"))
ex.wrong("returning 0 wherever std is 0, as nan_to_num around the result does",
         lambda mean, std, best: divides(mean, std, best).nan_to_num(0.0), breaks="certain")
wrong("returning a negative improvement where std is 0", ("certain", "example"),
      "return out", "return torch.where(std > 0, out, best - mean)")
wrong("adding a small constant to std", "tiny",
      "gain =", "std = torch.where(std > 0, std + 1e-9, 0); gain =")
wrong("treating every std below a threshold as 0", "tiny",
      "return out", "return torch.where(std > 1e-100, out, (best - mean).clamp(min=0))")
wrong("using ndtr, which rounds to 0 beyond about 8 standard deviations", "unlikely",
      "below", "torch.special.ndtr")
ex.wrong("returning the probability of an improvement",
         lambda mean, std, best: torch.special.ndtr((best - mean) / torch.where(std > 0, std, 1)),
         breaks="improvement")
wrong("treating std as a variance", "improvement", "gain =", "std = std.sqrt(); gain =")
ex.wrong("ignoring std", lambda mean, std, best: (best - mean).clamp(min=0),
         breaks="improvement")
ex.wrong("using the smallest mean instead of best",
         lambda mean, std, best: improved(mean, std, mean.min().item() if mean.numel() else best),
         breaks="improvement")
wrong("returning the sum over all candidates", "each", "return out", "return out.sum()")
wrong("returning a list of numbers", "each", "return out", "return out.tolist()")
wrong("computing in single precision", "dtype", "return out", "return out.float()")


@ex.wrong("assuming that mean has at least one axis", says="0-d tensor", breaks="shapes")
def needs_an_axis(mean, std, best):
    rows = [improved(m, s, best) for m, s in zip(mean, std)]
    return torch.stack(rows) if rows else mean.clone()


wrong("writing a 1 into std", "left", "return out", "std[std == 0] = 1.0; return out")
