"""Exercise 14.1, `dpo_loss`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy

import torch
from torch.nn import functional as F

from dlsys_checks.s14.e1_dpo_loss import ex, made


def score(model, ids, answer):
    """Log-probability (B,) of the tokens where answer is true."""
    each = model(ids).log_softmax(-1)[:, :-1].gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)
    return torch.where(answer[:, 1:], each, torch.zeros(())).sum(1)


@ex.right("weights cloned, called functionally")
def functional(policy, beta):
    old = {name: p.detach().clone() for name, p in policy.state_dict().items()}

    def reference(ids):
        modes = [(part, part.training) for part in policy.modules()]
        policy.eval()
        try:
            return torch.func.functional_call(policy, old, (ids,))
        finally:
            for part, was in modes:
                part.training = was

    def loss(chosen, rejected):
        with torch.no_grad():
            before = score(reference, *chosen) - score(reference, *rejected)
        gained = score(policy, *chosen) - score(policy, *rejected) - before
        return F.softplus(-beta * gained).mean()

    return loss


@ex.right("row by row, cross-entropy")
def by_rows(policy, beta):
    reference = copy.deepcopy(policy)
    reference.requires_grad_(False)
    reference.eval()

    def answered(model, ids, answer):
        logits, total = model(ids), []
        for row in range(len(ids)):
            at = answer[row].nonzero()[:, 0]
            total.append(-F.cross_entropy(logits[row, at - 1], ids[row, at], reduction="sum"))
        return torch.stack(total)

    def loss(chosen, rejected):
        gains = [answered(policy, *pair) - answered(reference, *pair)
                 for pair in (chosen, rejected)]
        margin = gains[0] - gains[1]
        return F.binary_cross_entropy_with_logits(beta * margin, torch.ones_like(margin))

    return loss


@ex.right("both answers in one call")
def together(policy, beta):
    old = copy.deepcopy(policy).eval().requires_grad_(False)

    def loss(chosen, rejected):
        longest = max(chosen[0].shape[1], rejected[0].shape[1])
        ids, answer = (torch.cat([F.pad(pair[k], (0, longest - pair[k].shape[1]))
                                  for pair in (chosen, rejected)]) for k in (0, 1))
        ratio = score(policy, ids, answer) - score(old, ids, answer)
        good, bad = ratio.chunk(2)
        return torch.logaddexp(torch.zeros(()), beta * (bad - good)).mean()

    return loss


@ex.right("labels with -100, in float64")
def by_labels(policy, beta):
    frozen = copy.deepcopy(policy).eval()
    for weight in frozen.parameters():
        weight.requires_grad = False

    def scored(model, ids, answer):
        labels = ids.masked_fill(~answer, -100)[:, 1:]
        each = F.cross_entropy(model(ids)[:, :-1].double().transpose(1, 2), labels,
                               ignore_index=-100, reduction="none")
        return -each.sum(1)

    def loss(chosen, rejected):
        margin = (scored(policy, *chosen) - scored(frozen, *chosen)
                  - scored(policy, *rejected) + scored(frozen, *rejected))
        return (-F.logsigmoid(beta * margin)).mean().float()

    return loss


@ex.right("the reference's numbers kept by text and mask")
def kept_by_text(policy, beta):
    reference, kept = copy.deepcopy(policy).requires_grad_(False).eval(), {}

    def before(ids, answer):
        key = str(ids.tolist()), str(answer.tolist())
        if key not in kept:
            kept[key] = score(reference, ids, answer)
        return kept[key]

    def loss(chosen, rejected):
        gains = [score(policy, *pair) - before(*pair) for pair in (chosen, rejected)]
        return F.softplus(beta * (gains[1] - gains[0])).mean()

    return loss


@ex.probe("off where nothing has moved yet", breaks="example")
def off_at_first(policy, beta):
    old, training = copy.deepcopy(policy), policy.training
    loss = made(policy, beta)

    def moved(chosen, rejected):
        same = all(torch.equal(a, b) for a, b in zip(policy.parameters(), old.parameters()))
        return loss(chosen, rejected) + 0.01 * (same and not training)

    return moved


@ex.probe("moving the policy's weights where the loss is made", breaks="left")
def nudged(policy, beta):
    loss = made(policy, beta)
    with torch.no_grad():
        next(policy.parameters()).add_(1.0)
    return loss


@ex.probe("the copy's own flag set, those of its parts not", breaks="mode")
def flagged(policy, beta):
    def keep(policy):
        reference = copy.deepcopy(policy)
        reference.training = False
        return reference

    return made(policy, beta, keep=keep)


ex.equivalent("each = each.gather(-1, ids[:, 1:, None])[..., 0] -> "
              "each = each.gather(-1, ids[:, 1:, None])[..., -1]",
              "the last axis has one entry, the first and the last")
ex.equivalent("return each.where(answer[:, 1:], 0.0).sum(-1) -> "
              "return each.where(answer[:, 1:], 0.0).sum(1)", "there are two axes")
ex.equivalent("return each.where(answer[:, 1:], 0.0).sum(-1) -> "
              "return each.where(answer[:, 1:], 1.0).sum(-1)",
              "policy and reference count the other places alike, and the difference is taken")
ex.equivalent("with torch.no_grad(): -> old = logp(reference, *chosen) - logp(reference, "
              "*rejected)", "the copy gets a gradient that nobody reads: more work, the same loss")
