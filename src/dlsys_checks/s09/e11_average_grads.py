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
loss    | Return the mean loss of all ranks' examples. | mean loss
grads   | Put the gradients of this mean in .grad. | gradient of
ragged  | Args: losses_of(batch): the losses (n,) of this rank's n examples, with a graph; n >= 0
          can differ between ranks, and at least one rank has examples. | case ranks with different
          numbers of examples; a rank without examples; many examples; four ranks, two without
          examples; a branch on one rank; the example
idle    | params: the parameters; a parameter that no loss depends on gets zeros. | parameter idle;
          parameter branch; parameter twig
old     | Ignore old gradients in .grad. | case gradients of an earlier step
values  | The values of the parameters do not change. | values of the parameters
calls   | all_sum(tensor): returns the sum over ranks, a new tensor. All ranks must call it the same
          number of times, in the same order, with the same shapes and dtypes. | what the ranks ask
          for; parameter branch; parameter twig
example | Example: losses (1., 3.) on one rank and (8.,) on the other give 4.0 on both. | case the
          example
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
            one("ranks with different numbers of examples", [2, 7, 3]),
            one("a rank without examples", [0, 4]),
            one("four ranks, two without examples", [3, 0, 6, 0]),
            one("many examples", [150, 90]), one("losses below zero", [4, 4], shift=-90.0),
            one("a branch on one rank", [5, 2], ["none", "both"]),
            one("a branch on the other rank", [3, 3], ["both", "none"]),
            one("a different branch on each rank", [3, 3], ["twig", "branch"]),
            one("a parameter that no rank uses", [3, 3], ["none", "none"]),
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


@not_an_answer
def averaged(losses_of, params, batch, all_sum):
    total = losses_of(batch).sum()
    grads = torch.autograd.grad(total, params, allow_unused=True, materialize_grads=True)
    rows = all_sum(torch.tensor(float(len(batch[0]))))
    for p, g in zip(params, grads, strict=True):
        p.grad = (all_sum(g) / rows).to(p.dtype)
    mean = all_sum(total.detach()) / rows
    return mean.item()


# ---- wrong, by name

wrong = ex.edits(averaged)
OWN, RANKS = "max(1, len(batch[0]))", "all_sum(torch.ones(()))"
wrong("keeping each rank's own gradients and loss", ("grads", "ragged", "loss"),
      "all_sum(g) / rows", f"g / {OWN}",
      "all_sum(total.detach()) / rows", f"total.detach() / {OWN}",
      says="gradient of parameter")
wrong("averaging the loss over the ranks, but not the gradients", "grads",
      "all_sum(g) / rows", f"g / {OWN}", says="gradient of parameter")
wrong("expecting all_sum to write into its tensor, as all_reduce does", ("grads", "ragged"),
      "(all_sum(g) / rows).to(p.dtype)", "(g / rows).to(p.dtype); all_sum(p.grad)",
      says="gradient of parameter")
wrong("summing the gradients over the ranks without dividing", "grads",
      "all_sum(g) / rows", "all_sum(g)", says="gradient of parameter")
wrong("dividing by the number of ranks, not by the number of examples", "grads",
      "all_sum(g) / rows", f"all_sum(g) / {RANKS}", says="gradient of parameter")
wrong("averaging the ranks' means, as if all ranks had equally many examples", "ragged",
      "all_sum(g) / rows", f"all_sum(g / {OWN}) / {RANKS}",
      "all_sum(total.detach()) / rows", f"all_sum(total.detach() / {OWN}) / {RANKS}",
      says="gradient of parameter")
wrong("using the mean of a rank without examples, which is NaN", "ragged",
      "losses_of(batch).sum()", "losses_of(batch).mean() * len(batch[0])",
      says="mean loss on rank")
wrong("skipping all_sum when a rank has no gradient of its own", "calls",
      ", materialize_grads=True", "",
      "(all_sum(g)", "torch.zeros_like(p) if g is None else (all_sum(g)")
wrong("calling all_sum first for the parameters that have a gradient on this rank", "calls",
      ", materialize_grads=True", "",
      "all_sum(g)", "all_sum(torch.zeros_like(p) if g is None else g)",
      "zip(params, grads, strict=True)",
      "sorted(zip(params, grads, strict=True), key=lambda pair: pair[1] is None)",
      says="gradient of parameter")
wrong("returning early on a rank without examples", ("calls", "ragged"),
      "total =",
      "if not len(batch[0]):\n        for p in params: p.grad = torch.zeros_like(p)\n        "
      "return 0.0\n    total =")
wrong("calling all_sum one extra time on the rank with the most examples", ("calls", "ragged"),
      "return mean", "if len(batch[0]) > 6: all_sum(torch.ones(()))\n    return mean")
wrong("leaving .grad at None when no rank has a gradient", "idle",
      "return mean",
      "for p in params:\n        if not p.grad.any(): p.grad = None\n    return mean",
      says="gradient of parameter idle")
wrong("adding to the gradients of the previous step", "old",
      "(all_sum(g) / rows)", "((0 if p.grad is None else p.grad) + all_sum(g) / rows)",
      says="gradient of parameter")
wrong("letting backward add to old gradients, and summing both over the ranks", "old",
      "all_sum(g) / rows", "all_sum(g / rows + (0 if p.grad is None else p.grad))",
      says="gradient of parameter")
wrong("keeping an old gradient when no rank has a new one", "old",
      "p.grad = (all_sum(g) / rows).to(p.dtype)",
      "mean = all_sum(g) / rows; p.grad = mean if p.grad is None or mean.any() else p.grad",
      says="gradient of parameter idle")
wrong("returning the rank's own mean loss", "loss",
      "mean.item()", f"total.item() / {OWN}", says="mean loss on rank")
wrong("returning the mean loss as a tensor", "loss",
      "mean.item()", "mean", says="type of the mean loss")
wrong("updating the parameters as well", "values",
      "return mean",
      "with torch.no_grad():\n        for p in params: p -= 0.1 * p.grad\n    return mean")
