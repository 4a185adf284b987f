"""Exercise 02.5, `evaluate`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("02.5", "evaluate", seen=("models", "calls"))

SMALLER = ("a small last batch", "a model in eval mode", "a class of your own", "BatchNorm",
           "a last batch of one row", "a frozen BatchNorm", "two models in turn", "the example")

ex.promise("result", "Returns: (mean cross-entropy, accuracy), two floats.",
           says=("mean cross-entropy", "accuracy", "result"))
ex.promise("sizes", "Args: model: any module. batches: pairs of x (n, F) float32 and y (n,) int64. "
                    "The last pair can have fewer rows than the others.", cases=SMALLER)
ex.promise("eval", "Compute mean cross-entropy and accuracy over all rows, in eval mode.",
           says=("mean cross-entropy", "accuracy", "raised"))
ex.promise("modes", "Afterwards the grad mode and the mode of every module are as before.",
           says=("modules in a different mode", "grad mode afterwards"))
ex.promise("graph", "Build no graph at any time.", says=("tensors kept for a backward",))
ex.promise("kept", "Keep only sums from each batch.",
           says=("values kept for each row", "rows in one forward pass"))
ex.promise("example", "Example: with 3 of 4 rows right, in batches of 3 and 1, the accuracy is "
           "0.75.",
           cases=("the example",))


@ex.cases
def cases(g):
    number = integers(g)

    def model(kind, features=4, hidden=8, classes=3, modes="train", size=2.0):
        norm = [torch.randn(hidden, generator=g), torch.rand(hidden, generator=g) + 0.5]
        return {"kind": kind, "first": torch.randn(hidden, features, generator=g),
                "second": torch.randn(classes, hidden, generator=g) * size,
                # Without it, rows that no hidden unit sees have equal scores: no class is ahead.
                "bias": torch.randn(classes, generator=g),
                "norm": norm if "norm" in kind else [], "modes": modes}

    def call(net, sizes, at=0):
        features, classes = net["first"].shape[1], net["second"].shape[0]
        return {"model": at, "batches": [[torch.randn(n, features, generator=g),
                                          torch.randint(classes, (n,), generator=g)]
                                         for n in sizes]}

    def one(name, net, *parts):
        return name, {"models": [net], "calls": [call(net, sizes) for sizes in parts]}

    def example():
        """Four rows of which the model gets the first, the third and the last right."""
        net = model("dropout", features=3, hidden=3)
        net["first"], net["second"], net["bias"] = torch.eye(3), torch.eye(3) * 2, torch.zeros(3)
        rows = torch.eye(3)[[0, 1, 2, 1]] * (1 + torch.rand(4, 1, generator=g))
        y = torch.tensor([0, 2, 2, 1])
        return {"models": [net], "calls": [
            {"model": 0, "batches": [[rows[:3], y[:3]], [rows[3:], y[3:]]]}]}

    n, c = number(5, 9), number(4, 8)
    pair = [model("dropout", features=number(2, 6), classes=c),
            model("own norm", features=5, hidden=6, classes=2, modes="eval")]
    return [
        one("a small last batch", model("dropout"), (n, n, 2), (4, 1)),
        one("a model in eval mode", model("dropout", modes="eval", classes=c), (5, 2), (n, 3)),
        one("a class of your own", model("own", hidden=6, classes=c), (n, n - 2)),
        one("BatchNorm", model("norm", features=3, classes=4), (n, n, 3)),
        one("a last batch of one row", model("own norm", classes=2), (6, 6, 1)),
        one("a frozen BatchNorm", model("norm", hidden=5, classes=c, modes="mixed"), (4, 4, 2)),
        one("one batch", model("own norm", features=2), (n + 2,)),
        one("logits in the hundreds", model("dropout", classes=c, size=400.0), (n, n)),
        one("many equal batches", model("own norm", classes=c, features=number(2, 5)),
            [number(12, 20)] * 7),
        ("two models in turn", {"models": pair, "calls": [
            call(pair[k], sizes, k) for k, sizes in ((0, (3, 3, 1)), (1, (n, 2)), (0, (5, 4)))]}),
        ("the example", example())]


@ex.act
def act(fn, models, calls):
    import weakref
    kept, seen, living, rows = [], [], [], []

    class Watch(torch.overrides.TorchFunctionMode):
        """Remembers each tensor that a torch function makes, for as long as it lives."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for made in result if isinstance(result, tuple | list) else (result,):
                if type(made) is torch.Tensor:
                    seen.append(weakref.ref(made))
            return result

    class Net(nn.Module):
        def __init__(self, body):
            super().__init__()
            self.body = body

        def forward(self, x):
            alive = [ref() for ref in seen]
            living.append(sum(t.numel() for t in alive if t is not None and t is not x))
            rows.append(len(x))
            return self.body(x)

    class Own(nn.Module):
        def __init__(self, features, hidden, classes, norm):
            super().__init__()
            self.parts = nn.ModuleDict({"in": nn.Linear(features, hidden, bias=False),
                                        "out": nn.Linear(hidden, classes)})
            self.norm = norm

        def forward(self, x):
            h = self.norm(self.parts["in"](x)).relu()
            return self.parts["out"](F.dropout(h, 0.5, training=self.training))

    def made(kind, first, second, bias, norm, modes):
        hidden, features = first.shape
        middle = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        if kind.startswith("own"):
            net = Net(Own(features, hidden, len(second), middle))
            layers = [net.body.parts["in"], net.body.parts["out"]]
        else:
            net = Net(nn.Sequential(nn.Sequential(nn.Linear(features, hidden, bias=False), middle),
                                    nn.Sequential(nn.ReLU(), nn.Dropout(0.5)),
                                    nn.Linear(hidden, len(second))))
            layers = [net.body[0][0], net.body[2]]
        with torch.no_grad():
            layers[0].weight.copy_(first)
            layers[1].weight.copy_(second)
            layers[1].bias.copy_(bias)
            for buffer, value in zip((middle.running_mean, middle.running_var) if norm else (),
                                     norm, strict=True):
                buffer.copy_(value)
        net.train(modes != "eval")
        middle.train(modes == "train")
        return net

    def pack(tensor):
        kept.append(1)
        return tensor

    nets = [made(**model) for model in models]
    found = {"results": [], "kept": [], "other_modes": [], "left": [], "more_rows": [], "grad": []}
    for call in calls:
        net, batches = nets[call["model"]], [(x, y) for x, y in call["batches"]]
        modes = [m.training for m in net.modules()]
        for list_ in (kept, seen, living, rows):
            list_.clear()
        asked = not found["results"]  # the first caller has gradients, a later one has none
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), Watch(), (
                torch.set_grad_enabled(asked)):
            found["results"].append(fn(net, batches))
            found["grad"].append(torch.is_grad_enabled())
        most = max(len(y) for _, y in batches)
        found["kept"].append(len(kept))
        found["other_modes"].append(sum(
            m.training != was for m, was in zip(net.modules(), modes, strict=True)))
        found["more_rows"].append(max([0, *(n - most for n in rows)]))
        # Between the second pass and the last, of equal batches, a kept number a row adds up.
        equal = len(batches) > 2 and len({len(y) for _, y in batches}) == 1
        grown = living[-1] - living[1] if equal and len(living) > 2 else 0
        found["left"].append(max(0, grown // (most * (len(batches) - 2))) if equal else 0)
    return found


def expected(model, batches):
    """Mean cross-entropy and accuracy by hand, in float64."""
    x = torch.cat([x for x, _ in batches]).double() @ model["first"].double().T
    y = torch.cat([y for _, y in batches])
    if model["norm"]:
        mean, variance = (v.double() for v in model["norm"])
        x = (x - mean) / (variance + 1e-5).sqrt()
    logits = x.clamp(min=0) @ model["second"].double().T + model["bias"].double()
    top = logits.amax(1)
    whole = (logits - top[:, None]).exp().sum(1).log() + top
    loss = float((whole - logits[torch.arange(len(y)), y]).mean())
    right = sum(max(range(len(row)), key=row.__getitem__) == k
                for row, k in zip(logits.tolist(), y.tolist(), strict=True))
    return loss, right / len(y)


@ex.law
def law(out, models, calls):
    expect_parts(out, "results", "kept", "other_modes", "left", "more_rows", "grad")
    expect_length("results", out["results"], len(calls))
    for call, result in zip(calls, out["results"], strict=True):
        expect_type("result", result, tuple)
        expect_equal("number of results", len(result), 2)
        loss, accuracy = expected(models[call["model"]], call["batches"])
        expect_close("mean cross-entropy", result[0], loss, rtol=1e-4, atol=1e-6)
        expect_close("accuracy", result[1], accuracy, rtol=1e-5)
    none = [0] * len(calls)
    # All of these are seen by the act alone, beside the learner's code.
    expect_equal("tensors kept for a backward pass", out["kept"], none,
                 "Switch the graph off while you measure.")
    expect_equal("modules in a different mode afterwards", out["other_modes"], none,
                 "Store the mode of each module before you call eval().")
    expect_equal("grad mode afterwards", out["grad"], [k == 0 for k in range(len(calls))],
                 "Restore the mode that the caller had.")
    expect_equal("rows in one forward pass, beyond the largest batch", out["more_rows"], none,
                 "Run a separate forward pass for each batch.")
    expect_equal("values kept for each row", out["left"], none,
                 "Add to the sums, and keep nothing else of the batch.")


class Evaluating:
    """Eval mode inside the block, afterwards each module's own mode."""

    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.was = {module: module.training for module in self.model.modules()}
        self.model.eval()

    def __exit__(self, *_):
        for module, mode in self.was.items():
            module.training = mode


# ---- wrong, by name

def totals(model, batches):
    """Sum of the losses and number of right rows, as the model is set up now."""
    loss, right = 0.0, 0
    for x, y in batches:
        logits = model(x)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        right += int((logits.argmax(1) == y).sum())
    return loss, right


def count(batches):
    return sum(len(y) for _, y in batches)


def means(model, batches):
    loss, right = totals(model, batches)
    return loss / count(batches), right / count(batches)


@not_an_answer
@torch.no_grad()
def evaluated(model, batches):
    with Evaluating(model):
        return means(model, batches)


wrong = ex.edits(evaluated)
END = "return means(model, batches)"
EVALUATING = "with Evaluating"
BATCHES = "means(model, batches)"
wrong("averaging the mean losses and the accuracies of the batches", "sizes",
      END,
      "pairs = [[value / len(part[1]) for value in totals(model, [part])] for part in batches]\n "
      "   loss, right = (sum(values) / len(batches) for values in zip(*pairs, strict=True)); "
      "return loss, right", says="mean cross-entropy")
wrong("using only the last batch", "result",
      BATCHES, "means(model, batches[-1:])", says="mean cross-entropy")
wrong("applying softmax before the cross-entropy", "result",
      "means(model", "means(lambda x: model(x).softmax(1)", says="mean cross-entropy", trap="03.1")
wrong("leaving out a smaller last batch", "sizes",
      EVALUATING,
      f"full = [part for part in batches if len(part[1]) == len(batches[0][1])]\n    {EVALUATING}",
      BATCHES, "means(model, full)", says="mean cross-entropy")
wrong("leaving dropout on", "eval",
      EVALUATING,
      "was = {k: v.clone() for k, v in model.state_dict().items()}; found = means(model, "
      "batches); model.load_state_dict(was); return found\n    with Evaluating", trap="01.1")


@ex.wrong("leaving BatchNorm in train mode", trap="01.1", breaks="eval")
@torch.no_grad()
def norm_on(model, batches):
    was = {k: v.clone() for k, v in model.state_dict().items()}
    with Evaluating(model):
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.train()
        found = means(model, batches)
    model.load_state_dict(was)
    return found


wrong("switching only the Dropout layers to eval mode", "eval",
      "return means",
      "model.train()\n        for module in model.modules():\n            if isinstance(module, "
      "nn.Dropout): module.eval()\n        return means", trap="01.1")
wrong("never leaving eval mode", "modes",
      EVALUATING, f"return means(model.eval(), batches)\n    {EVALUATING}", trap="01.1")
wrong("calling train() at the end, even if the model was in eval mode before", "modes",
      EVALUATING,
      f"found = means(model.eval(), batches); model.train(); return found\n    {EVALUATING}",
      trap="01.1")
wrong("putting every module into the model's former mode", "modes",
      EVALUATING,
      "was = model.training; found = means(model.eval(), batches); model.train(was); return "
      "found\n    with Evaluating", trap="01.1")


@ex.wrong("switching gradients off and never on again", breaks="modes")
def off_for_good(model, batches):
    torch.set_grad_enabled(False)
    with Evaluating(model):
        return means(model, batches)


@ex.wrong("switching gradients on at the end, even if they were off before", breaks="modes")
def on_at_the_end(model, batches):
    with Evaluating(model), torch.no_grad():
        found = means(model, batches)
    torch.set_grad_enabled(True)
    return found


wrong("averaging the accuracies of the batches", "sizes",
      END,
      "pairs = [totals(model, [part]) for part in batches]\n    shares = [right / len(y) for (_, "
      "right), (_, y) in zip(pairs, batches, strict=True)]; return sum(loss for loss, _ in "
      "pairs) / count(batches), sum(shares) / len(shares)")


@ex.wrong("using eval mode without no_grad", says="kept for a backward", breaks="graph")
def builds_graphs(model, batches):
    with Evaluating(model):
        return means(model, batches)


wrong("putting all rows into one batch", "kept",
      EVALUATING,
      f"x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))\n    {EVALUATING}",
      BATCHES, "means(model, [(x, y)])")
wrong("keeping the logits of all batches in a list", "kept",
      END,
      "logits = torch.cat([model(x) for x, _ in batches])\n    y = torch.cat([y for _, y in "
      "batches]); return F.cross_entropy(logits, y).item(), (logits.argmax(1) == "
      "y).float().mean().item()")


@ex.wrong("keeping one loss per row in a list", breaks="kept")
@torch.no_grad()
def all_losses(model, batches):
    losses, right = [], 0
    with Evaluating(model):
        for x, y in batches:
            logits = model(x)
            losses.append(F.cross_entropy(logits, y, reduction="none"))
            right += int((logits.argmax(1) == y).sum())
    losses = torch.cat(losses)
    return losses.mean().item(), right / len(losses)


wrong("returning tensors instead of floats", "result",
      BATCHES, f"tuple(map(torch.tensor, {BATCHES}))", says="type of the mean cross-entropy")
wrong("returning the sums without dividing by the number of rows", "result",
      END, "loss, right = totals(model, batches)\n    return loss, float(right)")
wrong("returning the error rate instead of the accuracy", "result",
      END, f"loss, right = {BATCHES}\n    return loss, 1 - right")
wrong("returning the accuracy in percent", "result",
      END, f"loss, right = {BATCHES}\n    return loss, 100 * right")
