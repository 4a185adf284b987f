"""Exercise 02.1, `train_step`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_checks.rounding import ROUNDED
from dlsys_checks.s02 import common
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("02.1", "train_step", seen=("models", "calls"))

ex.promise_table("""
step      | Take one optimizer step. | change of parameter; optimizer steps
mean      | The loss is the mean squared error over all rows. | loss before the update;
            change of parameter
frozen    | Args: model: some parameters can be frozen, and others can be unused. | case a frozen
            part; an unused part
shapes    | opt: the model's optimizer. x: (N, F) float32. y: (N, 1) float32. | case one row;
            one feature; many rows
loss      | Returns: The loss before the update, as a float. | loss before the update
gradients | Gradients that the model already holds must not count. | change of parameter; loss
            before the update
example   | Example: if the model outputs 0 and y is [[2.], [0.]], the loss is 2.0. | case the
            example
""")


@ex.cases
def cases(g):
    number = integers(g)
    uniform = floats(g)

    def call(net, rows, at=0, size=1.0, target=2.0, before=()):
        features = net["start"][0].shape[1]
        return {"model": at, "before": list(before),
                "x": (torch.randn(rows, features, generator=g) + 0.5) * size,
                "y": torch.randn(rows, 1, generator=g) * target}

    def one(name, net, rows, before=lambda net: [], **how):
        return name, {"models": [net],
                      "calls": [call(net, n, before=before(net), **how) for n in rows]}

    def left(net):
        return common.leftovers(g, net)

    adam = {"lr": uniform(0.01, 0.05), "betas": [uniform(0.7, 0.9), uniform(0.9, 0.99)]}
    lr = uniform(0.02, 0.05)
    some = common.model(g, "own", (3, number(2, 5), 1), groups=2, lr=lr)
    nan = common.model(g, "nested", (4, 3, 1), lr=lr)
    pair = [common.model(g, "linear", (number(2, 4), 0, 1), momentum=0.8, lr=lr),
            common.model(g, "nested", (5, 4, 1), "Adam", eps=1e-4, **adam)]
    zero = common.model(g, "linear", (number(2, 6), 0, 1), size=0.0, lr=lr)
    return [
        one("two steps", common.model(g, "linear", (3, 0, 1), lr=lr), (9, number(4, 8))),
        one("gradients left over from before", common.model(g, "nested", (4, 5, 1), lr=lr),
            (6, 3, 7), left),
        one("some gradients left over", some, (5, 8), lambda net: [None, *left(net)[1:-1], None]),
        one("NaN left over", nan, (7,), lambda net: [float("nan"), *left(net)[1:]]),
        one("momentum, a layer used twice", common.model(g, "twice", (3, 0, 1), lr=lr,
                                                         momentum=uniform(0.5, 0.9)), (6, 4, 5)),
        one("Adam, three groups", common.model(g, "own", (4, 3, 1), "Adam", 3, eps=1e-3, **adam),
            (8, 5)),
        one("an unused part", common.model(g, "spare", (3, 4, 1), "Adam", 2, eps=1e-4, **adam),
            (number(5, 9), 4), left),
        one("AdamW", common.model(g, "nested", (2, 6, 1), "AdamW", eps=1e-6,
                                  weight_decay=uniform(0.5, 2.0), **adam), (10, 6)),
        one("a frozen part", common.model(g, "nested", (3, 5, 1), frozen=(0, 1), lr=lr),
            (6, 4), left),
        one("one row", common.model(g, "linear", (number(2, 5), 0, 1), lr=lr), (1,)),
        one("one feature", common.model(g, "own", (1, 3, 1), lr=lr), (number(2, 9), 3)),
        one("many rows", common.model(g, "nested", (3, 2, 1), lr=lr), (number(40, 80),)),
        one("tiny numbers", common.model(g, "linear", (3, 0, 1), size=1e-4, lr=lr), (5, 6),
            target=1e-4),
        one("huge targets", common.model(g, "linear", (4, 0, 1), lr=lr), (6, 5), target=3e3),
        ("two models in turn", {"models": pair, "calls": [
            call(pair[k], rows, k) for k, rows in ((0, 6), (1, 4), (0, 3), (1, 7))]}),
        ("the example", {"models": [zero], "calls": [
            call(zero, 2) | {"y": torch.tensor([[2.0], [0.0]])}]})]


@ex.act
def act(fn, models, calls):
    class Own(nn.Module):
        def __init__(self, sizes, *_):
            super().__init__()
            self.raw = nn.ParameterList([torch.empty(sizes[0]), torch.empty(sizes[1])])
            self.head = nn.ModuleDict({"last": nn.Linear(sizes[2][1], sizes[2][0])})

        def forward(self, x):
            return self.head["last"](F.linear(x, *self.raw).tanh())

    class Layers(nn.Module):
        def __init__(self, sizes, times):
            super().__init__()
            self.first = nn.Sequential(nn.Linear(sizes[0][1], sizes[0][0]), nn.Tanh())
            self.last = nn.Linear(sizes[2][1], sizes[2][0])
            self.spare = nn.Linear(3, 2) if len(sizes) > 4 else None
            self.times = times

        def forward(self, x):
            for _ in range(self.times):
                x = self.first(x)
            return self.last(x)

    def made(kind, start, frozen, optimizer, groups, options):
        sizes = [tuple(value.shape) for value in start]
        net = nn.Linear(sizes[0][1], sizes[0][0]) if kind == "linear" else (
            Own if kind == "own" else Layers)(sizes, 1 + (kind == "twice"))
        if kind == "nested":
            net = nn.Sequential(net.first, nn.Sequential(net.last))
        with torch.no_grad():
            for k, (p, value) in enumerate(zip(net.parameters(), start, strict=True)):
                p.copy_(value)
                p.requires_grad_(k not in frozen)
        mine = list(net.parameters())
        parts = [{"params": [mine[k] for k in part["params"]], "lr": part["lr"]}
                 for part in groups]
        return net, getattr(torch.optim, optimizer)(parts, **options)

    pairs = [made(**model) for model in models]
    losses, changes, steps = [], [], []
    for _, opt in pairs:
        opt.register_step_post_hook(lambda *_: steps.append(1))
    counts = []
    for call in calls:
        net, opt = pairs[call["model"]]
        for p, number in zip(net.parameters(), call["before"], strict=False):
            p.grad = None if number is None else torch.full_like(p, number)
        before = [p.detach().clone() for p in net.parameters()]
        steps.clear()
        losses.append(fn(net, opt, call["x"], call["y"]))
        counts.append(len(steps))
        changes.append([p.detach() - was
                        for p, was in zip(net.parameters(), before, strict=True)])
    return {"losses": losses, "changes": changes, "steps": counts}


@ex.law
def law(out, models, calls):
    expect_parts(out, "losses", "changes", "steps")
    expect_length("losses", out["losses"], len(calls))
    expect_length("calls with changes", out["changes"], len(calls))
    expect_equal("optimizer steps in each call", out["steps"], [1] * len(calls),
                 "Run opt.step() once in each call.")
    twins = [common.Twin(model) for model in models]
    for k, (call, loss, changes) in enumerate(zip(calls, out["losses"], out["changes"],
                                                  strict=True), 1):
        x, y, twin = call["x"].double(), call["y"].double(), twins[call["model"]]
        outputs = common.output(twin.net["kind"], twin.p, x)
        wanted, moves = twin.step(lambda net, x=x, y=y: ((net(x) - y) ** 2).sum() / len(y),
                                  common.error_terms(x, y))
        expect_close("loss before the update", loss, wanted, rtol=1e-4,
                     atol=twin.loss_room + ROUNDED * float((outputs**2 + y**2).mean()),
                     look=f"Call {k} should return the mean over all {len(y)} rows, whose squared "
                          f"errors add up to {wanted * len(y):.4g}.")
        common.expect_changes(changes, moves, twin, k)


# ---- wrong, by name

def clear(params):
    for p in params:
        p.grad = None


@not_an_answer
def stepped(model, opt, x, y):
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()


wrong = ex.edits(stepped)
CLEAR, BACKWARD, STEP, LAST = "opt.zero_grad()", "loss.backward()", "opt.step()", "loss.item()"
LOSS, SUM = "F.mse_loss(model(x), y)", 'F.mse_loss(model(x), y, reduction="sum")'
CHANGE = "change of"
wrong("never clearing the gradients", "gradients", CLEAR, "pass", says=CHANGE)
wrong("clearing the gradients only at the end", "gradients",
      CLEAR, "pass", STEP, "opt.step(); opt.zero_grad()", says=CHANGE)
wrong("clearing only the weights' gradients", "gradients",
      CLEAR, "clear(p for p in model.parameters() if p.dim() > 1)", says=CHANGE)
wrong("clearing only the first group's gradients", "gradients",
      CLEAR, 'clear(opt.param_groups[0]["params"])', says=CHANGE)
wrong("clearing only the gradients of parameters that are not frozen", "gradients",
      CLEAR, "clear(p for p in model.parameters() if p.requires_grad)", says=CHANGE)


@ex.wrong("keeping the old gradients of parameters that get no new gradient",
          says="change of", breaks="gradients")
def only_replaced(model, opt, x, y):
    loss = F.mse_loss(model(x), y)
    live = [p for p in model.parameters() if p.requires_grad]
    for p, slope in zip(live, torch.autograd.grad(loss, live, allow_unused=True), strict=True):
        if slope is not None:
            p.grad = slope
    opt.step()
    return loss.item()


wrong("multiplying the old gradients by zero, which keeps NaN", "gradients",
      CLEAR, "[p.grad.mul_(0.0) for p in model.parameters() if p.grad is not None]", says=CHANGE)
wrong("clearing the gradients between backward and step", "step",
      CLEAR, "pass", STEP, "opt.zero_grad(); opt.step()", says=CHANGE)
wrong("taking no step at all", "step", STEP, "pass")
wrong("subtracting lr times the gradient instead of calling opt.step()", "step", STEP,
      'with torch.no_grad(): [p.sub_(group["lr"] * p.grad) for group in opt.param_groups '
      'for p in group["params"] if p.grad is not None]')
wrong("using the first group's learning rate for all groups", "step", STEP,
      'for group in opt.param_groups: group["lr"] = opt.param_groups[0]["lr"]\n    opt.step()',
      says=CHANGE)
wrong("discarding the optimizer's state before every step",
      "step", STEP, "opt.state.clear(); opt.step()",
      says=CHANGE)
wrong("taking two steps on the same gradient", "step", STEP, "opt.step(); opt.step()")
wrong("clipping the gradients to a norm of 1", "step",
      STEP, "nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step()", says=CHANGE,
      trap="03.3")
wrong("assuming that every parameter has a gradient", "frozen",
      STEP, "sum(p.grad.norm() for p in model.parameters()); opt.step()", says="raised")
wrong("returning the loss after the update", "loss", LAST, f"{LOSS}.item()")
wrong("returning the loss as a tensor that keeps its graph", "loss", LAST, "loss",
      says="type of the loss", trap="02.5")
wrong("rounding the loss to four decimals", "loss", LAST, "round(loss.item(), 4)")
wrong("taking the sum of the squared errors", "mean", LOSS, SUM, trap="02.2")
wrong("taking the root of the mean squared error", "mean", LOSS, f"{LOSS}.sqrt()")
wrong("training on the sum but returning the mean", "mean", LOSS, SUM, LAST, "loss.item() / len(y)",
      says=CHANGE, trap="02.2")
wrong("taking half the mean squared error", "mean", LOSS, f"{LOSS} / 2")
wrong("comparing every output with every target", "mean",
      LOSS, "((model(x).squeeze(1) - y) ** 2).mean()")
wrong("squeezing a single row to a scalar, which has no length", "shapes", "loss =",
      "error = (model(x) - y).squeeze(); loss =", LOSS, "(error**2).sum() / len(error)",
      says="raised TypeError")
wrong("using only the first 32 rows", "shapes", LOSS, "F.mse_loss(model(x[:32]), y[:32])",
      says="loss before the update")
