"""Exercise 14.4, `inner_loss`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch

from dlsys_checks.s14.e4_inner_loss import ex, made


@ex.right("the larger of two losses")
def larger_loss(logp, logp_sampled, adv, eps):
    ratio = torch.exp(logp - logp_sampled.detach())
    gain = adv.detach().unsqueeze(1)
    return torch.max(-gain * ratio, -gain * torch.clip(ratio, 1.0 - eps, 1.0 + eps)).mean()


@ex.right("one bound, by the sign of the advantage")
def one_bound(logp, logp_sampled, adv, eps):
    with torch.no_grad():
        then, gain = logp_sampled + 0, adv[:, None].expand_as(logp)
    ratio = (logp - then).exp()
    held = torch.where(gain > 0, ratio.clamp(max=1 + eps), ratio.clamp(min=1 - eps))
    return -(held * gain).sum() / logp.numel()


@ex.right("bounds on the log-ratio")
def log_bounds(logp, logp_sampled, adv, eps):
    d = logp - logp_sampled.detach()
    gain = adv.detach()[..., None]
    held = d.clamp(math.log(1 - eps), math.log(1 + eps))
    return -torch.stack([d.exp() * gain, held.exp() * gain]).amin(0).mean()


@ex.right("token by token")
def by_tokens(logp, logp_sampled, adv, eps):
    terms = []
    for now, then, gain in zip(logp, logp_sampled.detach(), adv.detach()):
        for a, b in zip(now, then):
            ratio = (a - b).exp()
            terms.append(min(ratio * gain, ratio.clamp(1 - eps, 1 + eps) * gain))
    return -sum(terms) / len(terms)


@ex.right("the gradient's share, and the value")
def masked(logp, logp_sampled, adv, eps):
    gain = adv.detach()[:, None]
    ratio = torch.exp(logp.double() - logp_sampled.detach().double())
    beyond = ((gain > 0) & (ratio > 1 + eps)) | ((gain < 0) & (ratio < 1 - eps))
    edge = 1 + eps * gain.sign().double()
    return -(torch.where(beyond, edge, ratio) * gain.double()).mean().to(logp.dtype)


@ex.right("in place, on copies of its own")
def on_copies(logp, logp_sampled, adv, eps):
    then = logp_sampled.detach().clone().neg_().add_(logp).exp_()
    gain = adv.detach().clone()
    return -torch.minimum(then * gain.view(-1, 1), then.clamp(1 - eps, 1 + eps)
                          * gain.view(-1, 1)).mean()


ex.probe("the example looked up wrong", lambda logp, then, adv, eps: made(
    logp, then, adv, eps) * (1.01 if logp.shape == (1, 2) else 1.0), breaks="example")
ex.probe("a narrow clip widened", lambda logp, then, adv, eps: made(
    logp, then, adv, max(eps, 0.1)), breaks="eps")
ex.probe("half the gradient in the first step", lambda logp, then, adv, eps: made(
    logp, then, adv, eps) if (logp != then).any() else made(
    logp / 2, logp.detach() / 2, adv, eps), breaks="first", says="gradient of")
ex.equivalent("return -torch.minimum(ratio * gain, ratio.clamp(1 - eps, 1 + eps) * gain).mean() -> "
              "return -torch.minimum(ratio.clamp(1 - eps, 1 + eps) * gain, ratio * gain).mean()",
              "the smaller of two, in either order")
