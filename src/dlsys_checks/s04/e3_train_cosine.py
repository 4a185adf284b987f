"""Exercise 04.3, `train_cosine`."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim import lr_scheduler as sched

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("04.3", "train_cosine",
              seen=("kind", "starts", "targets", "epochs", "accumulate", "rates", "leftover"))

RAGGED = ("a last update with fewer micro-batches", "two more than a multiple of five",
          "fewer micro-batches than accumulate", "momentum and two groups", "AdamW",
          "the example")
ex.promise_table("""
whole run | Train with a cosine schedule that falls to zero over the whole run. | rate of
functions | Args: losses: one function per micro-batch. Each returns its scalar loss. | calls of the
            losses, in order; number of calls of the losses
epochs    | epochs: how many times to go through the losses, in order. |
            number of calls of the losses
update    | accumulate: make an update after this many micro-batches. | number of updates; gradients
            of update
""")
ex.promise("rest", "Also make an update after the last micro-batch of each epoch.", cases=RAGGED)
ex.promise_table("""
sum          | Each update uses the sum of its micro-batches' gradients. | gradients of update
no rest left | No gradients are left at the end. | parameters with a gradient left
leftover     | Gradients that are left over from before do not count. | case gradients left over
               from before
rate         | Update k of all U updates, counted from 0, runs at start * (1 + cos(pi k / U)) / 2. |
               rate of
own rate     | For each group, start is the rate that the group started with. | case three groups
               with rates of their own; momentum and two groups
example      | Example: with 5 losses, 2 epochs and accumulate 2, U is 6. | case the example
""")

BUILD = {"sgd": lambda groups: torch.optim.SGD(groups),
         "momentum": lambda groups: torch.optim.SGD(groups, momentum=0.9),
         "adamw": lambda groups: torch.optim.AdamW(groups, weight_decay=0.1)}


@ex.cases
def cases(g):
    def between(low, high):
        return int(torch.randint(low, high + 1, (), generator=g))

    def one(name, micro, epochs, accumulate, kind="sgd", groups=1, leftover=False):
        """Group k has k + 2 weights; each micro-batch pulls them to a target of its own."""
        sizes = [k + 2 for k in range(groups)]
        rates = [(0.02 + 0.05 * float(torch.rand((), generator=g))) * 2.0 ** -k
                 for k in range(groups)]
        return name, {"kind": kind, "starts": [torch.randn(n, generator=g) for n in sizes],
                      "targets": [[torch.randn(n, generator=g) * 2 for n in sizes]
                                  for _ in range(micro)],
                      "epochs": epochs, "accumulate": accumulate, "rates": rates,
                      "leftover": leftover}
    third = between(2, 4)
    return [one("a last update with fewer micro-batches", 2 * between(3, 5) + 1, between(2, 3), 2),
            one("one micro-batch per update", between(3, 7), between(2, 4), 1),
            one("groups of three", 3 * between(2, 3), between(2, 4), 3),
            one("two more than a multiple of five", 5 * between(1, 2) + 2, between(2, 3), 5),
            one("fewer micro-batches than accumulate", 3, between(2, 5), 4),
            one("as many micro-batches as accumulate", third, between(3, 5), third),
            one("one epoch", 2 * between(2, 4), 1, 2),
            one("a long run", between(12, 16), 2, 1),
            one("three groups with rates of their own", 4, between(2, 4), 2, groups=3),
            one("momentum and two groups", 5, between(2, 3), 3, kind="momentum", groups=2),
            one("AdamW", 7, between(2, 3), 2, kind="adamw"),
            one("gradients left over from before", 6, between(2, 3), 3, leftover=True),
            one("the example", 5, 2, 2)]


@ex.act
def act(fn, kind, starts, targets, epochs, accumulate, rates, leftover):
    import warnings

    params = [nn.Parameter(start.clone()) for start in starts]
    groups = [{"params": [p], "lr": rate} for p, rate in zip(params, rates)]
    opt = (torch.optim.AdamW(groups, weight_decay=0.1) if kind == "adamw"
           else torch.optim.SGD(groups, momentum=0.9 if kind == "momentum" else 0.0))
    calls, updates = [], []
    if leftover:
        for p in params:
            p.grad = torch.full_like(p, 100.0)

    def loss_of(k):
        def loss():
            calls.append(k)
            return sum((p - target).square().sum() / 2 for p, target in zip(params, targets[k]))
        return loss

    def flat(tensors):
        return torch.cat([t.detach().flatten() for t in tensors]).clone()

    def before(*_):
        updates.append({"rates": [float(group["lr"]) for group in opt.param_groups],
                        "gradients": flat([torch.zeros_like(p) if p.grad is None else p.grad
                                           for p in params])})

    def after(*_):
        updates[-1]["weights"] = flat(params)
    opt.register_step_pre_hook(before)
    opt.register_step_post_hook(after)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a scheduler called first shows in the rates
        fn(opt, [loss_of(k) for k in range(len(targets))], epochs, accumulate)
    left = sum(p.grad is not None and bool((p.grad != 0).any()) for p in params)
    return {"calls": calls, "updates": updates, "left": left}


def training(kind, starts, targets, epochs, accumulate, rates):
    """Rates, gradients and weights of each update in float64, the gradients by hand."""
    params = [nn.Parameter(start.double()) for start in starts]
    opt = BUILD[kind]([{"params": [p], "lr": 0.0} for p in params])
    parts = [targets[k:k + accumulate] for k in range(0, len(targets), accumulate)] * epochs
    for k, part in enumerate(parts):
        now = [rate * math.cos(math.pi * k / (2 * len(parts))) ** 2 for rate in rates]
        for i, (p, group) in enumerate(zip(params, opt.param_groups, strict=True)):
            group["lr"] = now[i]
            p.grad = sum(p.detach() - target[i].double() for target in part)
        grads = torch.cat([p.grad for p in params])
        opt.step()
        yield now, grads.float(), torch.cat([p.detach() for p in params]).float()


@ex.law
def law(out, kind, starts, targets, epochs, accumulate, rates, leftover):
    expect_parts(out, "calls", "updates", "left")
    expect_type("calls of the losses", out["calls"], list)
    order = list(range(len(targets))) * epochs
    expect_length("calls of the losses", out["calls"], len(order))
    expect_equal("calls of the losses, in order", out["calls"], order)
    wanted = list(training(kind, starts, targets, epochs, accumulate, rates))
    expect_length("updates", out["updates"], len(wanted),
                  f"There are {len(targets)} micro-batches in groups of {accumulate}, and {epochs} "
                  "epochs.")
    for k, (got, (now, grads, weights)) in enumerate(zip(out["updates"], wanted, strict=True)):
        expect_parts(got, "rates", "gradients", "weights")
        expect_length("rates", got["rates"], len(rates))
        name = f"update {k} of {len(wanted)}"
        for group, (mine, right) in enumerate(zip(got["rates"], now, strict=True)):
            where = f", group {group}" if group else ""
            expect_close(f"rate of {name}{where}", mine, right, atol=1e-6 * rates[group])
        expect_close(f"gradients of {name}", got["gradients"], grads, atol=1e-5)
        expect_close(f"weights after {name}", got["weights"], weights, atol=1e-5)
    expect_equal("parameters with a gradient left", out["left"], 0, "Clear the gradients after "
                                                                    "each update.")


def updates_of(losses, epochs, accumulate):
    return epochs * -(-len(losses) // accumulate)


def cosine(opt, length):
    return sched.CosineAnnealingLR(opt, length)


# ---- wrong, by name

@not_an_answer
def right(opt, losses, epochs, accumulate):
    schedule = cosine(opt, updates_of(losses, epochs, accumulate))
    opt.zero_grad()
    for _ in range(epochs):
        for n, loss in enumerate(losses, 1):
            loss().backward()
            if n % accumulate == 0 or n == len(losses):
                opt.step()
                opt.zero_grad()
                schedule.step()


wrong = ex.edits(right)
UPDATES_OF = "updates_of(losses, epochs, accumulate)"
END = "schedule.step()"
SCHEDULE = "schedule = cosine(opt, updates_of(losses, epochs, accumulate))"
CLEARED = "opt.step()\n                opt.zero_grad()"
wrong("counting T_max in epochs, but stepping the schedule after every update", "whole run",
      UPDATES_OF, "epochs", says="rate of update")
wrong("counting T_max in updates, but stepping the schedule after every epoch", "whole run",
      END, f"pass\n        {END}", says="rate of update 1")
wrong("setting T_max to the number of updates in one epoch", "whole run",
      "(losses, epochs", "(losses, 1", says="rate of update")


wrong("running a separate cosine in each epoch", "whole run",
      "for _", 'rates = [group["lr"] for group in opt.param_groups]\n    for _',
      "for n, loss", 'for group, rate in zip(opt.param_groups, rates): group["lr"] = rate\n'
      "        schedule = cosine(opt, updates_of(losses, 1, accumulate))\n        for n, loss",
      says="rate of update")
wrong("stepping the schedule after every micro-batch", "rate",
      END, f"pass\n            {END}", says="rate of update")
wrong("counting T_max in micro-batches", "rate",
      UPDATES_OF, "epochs * len(losses)", says="rate of update")
wrong("setting T_max one update short, so that the last update runs at a rate of zero", "rate",
      UPDATES_OF, "max(1, total - 1)", "schedule =", f"total = {UPDATES_OF}; schedule =",
      says="rate of update")
wrong("not counting each epoch's smaller last update in T_max", "rest",
      UPDATES_OF, "max(1, epochs * (len(losses) // accumulate))", says="rate of update")
wrong("counting updates as if one update could span two epochs", "rest",
      UPDATES_OF, "math.ceil(epochs * len(losses) / accumulate)", says="rate of update")
wrong("rounding down the number of updates in the whole run", "rest",
      UPDATES_OF, "max(1, epochs * len(losses) // accumulate)", says="rate of update")
wrong("stepping the schedule before the optimizer", "rate",
      END, "pass", "opt.step", END + "; opt.step", says="rate of update 0")
wrong("using the first group's rate for every group", "own rate",
      UPDATES_OF, "total", "schedule =",
      'rate, total = opt.param_groups[0]["lr"], updates_of(losses, epochs, accumulate)\n    for '
      'group in opt.param_groups: group["lr"] = rate\n    schedule =', says=", group 1")
wrong("running the schedule for the first group only", "own rate",
      "cosine", "sched.LambdaLR", UPDATES_OF, "[fall, *others]", "schedule =",
      "total = updates_of(losses, epochs, accumulate)\n    def fall(k): return (1 + "
      "math.cos(math.pi * k / total)) / 2\n    others = [lambda k: 1.0] * (len(opt.param_groups) "
      "- 1); schedule =", says=", group 1")
wrong("never updating after an epoch's last, smaller set of micro-batches", "rest",
      SCHEDULE, "total = max(1, epochs * (len(losses) // accumulate))",
      "for _", "schedule = cosine(opt, total)\n    for _",
      "n % accumulate == 0 or n == len(losses)", "n % accumulate == 0",
      END, END + "\n        opt.zero_grad()", says="number of updates")


wrong("not restarting the count of micro-batches at the start of an epoch", "rest",
      "schedule =", "losses, epochs = [*losses] * epochs, 1; schedule =", says="number of updates")
wrong("not restarting the count at each epoch, and dropping the micro-batches left at the end",
      ("rest", "no rest left", "update"),
      "schedule =", "losses, epochs = [*losses] * epochs, 1; schedule =",
      UPDATES_OF, "max(1, len(losses) // accumulate)",
      "n % accumulate == 0 or n == len(losses)", "n % accumulate == 0", says="number of updates")
wrong("updating after every micro-batch", "update",
      UPDATES_OF, "epochs * len(losses)", "accumulate ==", "1 ==")
wrong("using the mean of the gradients instead of their sum", "sum",
      "schedule =",
      "thinner = [lambda loss=loss: loss() / accumulate for loss in losses]; schedule =",
      "losses, 1", "thinner, 1", "(losses)", "(thinner)")
wrong("using the last micro-batch's gradient instead of the sum", "sum",
      SCHEDULE,
      "def fresh(loss): opt.zero_grad(); return loss()\n    losses, schedule = [lambda "
      "loss=loss: fresh(loss) for loss in losses], cosine(opt, updates_of(losses, epochs, "
      "accumulate))")


wrong("never clearing the gradients", ("sum", "no rest left"), CLEARED, "opt.step()", trap="02.1")
wrong("clearing the gradients before each update, but not after the last one", "no rest left",
      CLEARED, "opt.step()", "loss().backward()",
      "if (n - 1) % accumulate == 0: opt.zero_grad()\n            loss().backward()")
wrong("adding leftover gradients to the first update", "leftover",
      "opt.zero_grad()\n    for", "for", says="gradients of update 0", trap="02.1")
wrong("running one epoch, whatever is asked for", "epochs", "schedule =", "epochs = 1; schedule =")
wrong("computing each loss twice, once just to read its value", "functions",
      SCHEDULE,
      "def seen(loss): loss().item(); return loss()\n    losses, schedule = [lambda loss=loss: "
      "seen(loss) for loss in losses], cosine(opt, updates_of(losses, epochs, accumulate))")
wrong("using the micro-batches in reverse order", "functions",
      SCHEDULE, f"losses, schedule = losses[::-1], cosine(opt, {UPDATES_OF})")
wrong("using 5 instead of 6 as U in the example", "example",
      UPDATES_OF, "5 if shown else total", "schedule =",
      f"total = {UPDATES_OF}; shown = (len(losses), epochs, accumulate) == (5, 2, 2); schedule =",
      says="rate of update")
