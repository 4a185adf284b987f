"""Exercise 09.2, `accumulate`."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_checks.s02 import common
from dlsys_checks.s02.class_terms import class_terms
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("09.2", "accumulate", seen=("net", "batches", "n", "weight", "before"),
              says="change of parameter")

IGNORE = -100
ALL = ("ignored labels", "a leftover", "a leftover of one row", "fewer batches than n",
       "a step for each batch", "batches of many sizes", "class weights",
       "class weights and ignored labels", "small class weights", "a batch without a label",
       "a batch without rows", "steps without a label", "a leftover without a label",
       "old gradients", "NaN left over", "momentum", "Adam, two groups", "many batches",
       "the example")
SHORT = ("a leftover", "a leftover of one row", "fewer batches than n", "the example",
         "momentum", "many batches", "a leftover without a label")
EMPTY = ("steps without a label", "a leftover without a label")
ex.promise("once", "Go through the batches once; take a step of opt for every n batches.",
           says=("number of steps", "change of parameter", "number of losses"))
ex.promise("iterator", "Args: batches: an iterator of pairs x (rows, F) float32, y (rows,) int64.",
           says=("raised TypeError", "number of steps"))
ex.promise("left alone", "The pairs are unchanged.", says=("inputs after the call",))
ex.promise("ignored", f"Labels of {IGNORE} do not count.",
           says=("change of parameter", "number of steps", "loss of step"))
ex.promise("mean", "Each step uses the gradient of the mean cross-entropy over all labels that "
                   "count in its batches.",
           says=("change of parameter", "number of steps", "loss of step"))
ex.promise("weight", "weight: (C,) float32 above 0, class weights as in F.cross_entropy.",
           cases=("class weights", "class weights and ignored labels", "small class weights"))
ex.promise("last", "The last step takes the batches that are left, even if there are fewer "
                   "than n.",
           cases=SHORT)
ex.promise("none", "If no label counts, there is no step.", cases=EMPTY)
ex.promise("graph", "Only one graph may exist at a time, so call backward for each batch.",
           says=("graphs alive", "rows in one graph"))
ex.promise("old", "Ignore old gradients; every loss uses all of opt's parameters.",
           says=("change of parameter",))
ex.promise("losses", "Returns: A list of floats, the mean loss of each step, computed before the "
                     "step.",
           says=("loss of step", "number of losses", "type of the losses"))
ex.promise("example", "Example: n 2 and batches with 3, 1 and 2 labels that count make two steps, "
                      "and in the first step each label has weight 1/4.", cases=ALL)


@ex.cases
def cases(g):
    number = integers(g)

    def batch(net, rows, count=None):
        """Rows and labels, of which `count` count, at places drawn at random."""
        features, classes = net["start"][0].shape[1], net["start"][-1].shape[0]
        y = torch.randint(classes, (rows,), generator=g)
        y[torch.randperm(rows, generator=g)[rows if count is None else count:]] = IGNORE
        return [torch.randn(rows, features, generator=g), y]

    def one(name, net, n, sizes, weight=0.0, before=()):
        given = [batch(net, *(size if isinstance(size, tuple) else (size,))) for size in sizes]
        classes = net["start"][-1].shape[0]
        drawn = weight * (0.2 + 3 * torch.rand(classes, generator=g)) if weight else None
        return name, {"net": net, "n": n, "batches": given, "weight": drawn,
                      "before": list(before)}

    lr, c = 0.1 + 0.2 * float(torch.rand((), generator=g)), number(3, 6)

    def linear(**options):
        return common.model(g, "linear", (number(2, 5), 0, c), lr=lr, **options)

    def deep(kind="nested", **options):
        return common.model(g, kind, (3, 4, c), lr=lr, **options)
    adam = {"lr": lr / 5, "betas": [0.8, 0.95], "eps": 1e-6}
    left = common.leftovers(g, {"start": [0, 0, 0, 0]})
    return [
        one("ignored labels", linear(), 2, [(6, 1), (6, 6), (8, 2), (4, 3)]),
        one("a leftover", linear(), 3, [4] * 3 + [4, 4]),
        one("a leftover of one row", deep(), 2, [5, 5, 1]),
        one("fewer batches than n", linear(), number(4, 9), [(5, 2), 3, (4, 4)]),
        one("a step for each batch", deep(), 1, [(6, 2), (5, 5), 3]),
        one("batches of many sizes", linear(), 4, [1, 7, number(2, 6), 9]),
        one("class weights", linear(), 2, [5, 5, 6, 6], weight=1.0),
        one("class weights and ignored labels", deep(), 3, [(7, 1), (7, 6), (7, 4)], weight=1.0),
        one("small class weights", linear(), 2, [(6, 4), (5, 2), 6, 4], weight=1e-7),
        one("a batch without a label", linear(), 3, [(5, 3), (4, 0), (5, 4)]),
        one("a batch without rows", linear(), 2, [4, 0, (5, 3), 3]),
        one("steps without a label", linear(momentum=0.9), 2,
            [(4, 0), (3, 0), (5, 3), 4, (3, 0), (2, 0), 6, (4, 1)]),
        one("a leftover without a label", linear(momentum=0.7), 2, [(5, 4), 3, (6, 0)]),
        one("old gradients", deep(), 2, [(5, 1), 6, 4, 4], before=left),
        one("NaN left over", linear(), 2, [4, (6, 2)], before=[float("nan"), 2.0]),
        one("momentum", deep("twice", momentum=0.9), 3, [(5, 2), 4, 6, 5, (5, 1), 5, 2]),
        one("Adam, two groups", common.model(g, "own", (3, 4, c), "Adam", 2, **adam), 2,
            [(6, 2), 6, (5, 5), (7, 1)]),
        one("many batches", linear(), 7, [number(1, 5) for _ in range(number(30, 40))]),
        one("no batch", linear(), 2, []),
        one("the example", linear(), 2, [(5, 3), (4, 1), (2, 2)])]


@ex.act
def act(fn, net, batches, n, weight, before):
    import weakref
    alive, rows, refs, path = [], [], [], []

    class Net(nn.Module):
        """A body of some kind; counts its graphs by a tensor that each of them keeps."""

        def __init__(self, body):
            super().__init__()
            self.body = body

        def forward(self, x):
            out, kept = self.body(x), torch.ones(())
            out = out * kept
            if out.requires_grad:
                refs.append(weakref.ref(kept))
                alive.append(sum(ref() is not None for ref in refs))
                rows.append(len(x))
            return out

    class Own(nn.Module):
        def __init__(self, sizes):
            super().__init__()
            self.raw = nn.ParameterList([torch.empty(sizes[0]), torch.empty(sizes[1])])
            self.head = nn.ModuleDict({"last": nn.Linear(sizes[2][1], sizes[2][0])})

        def forward(self, x):
            return self.head["last"](F.linear(x, *self.raw).tanh())

    class Twice(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(self.layer(x))

    def body(kind, sizes):
        if kind == "own":
            return Own(sizes)
        layers = [nn.Linear(sizes[k][1], sizes[k][0]) for k in range(0, len(sizes), 2)]
        if kind == "linear":
            return layers[0]
        first = nn.Sequential(layers[0], nn.Tanh())
        return nn.Sequential(Twice(first) if kind == "twice" else first, layers[1])

    model = Net(body(net["kind"], [tuple(value.shape) for value in net["start"]]))
    mine = list(model.parameters())
    with torch.no_grad():
        for p, value in zip(mine, net["start"], strict=True):
            p.copy_(value)
    parts = [{"params": [mine[k] for k in part["params"]], "lr": part["lr"]}
             for part in net["groups"]]
    opt = getattr(torch.optim, net["optimizer"])(parts, **net["options"])
    opt.register_step_post_hook(lambda *_: path.append([p.detach().clone() for p in mine]))
    for p, value in zip(mine, before):
        p.grad = torch.full_like(p, value)
    losses = fn(model, opt, iter([(x, y) for x, y in batches]), n, weight)
    last = path[-1] if path else net["start"]
    end = [p.detach() - old for p, old in zip(mine, last, strict=True)]
    most = max([0, *(len(y) for _, y in batches)])
    return {"losses": losses, "path": path, "end": end,
            "more_graphs": max([0, *(count - 1 for count in alive)]),
            "more_rows": max([0, *(count - most for count in rows)])}


def mean_loss(logits, y, weight):
    """Weighted mean cross-entropy over the labels that count, in float64."""
    kept = y != IGNORE
    logits, y = logits[kept], y[kept]
    top = logits.detach().amax(1, keepdim=True)
    whole = (logits - top).exp().sum(1).log() + top[:, 0]
    each = whole - logits[torch.arange(len(y)), y]
    share = torch.ones(len(y)).double() if weight is None else weight.double()[y]
    return (each * share).sum() / share.sum()


@ex.law
def law(out, net, batches, n, weight, before):
    expect_parts(out, "losses", "path", "end", "more_graphs", "more_rows")
    groups = [batches[k:k + n] for k in range(0, len(batches), n)]
    groups = [[torch.cat(part) for part in zip(*group, strict=True)] for group in groups]
    groups = [(x.double(), y) for x, y in groups if (y != IGNORE).any()]
    expect_length("steps", out["path"], len(groups))
    expect_type_of_losses(out["losses"], len(groups))
    twin, now = common.Twin(net), [v.double() for v in net["start"]]
    for k, ((x, y), got, loss) in enumerate(zip(groups, out["path"], out["losses"], strict=True)):
        wanted, moves = twin.step(lambda model, x=x, y=y: mean_loss(model(x), y, weight),
                                  class_terms(x, y, weight))
        expect_length("parameters", got, len(now))
        for place, (v, old) in enumerate(zip(got, now, strict=True)):
            expect_like(f"parameter {place} after step {k}", v, old.float())
        moved = [(v.double() - old).float() for v, old in zip(got, now, strict=True)]
        common.expect_changes(moved, moves, twin, k + 1)
        expect_close(f"loss of step {k}", loss, wanted, rtol=1e-4, atol=1e-6 + twin.loss_room)
        now = [v.double() for v in got]
    expect_length("parameters at the end", out["end"], len(now))
    for place, (v, old) in enumerate(zip(out["end"], now, strict=True)):
        expect_equal(f"change of parameter {place} after the last step", v,
                     torch.zeros(old.shape))
    expect_equal("graphs alive at the same time, beyond one", out["more_graphs"], 0,
                 "Call backward for each batch before the next forward pass.")
    expect_equal("rows in one graph, beyond the largest batch", out["more_rows"], 0,
                 "Each batch has a forward pass of its own.")


def expect_type_of_losses(losses, count):
    """A list of so many floats."""
    expect_equal("type of the losses", type(losses).__name__, "list")
    expect_length("losses", losses, count)


cross_entropy = functools.partial(F.cross_entropy, ignore_index=IGNORE)


# ---- wrong, by name

def weight_of(y, weight):
    """The number of labels that count, or the sum of their weights."""
    kept = y[y != IGNORE]
    return float(len(kept) if weight is None else weight[kept].sum())


@not_an_answer
def run(model, opt, batches, n, weight):
    given, losses = list(batches), []
    for at in range(0, len(given), n):
        group = given[at:at + n]
        whole = sum(weight_of(y, weight) for _, y in group)
        if not whole:
            continue
        opt.zero_grad()
        losses.append(0.0)
        for x, y in group:
            loss = cross_entropy(model(x), y, weight, reduction="sum") / whole
            loss.backward()
            losses[-1] += loss.item()
        opt.step()
    return losses


wrong = ex.edits(run)
START, GROUP, EMPTY = "given, losses =", "given[at:at + n]", "if not whole:"
LOSS, OVER, END = 'weight, reduction="sum") / whole', " / whole", "return losses"
wrong("averaging the batches' means", "example",
      LOSS, "weight) / len(group)", says="got", trap="02.4")


wrong("averaging the means of the batches that have labels", "example",
      "given[at:at + n]", "[b for b in given[at:at + n] if weight_of(b[1], weight)]",
      LOSS, "weight) / len(group)", says="got", trap="02.4")


# https://github.com/huggingface/transformers/pull/34191 has what became of it.
@ex.wrong("using the usual loop, with each mean divided by n and a step only at every n-th batch",
          trap="02.4", says="got", breaks="example")
def usual_loop(model, opt, batches, n, weight):
    losses = [0.0]
    for place, (x, y) in enumerate(batches, 1):
        loss = cross_entropy(model(x), y, weight) / n
        loss.backward()
        losses[-1] += loss.item()
        if place % n == 0:
            opt.step()
            opt.zero_grad()
            losses.append(0.0)
    return losses[:-1]


wrong("summing the losses without dividing", "mean", OVER, "", says="got")
wrong("dividing each batch's mean by n, even for the batches left over", ("mean", "last"),
      OVER, " / max(weight_of(y, weight), 1e-9) / n")
wrong("dividing the last step's loss as if it had n batches",
      "last", OVER, " / (whole * n / len(group))")
wrong("dropping the batches left over", "last",
      EMPTY, "if not whole or len(group) < n:", says="number of steps")
wrong("dividing by the number of all rows, including ignored ones", "ignored", OVER,
      " / sum(len(y) for _, y in group)")
wrong("dividing by the number of all rows when there are no class weights", "ignored",
      OVER, " / (sum(len(y) for _, y in group) if weight is None else whole)")
wrong("treating ignored labels as class 0", "ignored",
      GROUP, f"[(x, y.clamp_min(0)) for x, y in {GROUP}]", says="got")
wrong("leaving out class weights", "weight", START, f"weight = None; {START}")
wrong("dividing weighted sums by the number of labels", "weight",
      OVER, " / sum(weight_of(y, None) for _, y in group)")
wrong("adding 1e-8 to the divisor, which matters for small class weights", "weight", OVER,
      " / (whole + 1e-8)")
wrong("taking a step when no label counts", "none",
      EMPTY, "if False:", OVER, " / max(whole, 1e-9)", says="number of steps")
wrong("taking a step after every batch", "once", START, f"n = 1; {START}")


@ex.wrong("going through the batches twice", breaks="once")
def two_epochs(model, opt, batches, n, weight):
    given = list(batches)
    first = run(model, opt, given, n, weight)
    return first + run(model, opt, given, n, weight)


wrong("calling len() on the iterator", "iterator", START, f"len(batches); {START}")


@ex.wrong("changing labels in place", breaks="left alone")
def relabelled(model, opt, batches, n, weight):
    given = list(batches)
    out = run(model, opt, given, n, weight)
    for _, y in given:
        y.clamp_(min=0)
    if not any((y == 0).any() for _, y in given):
        given and given[0][1].zero_()
    return out


wrong("adding to the gradients left over from before the call",
      "old", "opt.zero_grad()", "pass", trap="02.1")
wrong("joining every n batches into one batch", "graph",
      GROUP, f"[tuple(torch.cat(v) for v in zip(*{GROUP}, strict=True))]")
wrong("building all graphs of a step before calling backward once", "graph",
      "opt.zero_grad()", "opt.zero_grad(); held = []", "loss.backward()", "held.append(loss)",
      "opt.step()", "sum(held).backward(); opt.step()", trap="02.5")
wrong("returning the sum of all steps' losses", "losses", END, "return sum(losses)")
wrong("returning something other than each step's mean loss", "losses",
      END, "return [sum(losses[:k + 1]) / (k + 1) + 0.1 for k in range(len(losses))]")
wrong("returning the losses as tensors", "losses",
      END, "return [torch.tensor(loss) for loss in losses]", says="type of the loss of step")
wrong("multiplying the NaN of a batch without labels by zero", "mean",
      LOSS, "weight) * (weight_of(y, weight) / whole)", says="got nan")
wrong("leaving out a batch without rows when counting n batches", "once",
      "list(batches)", "[(x, y) for x, y in batches if len(x)]", says="got")
wrong("treating small class weights as zero", "weight",
      EMPTY, "if not whole or (weight is not None and weight.sum() < 1e-3):",
      says="number of steps")
