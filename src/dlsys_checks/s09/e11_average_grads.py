"""Exercise 09.11, `average_grads`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer
from dlsys_helpers.lockstep import expect_agreement

ex = exercise("09.11", "average_grads", seen=("start", "xs", "ys", "branch", "old", "shift"))

ex.promise_table("""
loss    | Mean loss over the examples of all ranks; | mean loss
grads   | gradients go into .grad. | gradient of
ragged  | losses_of(batch): losses (n,) of this rank's n examples, with a graph; n >= 0 differs from
          rank to rank, and at least one rank has some. | case ranks of other sizes; a rank without
          examples; many examples; four ranks, two without examples; a branch on one rank; the
          example
idle    | params: the parameters; one that no loss depends on gets zeros, | parameter idle;
          parameter branch; parameter twig
old     | and what .grad held before counts no more. | case gradients of an earlier step
values  | Values of the parameters stay. | values of the parameters
calls   | all_sum(tensor): the sum over ranks, a new tensor; all ranks have to call it equally
          often, in the same order, with the same shapes and dtypes. | what the ranks ask for;
          parameter branch; parameter twig
example | Example: losses (1., 3.) on one rank and (8.,) on another: 4.0 on both. | case the example
""")


# The parameters: weights of all examples, a bias, weights of two branches, one that nobody uses.
NAMES = ("weight", "bias", "branch", "twig", "idle")


@ex.cases
def cases(g):
    def one(name, sizes, branch=None, old=False, dtype=torch.float32, shift=0.0):
        start = [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)
                 for shape in ((3,), (), (3,), (3,), (2,))]
        return name, {"start": start, "branch": branch or ["both"] * len(sizes), "old": old,
                      "shift": shift,
                      "xs": [torch.randn(n, 3, generator=g, dtype=torch.float64).to(dtype)
                             for n in sizes],
                      "ys": [torch.randn(n, generator=g, dtype=torch.float64).to(dtype)
                             for n in sizes]}
    example = {"start": [torch.tensor([1.0, -1.0, 0.0]), torch.zeros(()), torch.ones(3),
                         torch.ones(3), torch.ones(2)],
               "branch": ["none", "none"], "old": False, "shift": 0.0,
               "xs": [torch.ones(2, 3), torch.ones(1, 3)],
               "ys": [torch.tensor([1.0, 3.0]).sqrt(), torch.tensor([8.0]).sqrt()]}
    return [one("two ranks", [4, 4]), one("one rank alone", [5]),
            one("ranks of other sizes", [2, 7, 3]),
            one("a rank without examples", [0, 4]),
            one("four ranks, two without examples", [3, 0, 6, 0]),
            one("many examples", [150, 90]), one("losses below zero", [4, 4], shift=-90.0),
            one("a branch on one rank", [5, 2], ["none", "both"]),
            one("a branch on the other rank", [3, 3], ["both", "none"]),
            one("another branch on each rank", [3, 3], ["twig", "branch"]),
            one("a parameter that nobody uses", [3, 3], ["none", "none"]),
            one("gradients of an earlier step", [4, 4], old=True),
            one("in float64", [3, 3], dtype=torch.float64), ("the example", example)]


@ex.act
def act(fn, start, xs, ys, branch, old, shift):
    from dlsys_helpers.lockstep import in_lockstep

    def run(rank, all_sum):
        params = [nn.Parameter(t.clone()) for t in start]
        weight, bias, extra, twig, _ = params
        if old:
            for p in params:
                p.grad = torch.full_like(p, 1.0 + rank)

        def losses_of(batch):
            x, y = batch
            losses = (x @ weight + bias - y) ** 2 + shift
            if branch[rank] in ("branch", "both"):
                losses = losses + (x @ extra) ** 2
            if branch[rank] in ("twig", "both"):
                losses = losses + 2 * (x @ twig) ** 2
            return losses

        value = fn(losses_of, params, (xs[rank].clone(), ys[rank].clone()), all_sum)
        changed = sum(not torch.equal(p, t) for p, t in zip(params, start))
        return {"loss": value, "grads": [p.grad for p in params], "changed": changed}

    return in_lockstep(run, range(len(xs)))


@ex.law
def law(out, start, xs, ys, branch, old, shift):
    expect_agreement(out, len(xs))
    loss, grads = by_hand(start, xs, ys, branch)
    loss += shift
    for rank, done in enumerate(out["ranks"]):
        expect_parts(done, "loss", "grads", "changed", what=f"run of rank {rank}")
        expect_length("gradients", done["grads"], len(start))
        for name, got, wanted in zip(NAMES, done["grads"], grads, strict=True):
            expect_close(f"gradient of parameter {name} on rank {rank}", got, wanted, rtol=1e-3,
                         atol=1e-6)
        expect_close(f"mean loss on rank {rank}", done["loss"], loss, rtol=1e-3)
        expect_equal("changed values of the parameters", done["changed"], 0)


def by_hand(start, xs, ys, branch):
    """Mean loss and its gradients by the chain rule, all examples in one list, in float64."""
    weight, bias, extra, twig, idle = (t.double() for t in start)
    rows = sum(len(y) for y in ys)
    loss, grads = 0.0, [torch.zeros_like(t) for t in (weight, bias, extra, twig, idle)]
    for x, y, more in zip(xs, ys, branch, strict=True):
        x = x.double()
        error = x @ weight + bias - y.double()
        side = (more in ("branch", "both")) * (x @ extra)
        third = (more in ("twig", "both")) * (x @ twig)
        loss += float((error**2 + side**2 + 2 * third**2).sum()) / rows
        grads[0] += 2 * error @ x / rows
        grads[1] += 2 * error.sum() / rows
        grads[2] += 2 * side @ x / rows
        grads[3] += 4 * third @ x / rows
    return loss, [g.to(t.dtype) for g, t in zip(grads, start, strict=True)]


def total_of(losses_of, batch, params):
    """Sum of the losses, and its gradients with zeros for None."""
    total = losses_of(batch).sum()
    return total, torch.autograd.grad(total, params, allow_unused=True, materialize_grads=True)


# ---- wrong, by name

@ex.wrong("keeping each rank's own gradients: nothing is shared", says="gradient of parameter",
          breaks=("grads", "ragged", "loss"))
def own_only(losses_of, params, batch, all_sum):
    total, grads = total_of(losses_of, batch, params)
    for p, g in zip(params, grads, strict=True):
        p.grad = g / max(1, len(batch[0]))
    return total.item() / max(1, len(batch[0]))


@ex.wrong("sharing the loss, but not the gradients", says="gradient of parameter", breaks="grads")
def loss_only(losses_of, params, batch, all_sum):
    total, grads = total_of(losses_of, batch, params)
    n = max(1, len(batch[0]))
    for p, g in zip(params, grads, strict=True):
        p.grad = g / n
    told = all_sum(torch.stack([total.detach(), total.new_tensor(float(len(batch[0])))]))
    return (told[0] / told[1]).item()


@ex.wrong("expecting all_sum to write into its tensor, as all_reduce does",
          says="gradient of parameter", breaks=("grads", "ragged"))
def sum_in_place(losses_of, params, batch, all_sum):
    rows = all_sum(torch.tensor(float(len(batch[0]))))
    total, grads = total_of(losses_of, batch, params)
    for p, g in zip(params, grads, strict=True):
        p.grad = (g / rows).to(p.dtype)
        all_sum(p.grad)
    return (all_sum(total.detach()) / rows).item()


@not_an_answer
def averaged(losses_of, params, batch, all_sum):
    total, grads = total_of(losses_of, batch, params)
    n = all_sum(torch.tensor([float(len(batch[0])), 1.0]))
    rows = n[0]
    for p, g in zip(params, grads, strict=True):
        p.grad = (all_sum(g) / rows).to(p.dtype)
    mean = all_sum(total.detach()) / n[0]
    out = mean.item()
    return out


wrong = ex.edits(averaged)
wrong("summing and never dividing", "grads",
      "rows = n[0]", "rows = torch.ones(())", says="gradient of parameter")
wrong("dividing by the number of ranks, not of examples", "grads",
      "rows = n[0]", "rows = n[1]", says="gradient of parameter")


@ex.wrong("averaging the ranks' means, as if all had as many examples",
          says="gradient of parameter", breaks="ragged")
def mean_of_means(losses_of, params, batch, all_sum):
    total, grads = total_of(losses_of, batch, params)
    n, world = max(1, len(batch[0])), all_sum(torch.ones(()))
    for p, g in zip(params, grads, strict=True):
        p.grad = (all_sum(g / n) / world).to(p.dtype)
    return (all_sum(total.detach() / n) / world).item()


@ex.wrong("using the mean of a rank without examples, which is NaN", says="mean loss on rank",
          breaks="ragged")
def empty_mean(losses_of, params, batch, all_sum):
    n = len(batch[0])
    total = losses_of(batch).mean() * n
    grads = torch.autograd.grad(total, params, allow_unused=True, materialize_grads=True)
    rows = all_sum(torch.tensor(float(n)))
    for p, g in zip(params, grads, strict=True):
        p.grad = (all_sum(g) / rows).to(p.dtype)
    return (all_sum(total.detach()) / rows).item()


@ex.wrong("asking for no sum where a rank has no gradient of its own", breaks="calls")
def skips_unused(losses_of, params, batch, all_sum):
    total = losses_of(batch).sum()
    grads = torch.autograd.grad(total, params, allow_unused=True)
    rows = all_sum(torch.tensor(float(len(batch[0]))))
    for p, g in zip(params, grads, strict=True):
        p.grad = torch.zeros_like(p) if g is None else (all_sum(g) / rows).to(p.dtype)
    return (all_sum(total.detach()) / rows).item()


@ex.wrong("summing parameters with a gradient first, then the others", says="gradient of parameter",
          breaks="calls")
def used_first(losses_of, params, batch, all_sum):
    total = losses_of(batch).sum()
    pairs = list(zip(params, torch.autograd.grad(total, params, allow_unused=True), strict=True))
    rows = all_sum(torch.tensor(float(len(batch[0]))))
    for p, g in sorted(pairs, key=lambda pair: pair[1] is None):
        p.grad = (all_sum(torch.zeros_like(p) if g is None else g) / rows).to(p.dtype)
    return (all_sum(total.detach()) / rows).item()


wrong("returning early on a rank without examples", ("calls", "ragged"),
      "total, grads =",
      "if not len(batch[0]):\n        for p in params: p.grad = torch.zeros_like(p)\n        "
      "return 0.0\n    total, grads =")
wrong("asking for one sum more on the rank that has most examples", ("calls", "ragged"),
      "return out", "if len(batch[0]) > 6: all_sum(torch.ones(()))\n    return out")
wrong("leaving None where no rank has a gradient", "idle",
      "return out", "for p in params:\n        if not p.grad.any(): p.grad = None\n    return out",
      says="gradient of parameter idle")
wrong("adding to the gradients of the step before", "old",
      "total, grads =", "before = [p.grad for p in params]; total, grads =", "return out",
      "for p, g in zip(params, before, strict=True): p.grad = p.grad if g is None else p.grad + "
      "g\n    return out", says="gradient of parameter")
wrong("keeping old gradients where the rank has none of its own", "old",
      "total, grads =", "before = [p.grad for p in params]; total, grads =", "return out",
      "for p, g in zip(params, before, strict=True):\n        if g is not None and not "
      "p.grad.any(): p.grad = g\n    return out", says="gradient of parameter idle")
wrong("returning the rank's own mean loss", "loss",
      "mean.item()", "total.detach().item() / max(1, len(batch[0]))", says="mean loss on rank")
wrong("returning the mean loss as a tensor", "loss",
      "return out", "return mean", says="type of the mean loss")
wrong("taking a step with the gradients", "values",
      "return out",
      "with torch.no_grad():\n        for p in params: p -= 0.1 * p.grad\n    return out")
