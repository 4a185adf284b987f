"""What the exercises that train share: small models, and steps by hand in float64."""

from __future__ import annotations

import torch

from dlsys_checks.rounding import ROUNDED, settled
from dlsys_helpers.expect import expect_close, expect_length

# Kinds of models; their parameters in order. "nested", "own" and "spare" compute the same from
# A, a, B, b; "spare" has a third layer that no forward pass uses; "twice" uses a layer twice.


def model(g, kind, sizes, optimizer="SGD", groups=1, frozen=(), size=1.0, **options):
    """One model as plain data: features, hidden and outputs in `sizes`, its optimizer beside it."""
    features, hidden, outputs = sizes
    first = features if kind == "twice" else hidden
    shapes = [(outputs, features), (outputs,)] if kind == "linear" else [
        (first, features), (first,), (outputs, first), (outputs,)]
    shapes += [(2, 3), (2,)] if kind == "spare" else []
    start = [torch.randn(*shape, generator=g) * size for shape in shapes]
    rates = torch.rand(groups, generator=g).tolist()
    cut = [list(range(len(shapes)))[k::groups] for k in range(groups)]
    return {"kind": kind, "start": start, "frozen": list(frozen), "optimizer": optimizer,
            "groups": [{"params": where, "lr": options["lr"] * (1 + k + rate)}
                       for k, (where, rate) in enumerate(zip(cut, rates, strict=True))],
            "options": {k: v for k, v in options.items() if k != "lr"}}


def leftovers(g, net, size=3.0):
    """A left-over gradient for each parameter of a model, as one number each."""
    return (size * (1 + torch.rand(len(net["start"]), generator=g))).tolist()


def output(kind, p, x, tanh=torch.tanh):
    """What a model of this kind gives for x; p: its parameters."""
    if kind == "linear":
        return x @ p[0].T + p[1]
    h = tanh(x @ p[0].T + p[1])
    if kind == "twice":
        h = tanh(h @ p[0].T + p[1])
    return h @ p[2].T + p[3]


def steep(z):
    """tanh with a slope of 1: the term that 1 - tanh**2 begins with, of which little may be left.
    """
    return z + (z.tanh() - z).detach()


def slopes(net, p, loss_of):
    """Loss and gradients in float64; None for a parameter that gets no gradient."""
    p = [v.detach().requires_grad_(k not in net["frozen"]) for k, v in enumerate(p)]
    live = [v for v in p if v.requires_grad]
    loss = loss_of(p)
    found = iter(torch.autograd.grad(loss, live, allow_unused=True))
    return loss.item(), [next(found) if v.requires_grad else None for v in p]


def stepped(net, options, p, slope, memory):
    """A parameter after one step of SGD, Adam or AdamW by its formula; memory is its own."""
    options = net["options"] | options
    lr = options["lr"]
    if net["optimizer"] == "SGD":
        memory["v"] = options.get("momentum", 0.0) * memory.get("v", 0.0) + slope
        return p - lr * memory["v"]
    t = memory["t"] = memory.get("t", 0) + 1
    b1, b2 = options["betas"]
    memory["m"] = b1 * memory.get("m", 0.0) + (1 - b1) * slope
    memory["s"] = b2 * memory.get("s", 0.0) + (1 - b2) * slope**2
    root = (memory["s"] / (1 - b2**t)).sqrt() + options["eps"]
    decayed = p * (1 - lr * options.get("weight_decay", 0.0))
    return decayed - lr * memory["m"] / (1 - b1**t) / root


def error_terms(x, y):
    """What is added up for the gradient of the mean squared error: row by row, out and y apart."""
    def rows(net):
        out = net(x)
        return 2 / len(y) * (out.detach().abs() + y.abs()) * out
    return rows


class Twin:
    """A model in float64 that steps by hand.

    Two others step beside it, with gradients that are larger or smaller by what rounding may do to
    them. `room` says how far their last changes are from the model's, and `loss_room` how far their
    losses before that step. That is much where a gradient cancels and Adam divides it by its own
    size.
    """

    def __init__(self, net):
        self.net = net
        self.ways = [([v.double() for v in net["start"]], [{} for _ in net["start"]])
                     for _ in range(3)]
        self.room, self.loss_room = [0.0] * len(net["start"]), 0.0

    @property
    def p(self):
        """The parameters as they are now."""
        return self.ways[0][0]

    def step(self, loss_of, terms_of=None):
        """Loss before a step, and the changes that the step makes; loss_of(output of x).

        terms_of(output of x): numbers whose gradients are the terms of the gradient; without it no
        room is left for rounding.
        """
        terms = self._terms(terms_of) if terms_of else [0.0] * len(self.p)
        loss, changes = self._moved(0, loss_of, terms)
        if terms_of:
            (high, ups), (low, downs) = (self._moved(way, loss_of, terms) for way in (1, -1))
            self.loss_room = max(abs(high - loss), abs(low - loss))
            self.room = [torch.maximum((up - mine).abs(), (down - mine).abs())
                         for mine, up, down in zip(changes, ups, downs, strict=True)]
        return loss, changes

    def _moved(self, way, loss_of, terms):
        """Loss and changes of the model, or of the one whose gradients are larger or smaller."""
        net, (p, memory) = self.net, self.ways[way]
        loss, found = slopes(net, p, lambda p: loss_of(lambda x: output(net["kind"], p, x)))
        options = {k: group for group in net["groups"] for k in group["params"]}
        after = [v if slope is None else stepped(
            net, options[k], v, slope + way * ROUNDED * size, memory[k])
            for k, (v, slope, size) in enumerate(zip(p, found, terms, strict=True))]
        changes = [new - old for new, old in zip(after, p, strict=True)]
        p[:] = after
        return loss, changes

    def _terms(self, terms_of):
        """The sizes of the terms of each parameter's gradient, added up."""
        p = [v.detach().requires_grad_() for v in self.p]
        rows = terms_of(lambda x: output(self.net["kind"], p, x, steep)).flatten()
        found = torch.autograd.grad(rows, p, torch.eye(len(rows), dtype=rows.dtype),
                                    allow_unused=True, is_grads_batched=True)
        return [0.0 if one is None else one.abs().sum(0) for one in found]


def expect_changes(got, wanted, twin, call):
    """Every parameter of a model moved as by hand, to a thousandth of the largest change."""
    expect_length(f"changed parameters in call {call}", got, len(wanted))
    for k, (mine, right) in enumerate(zip(got, wanted, strict=True)):
        # A parameter in float32 cannot show a change finer than its own rounding.
        atol = 1e-4 * float(right.abs().max()) + 3e-7 * float(twin.p[k].abs().max())
        what = f"change of parameter {k} in call {call}"
        mine = settled(what, mine, right.float(), twin.room[k])
        expect_close(what, mine, right.float(), rtol=1e-3, atol=atol,
                     look="Every call should take one step with every parameter.")
