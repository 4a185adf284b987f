"""Exercise 15.4, `route`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s15.e4_route import ex, made
from dlsys_helpers.judging import edited


@ex.right("the softmax over the chosen, for two and more")
def over_chosen(logits, k, renorm):
    z = logits.to(torch.float32)
    best, experts = z.topk(k, dim=-1)
    if renorm and k >= 2:
        return best.softmax(dim=-1), experts
    return (best - z.logsumexp(-1, keepdim=True)).exp(), experts


@ex.right("sorted, gathered, a small number in the sum")
def sorted_all(logits, k, renorm):
    p = torch.softmax(logits, dim=-1, dtype=torch.float32)
    experts = logits.argsort(dim=-1, descending=True)[..., :k]
    w = torch.gather(p, -1, experts)
    return (w / (w.sum(-1, keepdim=True) + 1e-9) if renorm and k != 1 else w), experts


@ex.right("token by token")
def by_token(logits, k, renorm):
    rows, picked = [], []
    for row in logits.reshape(-1, logits.shape[-1]):
        e = (row.float() - row.float().max().detach()).exp()
        values, places = (e / e.sum()).topk(k)
        if k > 1 and renorm:
            values = values / sum(values)
        rows.append(values)
        picked.append(places)
    shape = (*logits.shape[:-1], k)
    return torch.stack(rows).reshape(shape), torch.stack(picked).reshape(shape)


@ex.right("through log-probabilities in float64")
def by_logs(logits, k, renorm):
    logp, experts = logits.double().log_softmax(-1).topk(k, -1)
    if renorm and k > 1:
        logp = logp - logp.logsumexp(-1, keepdim=True)
    return logp.exp().float(), experts


@ex.right("what topk returns, as it is")
def as_topk_returns(logits, k, renorm):
    best = logits.float().softmax(-1).topk(k)
    if renorm and k > 1:
        return best.values / best.values.sum(-1, keepdim=True), best.indices
    return best


@ex.right("all but the chosen masked")
def masked(logits, k, renorm):
    z = logits.float()
    experts = z.detach().topk(k, dim=-1).indices
    if renorm and k > 1:
        keep = torch.zeros_like(z, dtype=torch.bool).scatter(-1, experts, True)
        z = z.masked_fill(~keep, float("-inf"))
    return z.softmax(-1).gather(-1, experts), experts


@ex.probe("the likeliest passed over, where others are left", breaks="likeliest",
          says="experts of a token")
def passed_over(logits, k, renorm):
    p = logits.float().softmax(-1)
    w, experts = (part[..., -k:] for part in p.topk(min(k + 1, p.shape[-1]), dim=-1))
    return (w / w.sum(-1, keepdim=True) if renorm and k > 1 else w), experts


ex.probe("divided for two alone", edited(made, ("k > 1", "k == 2"), "15.4, divided for two"),
         breaks="divided", says="")
ex.probe("the last weight without a gradient", made, breaks="flow", says="gradient of the logits",
         after=lambda w: torch.cat([w[..., :-1], w[..., -1:].detach()], -1))
ex.probe("never more than three", lambda logits, k, renorm: made(logits, min(k, 3), renorm),
         breaks=("k", "experts"), says="shape of the experts")
ex.probe("only one expert: weight 0", lambda logits, k, renorm: (
    made(logits, k, renorm)[0] * (logits.shape[-1] > 1), made(logits, k, renorm)[1]),
    breaks="k", says="")
ex.probe("the example looked up wrong", lambda logits, k, renorm: (
    made(logits, k, renorm)[0] + 0.01 * (logits.shape == (1, 3)), made(logits, k, renorm)[1]),
    breaks="example")
ex.equivalent("weights, experts = logits.float().softmax(-1).topk(k, dim=-1) -> "
              "weights, experts = logits.float().softmax(-1).topk(k)",
              "topk goes along the last axis by itself")
