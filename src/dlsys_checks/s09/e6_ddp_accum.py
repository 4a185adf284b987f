"""Exercise 09.6, `ddp_accum`.

The wrapper of the cases is a stand-in for DDP in one process: like DDP it decides in forward
whether the backward pass exchanges gradients. Its exchange averages with a rank that has zeros.
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("09.6", "ddp_accum", seen=("start", "xs", "ys", "every", "momentum", "old"))

ex.promise_table("""
updates  | Make one update per `every` batches and return the number of updates. | batches that an
           update follows; returned number of updates; order of the batches
leftover | Args: batches: (x, y) pairs with equally many rows; the batches left over at the end make
           a last update of their own. | case one left over; two left over, momentum; fewer batches
           than one update takes; the example
mean     | An update uses the mean of its batches' losses, loss_fn(ddp(x), y). | parameters after
           the pass
old      | Ignore old gradients in .grad. | case gradients from before
in turn  | Each batch takes one forward pass through ddp, followed by its backward pass. | order of
           forward and backward; rows of the forward passes
exchange | Ranks exchange gradients once per update, in the update's last backward pass. | batches
           with an exchange
after    | Afterwards ddp exchanges gradients again. | exchanges in a pass after the call
example  | Example: 5 batches with every 2 make 3 updates, with exchanges in batches 2, 4 and 5. |
           case the example
""")


@ex.cases
def cases(g):
    def one(name, n, every, momentum=0.0, old=False, rows=4):
        return name, {"start": torch.randn(3, generator=g), "every": every, "old": old,
                      "momentum": momentum, "xs": list(torch.randn(n, rows, 3, generator=g)),
                      "ys": list(torch.randn(n, rows, generator=g))}
    return [one("nothing left over", 6, 3), one("one left over", 7, 3, rows=2),
            one("two left over, momentum", 8, 3, momentum=0.9),
            one("an update for each batch", 3, 1, rows=1),
            one("fewer batches than one update takes", 3, 8), one("one batch", 1, 1, rows=5),
            one("no batches", 0, 2), one("six updates", 12, 2),
            one("one long update", 9, 9, momentum=0.5),
            one("gradients from before", 4, 2, old=True), one("the example", 5, 2)]


@ex.act
def act(fn, start, xs, ys, every, momentum, old):
    import contextlib

    tape, rows, taken = [], [], []

    class Wrapper(nn.Module):
        """Decides in forward, as DDP does, whether the backward pass exchanges."""

        def __init__(self, module):
            super().__init__()
            self.module, self.require_backward_grad_sync = module, True
            self.waiting, self.armed = set(), False
            for p in module.parameters():
                p.register_post_accumulate_grad_hook(self.ready)

        @contextlib.contextmanager
        def no_sync(self):
            before = self.require_backward_grad_sync
            self.require_backward_grad_sync = False
            try:
                yield
            finally:
                self.require_backward_grad_sync = before

        def forward(self, x):
            tape.append("forward")
            rows.append(len(x))
            taken.append([k for k, own in enumerate(xs) if torch.equal(own, x)])
            self.waiting = {id(p) for p in self.module.parameters()}
            self.armed = self.require_backward_grad_sync
            return self.module(x)

        def ready(self, p):
            self.waiting.discard(id(p))
            if not self.waiting:
                tape.append("backward")
                if self.armed:
                    self.armed = False
                    tape.append("exchange")
                    for p in self.module.parameters():
                        p.grad.mul_(0.5)

    class Noted(torch.optim.SGD):
        def step(self, closure=None):
            tape.append("step")
            return super().step(closure)

    def loss_fn(output, y):
        return ((output[:, 0] - y) ** 2).mean()

    ddp = Wrapper(nn.Linear(3, 1))
    with torch.no_grad():
        ddp.module.weight.copy_(start)
        ddp.module.bias.zero_()
    optimizer = Noted(ddp.parameters(), lr=0.1, momentum=momentum)
    for p in ddp.parameters():
        p.grad = torch.full_like(p, 3.0) if old else None
    updates = fn(ddp, optimizer, loss_fn, [(x.clone(), y.clone()) for x, y in zip(xs, ys)], every)
    after = [p.detach().clone() for p in ddp.parameters()]

    def batches_at(word):
        return [tape[:k].count("forward") for k, one in enumerate(tape) if one == word]

    found = {"updates": updates, "weights": torch.cat([p.flatten() for p in after]),
             "order": [one for one in tape if one in ("forward", "backward")], "rows": list(rows),
             "taken": [places[0] if places else -1 for places in taken],
             "exchanges": batches_at("exchange"), "steps": batches_at("step")}
    tape.clear()
    ddp(torch.ones(2, 3)).sum().backward()
    return found | {"again": tape.count("exchange")}


@ex.law
def law(out, start, xs, ys, every, momentum, old):
    expect_parts(out, "updates", "weights", "order", "rows", "taken", "exchanges", "steps", "again")
    n = len(xs)
    ends = [k for k in range(1, n + 1) if k % every == 0 or k == n]
    expect_equal("rows of the forward passes through ddp", out["rows"], [len(x) for x in xs])
    expect_equal("order of the batches", out["taken"], list(range(n)))
    expect_equal("order of forward and backward", out["order"], ["forward", "backward"] * n)
    of = f", {n} batches, every {every}"
    expect_equal(f"batches that an update follows{of}", out["steps"], ends)
    expect_equal(f"batches with an exchange{of}", out["exchanges"], ends,
                 "What counts is whether forward runs inside no_sync.")
    expect_equal(f"returned number of updates{of}", out["updates"], len(ends))
    expect_close("parameters after the pass", out["weights"],
                 by_hand(start, xs, ys, ends, momentum), rtol=1e-3)
    expect_equal("exchanges in a pass after the call", out["again"], 1)


def by_hand(start, xs, ys, ends, momentum):
    """Weights and bias after gradient descent on whole groups, in float64."""
    weight, speed = torch.cat([start.double(), torch.zeros(1, dtype=torch.float64)]), 0.0
    begin = 0
    for end in ends:
        x, y = torch.cat(xs[begin:end]).double(), torch.cat(ys[begin:end]).double()
        x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
        grad = 0.5 * (2 * (x @ weight - y) @ x / len(x))  # the other rank has zeros
        speed = momentum * speed + grad
        weight = weight - 0.1 * speed
        begin = end
    return weight.float()


def groups_of(batches, every):
    return [batches[k:k + every] for k in range(0, len(batches), every)]


# ---- wrong, by name

@not_an_answer
def accumulated(ddp, optimizer, loss_fn, batches, every, *, size=None):
    groups = groups_of(batches, every)
    for group in groups:
        optimizer.zero_grad()
        for k, (x, y) in enumerate(group):
            silent = k < len(group) - 1
            with ddp.no_sync() if silent else contextlib.nullcontext():
                (loss_fn(ddp(x), y) / (len(group) if size is None else size(group))).backward()
        optimizer.step()
    out = len(groups)
    return out


wrong = ex.edits(accumulated)
wrong("running the forward pass outside no_sync, so that every batch exchanges gradients",
      "exchange",
      "silent =", "loss =", "k < len(group) - 1", "loss_fn(ddp(x), y) / len(group)",
      "if silent", "if k < len(group) - 1",
      "loss_fn(ddp(x), y) / (len(group) if size is None else size(group))", "loss")
wrong("never exchanging gradients for the batches left over", "leftover",
      "k < len(group)", "k < every", says="batches with an exchange")
wrong("never exchanging gradients", "exchange", "k < len(group) - 1", "True")
wrong("exchanging gradients in an update's first batch instead of its last",
      "exchange", "k < len(group) - 1", "k > 0")
wrong("dropping the batches left over", "leftover",
      "(batches, every)", "(batches[:len(batches) // every * every], every)",
      says="rows of the forward passes")
wrong("adding the batches left over to the previous update", "leftover",
      "groups =", "own_groups =", "every)",
      "every)\n    if len(own_groups) > 1 and len(own_groups[-1]) < every: own_groups[-2:] = "
      "[own_groups[-2] + own_groups[-1]]\n    groups = own_groups",
      says="batches that an update follows")
wrong("always dividing by 'every', so that the batches left over count too little",
      "leftover",
      "len(group) if size is None else size(group)", "every", says="parameters after the pass")
ex.wrong("summing losses instead of averaging", accumulated, breaks="mean", size=lambda group: 1)
ex.wrong("dividing the losses by the number of ranks as well", accumulated, breaks="mean",
         size=lambda group: 2 * len(group))
wrong("keeping gradients from before the call", "old",
      "optimizer.zero_grad()", "pass", "step()", "step(); optimizer.zero_grad()",
      says="parameters after the pass")


@ex.wrong("never clearing gradients between updates", breaks="mean")
def never_cleared(ddp, optimizer, loss_fn, batches, every):
    groups = groups_of(batches, every)
    optimizer.zero_grad()
    for group in groups:
        for k, (x, y) in enumerate(group):
            with ddp.no_sync() if k < len(group) - 1 else contextlib.nullcontext():
                (loss_fn(ddp(x), y) / len(group)).backward()
        optimizer.step()
    return len(groups)


@ex.wrong("calling ddp.module, which bypasses the wrapper", breaks="in turn")
def past(ddp, optimizer, loss_fn, batches, every):
    groups = groups_of(batches, every)
    for group in groups:
        optimizer.zero_grad()
        for x, y in group:
            (loss_fn(ddp.module(x), y) / len(group)).backward()
        optimizer.step()
    return len(groups)


wrong("joining the batches of an update into one batch", "in turn",
      "groups_of(batches, every)", "own_groups", "groups =",
      "own_groups = [[tuple(map(torch.cat, zip(*group, strict=True)))] for group in "
      "groups_of(batches, every)]; groups =")
wrong("running all forward passes of an update first, then one backward pass", "in turn",
      "groups =",
      "groups = groups_of(batches, every)\n    for group in groups: optimizer.zero_grad(); "
      "torch.stack([loss_fn(ddp(x), y) for x, y in group]).mean().backward(); optimizer.step()\n "
      "   return len(groups); groups =", says="order of forward")


@ex.wrong("making an update after each batch", breaks="updates")
def eager(ddp, optimizer, loss_fn, batches, every):
    groups = groups_of(batches, every)
    for group in groups:
        for k, (x, y) in enumerate(group):
            optimizer.zero_grad()
            with ddp.no_sync() if k < len(group) - 1 else contextlib.nullcontext():
                loss_fn(ddp(x), y).backward()
            optimizer.step()
    return len(groups)


wrong("returning the number of batches instead of updates",
      "updates", "return out", "return len(batches)")
wrong("leaving the wrapper's exchange switched off", "after",
      "return out", "ddp.require_backward_grad_sync = False; return out")
wrong("returning 2 updates instead of 3 in the example", "example",
      "return out", "return 2 if (len(batches), every) == (5, 2) else out",
      says="returned number of updates")


@ex.wrong("running the batches of an update from the last to the first", breaks="updates")
def backwards(ddp, optimizer, loss_fn, batches, every):
    groups = groups_of(batches, every)
    for group in groups:
        optimizer.zero_grad()
        for k, (x, y) in enumerate(group[::-1]):
            with ddp.no_sync() if k < len(group) - 1 else contextlib.nullcontext():
                (loss_fn(ddp(x), y) / len(group)).backward()
        optimizer.step()
    return len(groups)
