"""Exercise 15.5, `balance`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s15.e5_balance import ex, made
from dlsys_helpers.judging import edited


@ex.right("one-hot rows, means, E squared")
def one_hot_means(p, chosen, real):
    p, chosen = p[real], chosen[real]
    experts = p.size(1)
    share = F.one_hot(chosen, experts).to(p.dtype).mean(dim=(0, 1))
    return (share * p.mean(dim=0)).mean() * experts ** 2


@ex.right("the mean chance of each choice, gathered")
def gathered(p, chosen, real):
    return p.shape[1] * p[real].mean(0)[chosen[real]].mean()


@ex.right("expert by expert")
def by_loop(p, chosen, real):
    tokens, experts = int(real.sum()), p.shape[1]
    total = p.new_zeros(())
    for e in range(experts):
        part = ((chosen == e) & real[:, None]).sum() / (tokens * chosen.shape[1])
        total = total + part * (p[:, e] * real).sum() / tokens
    return experts * total


@ex.right("scattered in float64, a product of vectors")
def in_double(p, chosen, real):
    chosen = chosen[real]
    counts = torch.zeros(p.shape[1], dtype=torch.float64)
    counts.scatter_add_(0, chosen.reshape(-1), torch.ones(chosen.numel(), dtype=torch.float64))
    return (p.shape[1] * (counts / counts.sum()) @ p[real].double().mean(0)).float()


@ex.right("weights of a row, an inner product with p")
def inner(p, chosen, real):
    with torch.no_grad():
        weight = torch.zeros_like(p).scatter_(1, chosen, 1.0)
        weight = weight[real].sum(0, keepdim=True) * real[:, None]
        weight = weight * p.size(1) / (chosen[real].numel() * real.sum())
    return torch.sum(weight * p)


ex.probe("never more than 30 experts", breaks="p", fn=edited(
    made, ("return experts", "return min(experts, 30)"), "15.5, never more than 30 experts"))
ex.probe("experts that are never likely count a little more", breaks="share", fn=edited(
    made, ("return experts", "return (experts + 0.1 * (p.mean(0) < 1e-6).any())"),
    "15.5, experts that are never likely"))
ex.probe("even chances count a little more", breaks="one", fn=edited(
    made, ("return experts", "return (experts + 0.1 * ((p == p[0, 0]).all() and experts > 1))"),
    "15.5, even chances"))
ex.probe("the likeliest counted where chances differ", breaks="chosen", fn=edited(
    made, ("share =", "chosen = p.topk(chosen.shape[1], -1).indices if p.amax() > p.amin() else "
           "chosen; share ="), "15.5, the likeliest counted"))
ex.probe("the mean over the last axis where both fit", breaks="mean", fn=edited(
    made, ("p.mean(0)", "p.mean(int(p.shape[0] == p.shape[1] > 2))"), "15.5, the last axis"))
ex.probe("the example looked up wrong", breaks="example", fn=edited(
    made, ("return ", "loss = ", ".sum()", ".sum(); return loss + 0.01 * (abs(loss.item() - 1.6) "
           "< 1e-6)"), "15.5, the example"))
