"""Exercise 14.3, `kl_term`."""

from __future__ import annotations

import itertools

import torch

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("14.3", "kl_term", seen=("logits", "logits_ref", "rows", "tokens", "real",
                                       "batches", "dtype"), says="mean gradient")

ex.promise_table("""
pull    | Compute a scalar loss term that pulls the policy towards the reference. Averaged over all
          answers that the policy can sample, the term's gradient is the gradient of KL(policy,
          reference) in nats. | mean gradient; shape of the term; type of; gradient of the term
whole   | The KL compares whole answers, not single tokens. | case answers of two tokens; answers of
          three tokens; two answers of two tokens; a certain token; a token that the reference is
          certain of; shorter answers; shorter answers, two at once; float32, answers of two tokens
tokens  | logp, logp_ref: (N, T), the log-probability of each token of N answers, given the tokens
          before it, under the policy that sampled the answers and under the reference. | case one
          answer of one token; two answers of one token; three answers at once; two answers of two
          tokens; shorter answers, two at once; float32; eight tokens to choose from; far apart;
          equal to the reference; a certain token; a token that the reference is certain of
pads    | logp and logp_ref are 0 after the end of a shorter answer. | case shorter answers; shorter
          answers, two at once
dtype   | Both are float32 or both are float64, and the term has the same dtype. | dtype of the term
left    | logp and logp_ref are not changed. | values changed
example | Example: two answers of one token, each with probability 0.5; the reference gives them
          0.25 and 0.75. The mean gradient of their logits is [0.2747, -0.2747]. | case the example
""")


@ex.cases
def cases(g):
    between = integers(g)

    def one(name, choices, length, together, *, size=1.0, ends=False, dtype="float64",
            logits=None, logits_ref=None):
        """All answers as a tree: a row of logits for each beginning; token 0 may be the end."""
        beginnings = [start for n in range(length)
                      for start in itertools.product(range(choices), repeat=n)
                      if not (ends and 0 in start)]
        answers = [a for a in itertools.product(range(choices), repeat=length)
                   if not ends or all(x != 0 or set(a[t:]) == {0} for t, x in enumerate(a))]
        rows = [[0 if ends and 0 in a[:t] else beginnings.index(a[:t]) for t in range(length)]
                for a in answers]
        real = [[not (ends and 0 in a[:t]) for t in range(length)] for a in answers]
        shape = len(beginnings), choices
        if logits is None:
            logits = size * torch.randn(*shape, generator=g, dtype=torch.float64)
        if logits_ref is None:
            logits_ref = size * torch.randn(*shape, generator=g, dtype=torch.float64)
        return name, {"logits": logits, "logits_ref": logits_ref, "rows": torch.tensor(rows),
                      "tokens": torch.tensor(answers), "real": torch.tensor(real),
                      "batches": torch.tensor([*itertools.product(range(len(answers)),
                                                                  repeat=together)]),
                      "dtype": dtype}

    same = torch.randn(1, 4, generator=g, dtype=torch.float64)
    apart = torch.zeros(1, 3, dtype=torch.float64)
    apart[0, 2 * between(0, 2)] = 9.0          # the reference prefers another
    spread = torch.randn(4, 3, generator=g, dtype=torch.float64)
    certain = torch.randn(4, 3, generator=g, dtype=torch.float64)
    certain[1:, between(0, 3)] += 60.0         # behind each first token: its logarithm is 0
    return [one("one answer of one token", 5, 1, 1), one("two answers of one token", 4, 1, 2),
            one("three answers at once", 3, 1, 3), one("eight tokens to choose from", 8, 1, 1),
            one("answers of two tokens", 3, 2, 1), one("two answers of two tokens", 2, 2, 2),
            one("answers of three tokens", 2, 3, 1),
            one("shorter answers", 3, 2, 1, ends=True),
            one("shorter answers, two at once", 2, 3, 2, ends=True),
            one("far apart", 3, 1, 2, logits=apart, logits_ref=apart.flip(1) - 2 * apart),
            one("a certain token", 3, 2, 1, logits=certain, logits_ref=spread),
            one("a token that the reference is certain of", 3, 2, 1, logits=spread,
                logits_ref=certain),
            one("equal to the reference", 4, 1, 2, logits=same, logits_ref=same.clone()),
            one("float32", 4, 1, 2, dtype="float32"),
            one("float32, answers of two tokens", 3, 2, 1, dtype="float32"),
            one("the example", 2, 1, 1, logits=torch.zeros(1, 2, dtype=torch.float64),
                logits_ref=torch.tensor([[0.25, 0.75]], dtype=torch.float64).log())]


@ex.act
def act(fn, logits, logits_ref, rows, tokens, real, batches, dtype):
    kind = getattr(torch, dtype)
    weights = logits.to(kind).requires_grad_()

    def scored(table):
        return table.log_softmax(-1)[rows, tokens].where(real, torch.zeros((), dtype=kind))

    fixed, total, moved, forms = scored(logits_ref.to(kind)), torch.zeros_like(weights), 0, set()
    with torch.no_grad():
        chances = scored(weights).sum(1).exp()
    for batch in batches:
        now, ref = scored(weights)[batch], fixed[batch]
        term = fn(now, ref)
        if not isinstance(term, torch.Tensor):
            forms.add((type(term).__name__, "", "", ""))
            continue
        forms.add(("Tensor", str(list(term.shape)), str(term.dtype), str(term.requires_grad)))
        if term.requires_grad and term.dim() == 0:
            (grad,) = torch.autograd.grad(term, weights, allow_unused=True)
            if grad is not None:
                total += chances[batch].prod() * grad
        moved += int((now.detach() != scored(weights).detach()[batch]).sum())
        moved += int((ref != fixed[batch]).sum())
    kind, shape, kept, alive = (", ".join(sorted(set(part))) for part in zip(*forms))
    return {"grad": total.double(), "moved": moved, "kind": kind, "shape": shape, "kept": kept,
            "alive": alive}


@ex.law
def law(out, logits, logits_ref, rows, tokens, real, batches, dtype):
    expect_parts(out, "grad", "moved", "kind", "shape", "kept", "alive")
    expect_equal("values changed in the arguments", out["moved"], 0, "Work on copies.")
    expect_equal("type of the term", out["kind"], "Tensor", "The term needs a gradient.")
    expect_equal("shape of the term", out["shape"], "[]", "A loss is a scalar.")
    expect_equal("dtype of the term", out["kept"], f"torch.{dtype}")
    expect_equal("whether there is a gradient of the term", out["alive"], "True",
                 "The gradient comes through logp.")
    exact = logits.double().requires_grad_()
    chosen, fixed = (torch.where(real, z.log_softmax(-1)[rows, tokens], 0.0).sum(1)
                     for z in (exact, logits_ref.double()))
    (chosen.exp() * (chosen - fixed)).sum().backward()
    low = dtype == "float32"
    expect_close("mean gradient of the logits", out["grad"], exact.grad, rtol=2e-4 if low else 1e-6,
                 atol=1e-5 if low else 1e-9,
                 look=f"This is the mean over {len(tokens)} answers, {batches.shape[1]} at a "
                      "time, each as often as the policy samples it.")


# ---- wrong, by name

@not_an_answer
def made(logp, logp_ref):
    gap = (logp - logp_ref).sum(-1)
    return (gap**2 / 2).mean()


wrong = ex.edits(made)
RATIO, SUM, TERM = "(logp - logp_ref)", ".sum(-1)", "gap**2 / 2"
# https://github.com/allenai/open-instruct/pull/535
wrong("using the mean log-ratio, whose mean gradient is 0",
      ("pull", "example", "tokens"), TERM, "gap")
wrong("using k3, which has the gradient of KL(reference, policy)", ("pull", "example"),
      TERM, "torch.exp(-gap) - 1 + gap")
wrong("using k3 with the sign of the log-ratio flipped", ("pull", "example"),
      TERM, "torch.exp(gap) - 1 - gap")
wrong("computing k3 for each token and summing over the tokens", ("pull", "example"),
      SUM, "", TERM, "(torch.exp(-gap) - 1 + gap).sum(-1)")
# https://arxiv.org/abs/2506.09477
wrong("pushing each token by its own log-ratio instead of the answer's log-ratio", "whole",
      SUM, "", TERM, "(gap**2 / 2).sum(-1)")
wrong("squaring the mean of an answer's log-ratios instead of their sum", "whole", SUM, ".mean(-1)")
wrong("squaring each token's log-ratio and averaging over all tokens", "whole", SUM, "")
wrong("using only the first token of each answer", "whole", SUM, "[:, 0]")
wrong("using only the last position of each row", "whole", SUM, "[:, -1]")
wrong("leaving out shorter answers", "pads",
      TERM, f"{TERM} * ((logp != 0) | (logp_ref != 0)).all(-1)")
wrong("dividing each answer's term by its number of tokens", "whole",
      TERM, f"{TERM} / (logp != 0).sum(-1).clamp(min=1)")
wrong("treating a log-probability of 0 in logp as padding",
      "tokens", RATIO, f"({RATIO} * (logp != 0))")
wrong("treating a log-probability of 0 in logp_ref as padding", "tokens",
      RATIO, f"({RATIO} * (logp_ref != 0))")
wrong("clamping the log-ratio to the range from -50 to 50",
      "tokens", SUM, f"{SUM}.clamp(-50.0, 50.0)")
wrong("leaving out the factor one half", ("pull", "example"), TERM, "gap**2")
wrong("flipping the sign of the term", ("pull", "example"), TERM, "-gap**2 / 2")
wrong("using the absolute value of the log-ratio", ("pull", "example"), TERM, "gap.abs()")
wrong("summing over the answers instead of averaging",
      ("pull", "tokens"), ".mean()", ".sum()", says="")
wrong("returning one term per answer", "pull", ".mean()", "", says="shape of the term")
KL_DIV = 'return torch.nn.functional.kl_div({}, {}, log_target=True, reduction="batchmean")'
wrong("calling torch's kl_div with the policy first", ("pull", "example"),
      "return (gap**2 / 2).mean()", KL_DIV.format("logp", "logp_ref"))
wrong("weighting by the probability a second time, as torch's kl_div does", ("pull", "example"),
      "return (gap**2 / 2).mean()", KL_DIV.format("logp_ref", "logp"))
wrong("subtracting the batch's mean log-ratio", ("pull", "tokens"),
      TERM, "(gap - gap.mean()).detach() * logp.sum(-1)")
wrong("detaching logp", "pull", "(logp -", "(logp.detach() -",
      says="gradient of the term")
wrong("returning a number instead of a tensor", "pull", ".mean()", ".mean().item()",
      says="type of the term")
wrong("clamping the log-ratio to the range from -1 to 1", "pull", SUM, f"{SUM}.clamp(-1.0, 1.0)")
wrong("clamping each answer's push to the range from -5 to 5", ("tokens", "whole"),
      TERM, "gap.clamp(-5.0, 5.0).detach() * logp.sum(-1)")
wrong("always computing in float32", "dtype", RATIO, f"{RATIO}.float()", says="dtype of the term")
wrong("always computing in float64", "dtype", RATIO, f"{RATIO}.double()", says="dtype of the term")


@ex.wrong("overwriting logp with the log-ratio", breaks="left")
def in_place(logp, logp_ref):
    term = made(logp, logp_ref)
    logp.data.sub_(logp_ref)
    return (logp.sum(-1) - logp.sum(-1).detach()).mean() * 0 + term
