"""Exercise 02.4, `accum_step`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_checks.s02 import common
from dlsys_checks.s02.class_terms import class_terms
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("02.4", "accum_step", seen=("models", "calls"))

UNEQUAL = ("a small last part", "gradients left over from before", "NaN left over",
           "four parts of different sizes", "a small first part", "momentum", "Adam, two groups",
           "logits in the hundreds", "many parts", "two models in turn", "parts of one row",
           "the example")

ex.promise("step", "Take one optimizer step on the mean cross-entropy over all rows.",
           says=("change of parameter",))
ex.promise("sizes", "Args: model, opt: the model and its optimizer. batches: pairs of x (n, F) "
                    "float32 and y (n,) int64, where n can differ from pair to pair.",
           cases=UNEQUAL)
ex.promise("graph", "Keep at most one graph alive at a time, so call backward for each pair.",
           says=("graphs alive at a time", "graphs kept after", "rows in one graph"))
ex.promise("gradients", "Gradients that the model already holds must not count.",
           says=("change of parameter",))
ex.promise("loss", "Returns: The mean loss over all rows before the step, as a float.",
           says=("mean loss over all rows",))
ex.promise("example", "Example: a batch of 3 rows counts 3/4, and a batch of 1 row counts 1/4.",
           cases=UNEQUAL)


@ex.cases
def cases(g):
    number = integers(g)

    def call(net, sizes, at=0, size=1.0, before=()):
        features, classes = net["start"][0].shape[1], net["start"][-1].shape[0]
        return {"model": at, "before": list(before), "batches": [
            [torch.randn(n, features, generator=g) * size,
             torch.randint(classes, (n,), generator=g)] for n in sizes]}

    def one(name, net, *parts, before=lambda net: [], size=1.0):
        return name, {"models": [net], "calls": [call(net, sizes, size=size, before=before(net))
                                                 for sizes in parts]}

    def left(net):
        return common.leftovers(g, net)

    lr = 0.05 + 0.2 * float(torch.rand((), generator=g))
    c = number(3, 7)
    adam = {"lr": lr / 5, "betas": [0.8, 0.95], "eps": 1e-6}
    pair = [common.model(g, "linear", (number(2, 5), 0, c), momentum=0.7, lr=lr),
            common.model(g, "nested", (3, 4, 2), lr=lr)]
    return [
        one("a small last part", common.model(g, "linear", (4, 0, c), lr=lr), (6, 6, 2), (5, 3)),
        one("gradients left over from before", common.model(g, "nested", (3, 4, 4), lr=lr),
            (5, 1), (2, 6), before=left),
        one("NaN left over", common.model(g, "own", (3, 2, c), groups=2, lr=lr), (2, 4),
            before=lambda net: [*left(net)[1:], float("nan")]),
        one("four parts of different sizes", common.model(g, "linear", (5, 0, 3), lr=lr),
            (1, 7, number(2, 6), 9)),
        one("a small first part", common.model(g, "own", (2, 5, 2), lr=lr), (1, number(5, 9))),
        one("equal parts", common.model(g, "linear", (3, 0, c), lr=lr), (4, 4, 4)),
        one("a single part", common.model(g, "linear", (number(1, 4), 0, 5), lr=lr),
            (number(2, 8),)),
        one("parts of one row", common.model(g, "nested", (4, 3, c), lr=lr), (1, 1, 3)),
        one("momentum", common.model(g, "twice", (3, 0, c), momentum=0.9, lr=lr),
            (5, 2), (1, 3, 2), (4, 6)),
        one("Adam, two groups", common.model(g, "own", (3, 4, 3), "Adam", 2, **adam),
            (4, 2), (3, number(5, 9))),
        one("logits in the hundreds", common.model(g, "linear", (3, 0, c), lr=lr), (5, 2),
            size=300.0),
        one("many parts", common.model(g, "linear", (2, 0, 4), lr=lr),
            [number(1, 5) for _ in range(number(9, 14))] + [5]),
        ("two models in turn", {"models": pair, "calls": [
            call(pair[k], sizes, k) for k, sizes in ((0, (3, 5)), (1, (6, 2, 1)), (0, (4, 1)))]}),
        one("the example", common.model(g, "linear", (number(2, 6), 0, c), lr=lr), (3, 1))]


@ex.act
def act(fn, models, calls):
    import weakref
    alive, after, rows = [], [], []

    class Token:
        """Lives as long as the node of a graph that holds it."""

    class Net(nn.Module):
        """A body of some kind; counts its graphs by a tensor that each keeps up to its backward
        pass, and by a token that its last node keeps."""

        def __init__(self, body):
            super().__init__()
            self.body = body

        def forward(self, x):
            out, kept = self.body(x), torch.ones(())
            out = out * kept
            if out.requires_grad:
                refs.append(weakref.ref(kept))
                alive.append(sum(ref() is not None for ref in refs))
                token = out.grad_fn.metadata["token"] = Token()
                tokens.append(weakref.ref(token))
                del token
                after.append(sum(ref() is not None for ref in tokens))
                rows.append(x.numel() // width)
            return out

    class Own(nn.Module):
        def __init__(self, sizes, *_):
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

    def made(kind, start, frozen, optimizer, groups, options):
        net = Net(body(kind, [tuple(value.shape) for value in start]))
        with torch.no_grad():
            for p, value in zip(net.parameters(), start, strict=True):
                p.copy_(value)
        mine = list(net.parameters())
        parts = [{"params": [mine[k] for k in part["params"]], "lr": part["lr"]}
                 for part in groups]
        return net, getattr(torch.optim, optimizer)(parts, **options)

    pairs = [made(**model) for model in models]
    losses, changes, extra = [], [], []
    for call in calls:
        net, opt = pairs[call["model"]]
        for p, value in zip(net.parameters(), call["before"], strict=False):
            p.grad = torch.full_like(p, value)
        before = [p.detach().clone() for p in net.parameters()]
        refs, tokens, width = [], [], call["batches"][0][0].shape[1]
        most = max(len(y) for _, y in call["batches"])
        losses.append(fn(net, opt, [(x, y) for x, y in call["batches"]]))
        changes.append([p.detach() - was
                        for p, was in zip(net.parameters(), before, strict=True)])
        extra.append(max([0, *(n - most for n in rows)]))
        rows.clear()
    # The name of the last part's loss still holds its graph while the next is built.
    return {"losses": losses, "changes": changes, "more_graphs": max([0, *(n - 1 for n in alive)]),
            "kept_graphs": max([0, *(n - 2 for n in after)]), "more_rows": extra}


def mean_loss(logits, y):
    """Mean cross-entropy, in float64: the logarithm of the sum less the chosen score."""
    top = logits.detach().amax(1, keepdim=True)
    whole = (logits - top).exp().sum(1).log() + top[:, 0]
    return (whole - logits[torch.arange(len(y)), y]).sum() / len(y)


@ex.law
def law(out, models, calls):
    expect_parts(out, "losses", "changes", "more_graphs", "kept_graphs", "more_rows")
    for part in ("losses", "changes", "more_rows"):
        expect_length(part.replace("_", " "), out[part], len(calls))
    twins = [common.Twin(model) for model in models]
    for k, (call, loss, changes) in enumerate(zip(calls, out["losses"], out["changes"],
                                                  strict=True), 1):
        x = torch.cat([x for x, _ in call["batches"]]).double()
        y, twin = torch.cat([y for _, y in call["batches"]]), twins[call["model"]]
        wanted, moves = twin.step(lambda net, x=x, y=y: mean_loss(net(x), y), class_terms(x, y))
        common.expect_changes(changes, moves, twin, k)
        expect_close("mean loss over all rows", loss, wanted, rtol=1e-4,
                     atol=1e-6 + twin.loss_room,
                     look=f"In call {k}, the parts have {[len(y) for _, y in call['batches']]} "
                          "rows.")
    # Counted by the model, beside the learner's code: a result does not show its graphs.
    expect_equal("additional graphs alive at a time", out["more_graphs"], 0,
                 "Call backward for each part before the next forward pass.")
    expect_equal("graphs kept after their backward pass", out["kept_graphs"], 0,
                 "A sum of losses keeps their graphs. Add up loss.item() instead.")
    expect_equal("rows in one graph, beyond the largest part", out["more_rows"], [0] * len(calls),
                 "Run a separate forward pass for each part.")


# ---- wrong, by name

def part_loss(model, x, y):
    return F.cross_entropy(model(x), y)


def all_rows(batches):
    return sum(len(y) for _, y in batches)


def mean_before(model, batches):
    with torch.no_grad():
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return part_loss(model, x, y).item()


@not_an_answer
def right(model, opt, batches):
    mean, rows = mean_before(model, batches), all_rows(batches)
    opt.zero_grad()
    for x, y in batches:
        loss = part_loss(model, x, y)
        (loss * (len(y) / rows)).backward()
    opt.step()
    return mean


wrong = ex.edits(right)
MEAN, CLEAR, EACH, LAST = "mean_before(model, batches)", "opt.zero_grad()", "loss =", "return mean"
SHARE, BACKWARD, STEP = "(loss * (len(y) / rows))", "backward()", "opt.step()"
wrong("dividing every part's loss by the number of parts", "sizes",
      SHARE, "(loss / len(batches))", MEAN, "0.0",
      BACKWARD, "backward(); mean += loss.item() / len(batches)", says="change of")
wrong("assuming that all parts are as large as the first part", "example",
      "all_rows(batches)", "len(batches[0][1]) * len(batches)", says="change of")
wrong("calling backward on every part's mean loss without scaling it",
      "step", SHARE, "loss", says="change of")
wrong("training on the sum over all rows instead of the mean",
      "step", SHARE, "(loss * len(y))", says="change of",
      trap="02.2")
wrong("taking a step after every part", "step", STEP, "pass",
      EACH, "opt.zero_grad(); loss =", BACKWARD, "backward(); opt.step()", says="change of")
wrong("running a complete training step on every part", "step", STEP, "pass",
      EACH, "opt.zero_grad(); loss =", SHARE, "loss", MEAN, "0.0",
      BACKWARD, "backward(); opt.step(); mean += loss.item() * len(y) / rows", says="change of")
wrong("clearing the gradients before every part", "step", EACH, "opt.zero_grad(); loss =",
      says="change of")
wrong("clipping each part's gradient", "step",
      BACKWARD, "backward(); nn.utils.clip_grad_norm_(model.parameters(), 0.1)",
      says="change of", trap="03.3")
wrong("subtracting lr times the gradient instead of calling opt.step()", "step", STEP,
      'with torch.no_grad(): [p.sub_(group["lr"] * p.grad) for group in opt.param_groups '
      'for p in group["params"]]', says="change of")
wrong("adding the new gradients to old ones that were not cleared", "gradients", CLEAR, "pass",
      says="change of", trap="02.1")
wrong("clearing the gradients only at the end", "gradients",
      CLEAR, "pass", LAST, "opt.zero_grad(); return mean", says="change of", trap="02.1")
wrong("multiplying the old gradients by zero, which keeps NaN", "gradients",
      CLEAR, "[p.grad.mul_(0.0) for p in model.parameters() if p.grad is not None]",
      says="change of", trap="02.1")
wrong("building the graphs of all parts before any backward pass", "graph",
      MEAN, "0.0", f"{SHARE}.backward()", "mean = mean + loss * (len(y) / rows)",
      STEP, "mean.backward(); opt.step()", LAST, "return mean.item()", says="graphs alive",
      trap="02.5")
wrong("using one big batch of all rows", "graph",
      "in batches", "in [[torch.cat(parts) for parts in zip(*batches, strict=True)]]")
wrong("keeping each graph with retain_graph=True", "graph",
      BACKWARD, "backward(retain_graph=True)", says="graphs alive")
wrong("adding up the losses as tensors, which keeps their graphs", "graph",
      MEAN, "0.0", BACKWARD, "backward(); mean = mean + loss * (len(y) / rows)",
      LAST, "return mean.item()", says="graphs kept after", trap="02.5")
wrong("returning the loss of the last part", "loss",
      MEAN, "0.0", BACKWARD, "backward(); mean = loss.item()")
wrong("returning the mean of the parts' mean losses", "loss",
      MEAN, "0.0", BACKWARD, "backward(); mean += loss.item() / len(batches)")
wrong("returning the sum of the parts' mean losses", "loss",
      MEAN, "0.0", BACKWARD, "backward(); mean += loss.item()")
wrong("returning the mean loss after the step", "loss",
      LAST, "return mean_before(model, batches)")
wrong("returning the loss as a tensor", "loss", LAST, "return torch.tensor(mean)",
      says="type of the mean loss")
