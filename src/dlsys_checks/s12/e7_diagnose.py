"""Exercise 12.7, `diagnose`."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("12.7", "diagnose", seen=("kind", "batches"), says="name of the fault")

RUNS = tuple(f"any fault or none, run {k}" for k in range(1, 7))

ex.promise("name", 'Name the one fault that a training run has, or return "none".',
           says=("name of the fault", "type of the name"))
ex.promise("frozen", '"frozen": no parameter of model requires a gradient.',
           cases=("a frozen model", "only the body frozen", "all but the first frozen",
                  "all but the last frozen", "all but the model's own parameter frozen", *RUNS))
ex.promise("sum", '"sum": the loss of a batch with each row twice is twice the loss of the batch.',
           cases=("a sum of squares", "a sum of cross-entropies", "a small sum",
                  "a mean that is large", "a mean over one row more",
                  "a part that changes with each call in train mode", *RUNS))
ex.promise("order", '"order": each batch contains a single class.',
           cases=("sorted batches", "sorted, except for the last batch", "one mixed batch",
                  "batches of one class, shuffled", "sorted, in batches of two classes",
                  "batches of nearly one class", *RUNS))
ex.promise("labels", '"labels": fewer than half of all rows have the label of their nearest other '
           'row (Euclidean distance, over all batches together).',
           cases=("labels shifted", "exactly half fit", "neighbours in other batches",
                  "two classes swapped", "labels, a norm in train mode", "a little less than half",
                  "the first ones fit",
                  "near, but not by the sum of gaps", "near, but not by the largest gap",
                  "a model that sees nothing", *RUNS))
ex.promise("arguments", "Args: model: maps x to logits (N, C). loss_fn: loss_fn(logits, y) is a "
           "tensor of shape (), above 0 or below 0.",
           cases=("a norm in train mode", "a frozen model", "a mean below 0", "a sum below 0",
                  *RUNS))
ex.promise("sizes", "batches: one epoch, a list of (x, y). x is (N, F) float32, with no two rows "
                    "equal, and y is (N,) int64. N is 2 or more and can differ between batches. A "
                    "run has at most one fault.",
           cases=("small batches", "a single batch"))
ex.promise("stays", "Nothing is trained. The model's weights, modes, buffers and gradients do not "
           "change, nor do the batches.",
           says=("changed in the model", "changed in the batches"))

FAULT = {"frozen": "frozen", "sum": "sum", "squares": "sum", "small sum": "sum",
         "sum below 0": "sum", "order": "order", "labels": "labels"}


@ex.cases
def cases(g):
    def clusters(n, classes=4, width=5):
        y = torch.arange(n) % classes
        centres = 10 * torch.eye(classes, width) + torch.randn(classes, width, generator=g)
        mixed = torch.randperm(n, generator=g)
        return (centres[y] + 0.1 * torch.randn(n, width, generator=g))[mixed], y[mixed]

    def twins(n):
        """Pairs of near rows, of which a quarter have the same label."""
        x, y = 10 * torch.randn(n, 5, generator=g), torch.arange(n) % 4
        near = x + 0.001 * torch.randn(n, 5, generator=g)
        mixed = torch.randperm(2 * n, generator=g)
        other = (y + (torch.arange(n) % 4 > 0)) % 4
        return torch.cat([x, near])[mixed], torch.cat([y, other])[mixed]

    def one(name, kind, n=24, size=6, order=None, shift=False):
        x, y = twins(n // 2) if shift else clusters(n)
        if order is not None:
            rows = y.argsort(stable=True)
            rows = rows if order == "sorted" else torch.cat([rows[n // 4:], rows[:n // 4]])
            x, y = x[rows], y[rows]
        return name, {"kind": kind, "batches": [list(p) for p in zip(x.split(size), y.split(size))]}

    def drawn(name):
        """A run with any fault or none, of the same sizes."""
        kind = ("none", "frozen", "sum", "order", "labels")[
            int(torch.randint(5, (), generator=g))]
        return one(name, kind, order="sorted" if kind == "order" else None, shift=kind == "labels")

    def halves():
        x = torch.arange(4.0).repeat_interleave(2)[:, None] * 10
        x = x + torch.tensor([0.0, 1.0]).repeat(4)[:, None] + torch.rand(1, 3, generator=g)
        y = torch.tensor([0, 0, 1, 1, 2, 3, 3, 2])
        return "exactly half fit", {"kind": "none", "batches": [[x[:4], y[:4]], [x[4:], y[4:]]]}

    def apart():
        """Each row's neighbour of its class stands in the other batch."""
        x, y = clusters(4)
        near = x + 0.01 * torch.randn(x.shape, generator=g)
        return "neighbours in other batches", {"kind": "none", "batches": [[x, y], [near, y]]}

    def swapped():
        x, y = clusters(24)
        y = torch.where(y == 0, 1, torch.where(y == 1, 0, y))
        return "two classes swapped", {"kind": "none", "batches": [[x, y]]}

    def sorted_in(name, kind, size, turn=0, order=(0, 1, 2, 3)):
        """Sorted rows, moved on by turn, in batches of that size and in that order."""
        _, inputs = one(name, kind, size=24, order="sorted")
        x, y = (v.roll(turn, 0).split(size) for v in inputs["batches"][0])
        return name, {"kind": kind, "batches": [[x[k], y[k]] for k in order if k < len(x)]}

    def crossed(name, mate, stranger):
        """Groups of four: each row's mate has its label, and a stranger stands beside it."""
        mate, stranger = torch.tensor(mate), torch.tensor(stranger)
        x = torch.stack([0 * mate, mate, stranger, mate + stranger])
        far = 100 * torch.arange(5.0)[:, None, None] * torch.tensor([0.0, 0.0, 1.0])
        x = (x + far + torch.rand(3, generator=g)).reshape(20, 3)
        y = (torch.arange(5)[:, None] + torch.tensor([0, 0, 1, 1])).flatten() % 4
        mixed = torch.randperm(20, generator=g)
        return name, {"kind": "none", "batches": [list(p) for p in zip(x[mixed].split(10),
                                                                       y[mixed].split(10))]}

    def below_half(name, pairs, fit):
        x, y = 10 * torch.randn(pairs, 5, generator=g), torch.arange(pairs) % 4
        x = torch.stack([x, x + 0.001 * torch.randn(pairs, 5, generator=g)], 1).flatten(0, 1)
        y = torch.stack([y, (y + (torch.arange(pairs) >= fit)) % 4], 1).flatten()
        return name, {"kind": "labels", "batches": [
            list(p) for p in zip(x.split(30), y.split(30))]}

    def nearly():
        name, inputs = one("sorted, except for the last batch", "none", order="sorted")
        x, y = clusters(4)
        inputs["batches"].append([x, y])
        return name, inputs

    def first_mixed():
        name, inputs = one("one mixed batch", "none", order="sorted")
        x, y = clusters(6)
        inputs["batches"].insert(0, [x, y])
        return name, inputs
    return [one("nothing wrong", "none"), one("a frozen model", "frozen"),
            one("only the body frozen", "body"), one("all but the first frozen", "first"),
            one("all but the last frozen", "last"), one("a mean over one row more", "one more"),
            one("a sum of cross-entropies", "sum"),
            one("a sum of squares", "squares"), one("a small sum", "small sum"),
            one("a mean that is large", "large mean"),
            one("a mean below 0", "mean below 0"), one("a sum below 0", "sum below 0"),
            one("sorted batches", "order", order="sorted"), nearly(), first_mixed(),
            one("labels shifted", "labels", shift=True), halves(), apart(), swapped(),
            one("a norm in train mode", "norm"), one("labels, a norm in train mode", "labels norm",
                                                     shift=True),
            one("small batches", "order", n=16, size=4, order="sorted"),
            sorted_in("batches of one class, shuffled", "order", 6, order=(2, 0, 3, 1)),
            sorted_in("sorted, in batches of two classes", "none", 8),
            sorted_in("batches of nearly one class", "none", 6, turn=1),
            crossed("near, but not by the sum of gaps", [3.0, 3.0, 0.0], [0.0, 0.0, 5.0]),
            crossed("near, but not by the largest gap", [4.0, 0.0, 0.0], [0.0, 3.5, 3.5]),
            below_half("a little less than half", 25, 12),
            below_half("the first ones fit", 75, 32), one("a part in another mode", "mixed"),
            one("a model that sees nothing", "blind"),
            one("all but the model's own parameter frozen", "own"),
            one("a part that changes with each call in train mode", "grows"),
            one("a single batch", "labels", n=20, size=20, shift=True),
            *map(drawn, RUNS)]


@ex.act
def act(fn, kind, batches):
    class Grows(nn.Module):
        """Ten times as large with each call, in train mode."""

        def __init__(self):
            super().__init__()
            self.register_buffer("factor", torch.tensor(100.0))

        def forward(self, h):
            if self.training:
                self.factor *= 10
            return h * self.factor

    width = batches[0][0].shape[1]
    model = nn.Sequential(nn.Linear(width, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    if kind == "grows":
        model.append(Grows())
    model.train("norm" in kind or kind in ("frozen", "grows", "mixed"))
    if kind == "mixed":
        model[1].eval()
    if kind == "own":
        model.requires_grad_(False).register_parameter("own", nn.Parameter(torch.ones(1)))
        model.register_forward_hook(lambda module, args, out: module.own * out)
    if kind == "blind":
        nn.init.zeros_(model[0].weight)
    if kind == "frozen":
        model.requires_grad_(False)
    if kind == "body":
        model[0].requires_grad_(False)
    if kind in ("first", "last"):
        model.requires_grad_(False)
        list(model.parameters())[0 if kind == "first" else -1].requires_grad_(True)
    for p in model.parameters():
        p.grad = torch.ones_like(p)

    def loss_fn(z, y):
        if kind == "squares":
            return (z - F.one_hot(y, 4)).square().sum()
        if kind == "one more":
            return F.cross_entropy(z, y, reduction="sum") / (len(y) + 1)
        if kind.endswith("below 0"):
            gained = F.cross_entropy(z, y, reduction="none") - 100
            return gained.sum() if "sum" in kind else gained.mean()
        if kind in ("small sum", "large mean"):
            scale = 1e-4 if kind == "small sum" else 1e4
            return scale * F.cross_entropy(z, y, reduction="sum" if "sum" in kind else "mean")
        return F.cross_entropy(z, y, reduction="sum" if kind == "sum" else "mean")

    def facts():
        return [(p.tolist(), p.requires_grad) for p in model.parameters()], [
            p.grad is not None and p.grad.tolist() for p in model.parameters()], [
            b.tolist() for b in model.buffers()], [m.training for m in model.modules()]
    given = [(x.clone(), y.clone()) for x, y in batches]
    before = facts()
    x = torch.eye(4)
    fn(nn.Linear(4, 2), lambda z, y: z.sum() * 0 + 1, [(x, torch.tensor([0, 0, 1, 1]))])
    name = fn(model, loss_fn, given)
    changed = sum(a != b for a, b in zip(before, facts()))
    spoilt = abs(len(given) - len(batches)) + sum(
        not (torch.equal(a, c) and torch.equal(b, d)) for (a, b), (c, d) in zip(given, batches))
    return {"name": f"fault: {name}" if type(name) is str else None, "changed": changed,
            "spoilt": spoilt}


@ex.law
def law(out, kind, batches):
    expect_parts(out, "name", "changed", "spoilt")
    expect_equal("name of the fault", out["name"],
                 f"fault: {FAULT.get(kind.removesuffix(' norm'), 'none')}")
    expect_equal("parts that changed in the model", out["changed"], 0, "Run a copy of the model.")
    expect_equal("parts that changed in the batches", out["spoilt"], 0)


def frozen(model):
    return all(not p.requires_grad for p in model.parameters())


def is_sum(model, loss_fn, batches):
    """Whether three times the rows are nearer to three times the loss than to the loss."""
    x, y = batches[-1]
    with torch.no_grad():
        z = copy.deepcopy(model).eval()(x)
        one, three = float(loss_fn(z, y)), float(loss_fn(z.repeat(3, 1), y.repeat(3)))
    return abs(three - 3 * one) < abs(three - one)


def share_fitting(x, y):
    """Share of rows with the label of the nearest other row, by squared distances."""
    gaps = (x[:, None] - x[None]).square().sum(2) + torch.diag(torch.full((len(x),), torch.inf))
    return (y[gaps.min(1).indices] == y).double().mean().item()


def whole(batches):
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


# ---- wrong, by name

ex.wrong("blaming the learning rate, whatever the fault is",
         lambda model, loss_fn, batches: "learning rate",
         breaks=("name", "frozen", "sum", "order", "labels"))


@ex.wrong("returning None instead of the string 'none'", breaks="name")
def none(model, loss_fn, batches):
    name = asked(model, loss_fn, batches)
    return None if name == "none" else name


def by_norm(p):
    """The share that fits, by another distance."""
    def fits(bs):
        x, y = whole(bs)
        return (y[torch.cdist(x, x, p=p).fill_diagonal_(torch.inf).argmin(1)] == y).float().mean()
    return fits


@not_an_answer
def asked(model, loss_fn, batches):
    if frozen(model):
        return "frozen"
    if is_sum(model, loss_fn, batches):
        return "sum"
    if all(len(y.unique()) == 1 for _, y in batches):
        return "order"
    return "labels" if share_fitting(*whole(batches)) < 0.5 else "none"


wrong = ex.edits(asked)
SHARE_FITTING = "share_fitting(*whole(batches))"
wrong("reporting 'frozen' if only one parameter is frozen", "frozen",
      "frozen(model)", "any(not p.requires_grad for p in model.parameters())")
wrong("overlooking parameters that belong to the model itself", "frozen",
      "if frozen",
      "def stuck(model): return not any(p.requires_grad for part in model.children() for p in "
      "part.parameters())\n    if stuck")
wrong("running the model twice, in whatever mode it is in", "sum",
      "if frozen",
      "def summed(model, loss_fn, batches): (x, y), twin = batches[0], copy.deepcopy(model); "
      "once = loss_fn(twin(x), y); twice = loss_fn(twin(torch.cat([x, x])), torch.cat([y, y])); "
      "return bool(twice.abs() > 1.5 * once.abs())\n    if frozen", "is_sum", "summed")
wrong("reading loss_fn.reduction instead of measuring the loss", ("sum", "arguments"),
      "is_sum(model, loss_fn, batches)", 'getattr(loss_fn, "reduction", "mean") == "sum"')
wrong("leaving the model in eval mode", "stays", "if is_sum", "model.eval()\n    if is_sum")
wrong("reporting 'order' if the labels are sorted", "order",
      "all(len(y.unique()) == 1 for _, y in batches)",
      "bool((whole(batches)[1].diff() >= 0).all())")
wrong("reporting 'order' if every batch has mostly one class", "order",
      "len(y.unique()) == 1", "y.bincount().max() >= 0.8 * len(y)")
wrong("finding neighbours by angle, not by distance", "labels",
      "if frozen",
      "def fits(bs): x, y = whole(bs); unit = F.normalize(x, dim=1); return (y[(unit @ "
      "unit.T).fill_diagonal_(-torch.inf).argmax(1)] == y).float().mean()\n    if frozen",
      SHARE_FITTING, "fits(batches)")
wrong("finding neighbours by the sum of absolute differences", "labels",
      "if frozen", "fits = by_norm(1.0)\n    if frozen", SHARE_FITTING, "fits(batches)")
wrong("finding neighbours by the largest difference of any feature", "labels",
      "if frozen", 'fits = by_norm(float("inf"))\n    if frozen', SHARE_FITTING, "fits(batches)")
wrong("finding neighbours after standardizing the features", "labels",
      "if frozen",
      "def fits(bs): x, y = whole(bs); return share_fitting((x - x.mean(0)) / x.std(0), y)\n    "
      "if frozen", SHARE_FITTING, "fits(batches)")
wrong("finding neighbours by their logits instead of their inputs", "labels",
      "if frozen",
      "def fits(bs): x, y = whole(bs); return share_fitting(copy.deepcopy(model).eval()(x), y)\n "
      "   if frozen", SHARE_FITTING, "fits(batches)")
wrong("finding neighbours only among the first 64 rows", "labels",
      "(*whole(batches))", "(*(v[:64] for v in whole(batches)))")
wrong("reporting 'labels' only below 45 % instead of below half",
      "labels", "0.5 else", "0.45 else")


@ex.wrong("giving all modules the model's former mode", breaks="stays")
def one_mode(model, loss_fn, batches):
    was = model.training
    model.eval()
    name = asked(model, loss_fn, batches)
    model.train(was)
    return name


wrong("reporting 'sum' if the loss is large", ("sum", "arguments"),
      "if frozen",
      "def summed(model, loss_fn, batches): x, y = batches[0]; return "
      "float(loss_fn(torch.zeros(len(x), 4), y)) > 3\n    if frozen", "is_sum", "summed")
wrong("comparing losses below 0 without taking absolute values", "arguments",
      "if frozen",
      "def summed(model, loss_fn, batches): x, y = batches[0]; z = "
      "copy.deepcopy(model).eval()(x); return bool(loss_fn(torch.cat([z, z]), torch.cat([y, y])) "
      "> 1.5 * loss_fn(z, y))\n    if frozen", "is_sum", "summed")
wrong("reporting 'order' if the first batch has a single class", "order",
      "all(len(y.unique()) == 1 for _, y in batches)", "len(batches[0][1].unique()) == 1")
wrong("reporting 'order' if any batch has a single class", "order", "if all", "if any")
wrong("looking for neighbours only within each batch", "labels",
      "if frozen",
      "def fits(bs): total = sum(len(y) for _, y in bs); return sum(share_fitting(x, y) * len(y) "
      "for x, y in bs) / total\n    if frozen", SHARE_FITTING, "fits(batches)")
wrong("letting every row be its own neighbour", ("labels", "sizes"), SHARE_FITTING, "1.0")
wrong("counting exactly half as fewer than half", "labels", "0.5 else", "0.51 else")
wrong("reporting 'none' if the epoch has only one batch", "sizes",
      "if frozen", 'if len(batches) <= 1: return "none"\n    if frozen')
wrong("running the model itself, in whatever mode it is in", "stays",
      "if frozen",
      "def summed(model, loss_fn, batches): (x, y), z = batches[0], model(batches[0][0]).detach(); "
      "one, two = loss_fn(z, y), loss_fn(torch.cat([z, z]), torch.cat([y, y])); return "
      "bool((two - 2 * one).abs() < (two - one).abs())\n    if frozen", "is_sum", "summed")
wrong("computing logits with the model in train mode", "stays",
      "if frozen",
      "modes = [(m, m.training) for m in model.modules()]; model.train()\n    with "
      "torch.no_grad(): model(torch.cat([x for x, _ in batches]))\n    for m, mode in modes: "
      "m.training = mode\n    if frozen")


@ex.wrong("clearing the model's gradients", breaks="stays")
def backward(model, loss_fn, batches):
    name = asked(model, loss_fn, batches)
    if name != "frozen":
        for p in model.parameters():
            p.grad = None
    return name


@ex.wrong("reordering the batches in place", breaks="stays")
def shuffled(model, loss_fn, batches):
    name = asked(model, loss_fn, batches)
    for x, y in batches:
        x.copy_(x.flip(0))
        y.copy_(y.flip(0))
    return name


wrong("overlooking that a model is frozen if it is in train mode", "arguments",
      "frozen(model)", "frozen(model) and (not model.training)")
