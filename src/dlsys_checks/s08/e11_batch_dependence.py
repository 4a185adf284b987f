"""Exercise 08.11, `batch_dependence`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("08.11", "batch_dependence", seen=("kind", "x", "others", "weight", "order"),
              says="result")

ex.promise("result", "How far the output for x[0] moves when it gets other neighbours.",
           says=("result",))
ex.promise("model", "model maps (N, ...) to (N, ...), one output a row.", cases=(
    "attention across the batch", "images", "one number a row", "sums by row",
    "three axes in the output", "columns first in memory"))
ex.promise("x", "x: (N, ...), N >= 2,", cases=("two rows", "many rows", "the example"))
ex.promise("tokens", "float32 or int64,", cases=("tokens, by their embedding",))
ex.promise("memory", "in memory in any order;", cases=("columns first in memory",))
ex.promise("others", "others: (N - 1, ...), the rows that take the place of x[1:].",
           says=("result",))
ex.promise("largest", "The result is the largest absolute change of a number of output 0,",
           says=("result",))
ex.promise("eval", "measured in eval mode", says=("result", "calls in train mode"))
ex.promise("no graph", "and without building a graph;", says=("calls with gradients",))
ex.promise("grad mode", "the grad mode is as before afterwards.",
           says=("grad mode after the call",))
ex.promise("modes", "The model, which writes no buffer in eval mode, comes back as it was: "
           "every module in its former mode,",
           says=("training flags",))
ex.promise("buffers", "parameters and buffers untouched,", says=("weights and buffers",))
ex.promise("facts", "their dtype, gradients and requires_grad included.",
           says=("facts of parameters",))
ex.promise("writes", "It may write into what it is given, but x and others stay as they were.",
           cases=("a model that writes", "a model that writes, no dependence"),
           says=("result", "numbers changed"))
ex.promise("example", "Example: a model that subtracts the mean of the batch, x [[1.], [3.]], "
           "others [[7.]]: the output for row 0 moves from -1 to -3, the result is 2.",
           cases=("the example",))


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, kind, rows, *shape, scale=1.0, order="rows"):
        x, others = (torch.randn(n, *shape, generator=g) * scale for n in (rows, rows - 1))
        if kind == "tokens":
            x, others = (torch.randint(4, (n, *shape), generator=g) for n in (rows, rows - 1))
            others[:] = 3 - x[1:]
        return name, {"kind": kind, "x": x, "others": others, "order": order,
                      "weight": torch.randn(4, 4, generator=g)}
    example = {"kind": "mean", "x": torch.tensor([[1.0], [3.0]]), "others": torch.tensor([[7.0]]),
               "weight": torch.zeros(4, 4), "order": "rows"}
    return [one("attention across the batch", "attention", whole(4, 9), 3, 4),
            one("no dependence", "rows", whole(3, 7), 4),
            one("batch statistics", "norm", whole(4, 9), 4),
            one("dropout", "dropout", whole(3, 7), 4),
            one("images", "mean", whole(3, 7), 2, 3, 5),
            one("three axes in the output", "mean", whole(3, 7), 3, 2),
            one("one number a row", "flat", whole(3, 7), 4),
            one("a small dependence", "mean", whole(3, 6), 4, scale=1e-3),
            one("a tiny dependence", "mean", whole(3, 6), 4, scale=1e-7),
            one("a large dependence", "mean", whole(3, 6), 4, scale=1e4),
            one("two rows", "mean", 2, 4), one("many rows", "mean", whole(40, 60), 4),
            one("the last row alone counts", "last", whole(4, 8), 4),
            one("a model that writes", "writes", whole(3, 7), 4),
            one("a model that writes, no dependence", "writes rows", whole(3, 7), 4),
            one("sums by row", "mean", whole(3, 6), 6),
            one("tokens, by their embedding", "tokens", whole(3, 7), 5),
            one("columns first in memory", "mean", whole(3, 7), 4, 3, order="columns"),
            ("the example", example)]


@ex.act
def act(fn, kind, x, others, weight, order):
    calls = {"train": 0, "grad": 0, "changed": 0, "left": []}

    class Model(nn.Module):
        """Mixes rows as `kind` says; notes mode and grad mode of each call."""

        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.BatchNorm1d(4)),
                                       nn.Dropout(0.5))
            self.scale = nn.Parameter(torch.ones(()))
            self.weight = nn.Parameter(weight.clone())

        def forward(self, z):
            calls["train"] += any(m.training for m in self.modules())
            calls["grad"] += torch.is_grad_enabled()
            if kind == "tokens":
                if z.dtype != torch.int64:
                    raise TypeError(f"model: got {z.dtype}, expected int64 tokens, as x has them")
                z = self.weight[z]
                return z - z.mean(0)
            given, z = z, z * self.scale
            if kind == "attention":  # rows of the batch as tokens
                q = z.transpose(0, 1)
                out = ((q @ self.weight) @ q.mT).softmax(-1) @ q
                return out.transpose(0, 1)
            if kind == "rows":
                return z @ self.weight
            if kind == "norm":
                return self.inner[1](z)
            if kind == "dropout":
                return self.inner[0](z)
            if kind == "flat":
                return (z @ self.weight)[:, 0] * z.sum()
            if kind == "last":
                return z + z[-1:].square()
            out = z - (0 if kind == "writes rows" else z.mean(0))
            if kind.startswith("writes"):
                given.copy_(out)
                return given
            return out

    model = Model()
    model.inner[1][0].running_mean.fill_(0.5)
    model.inner[1][0].num_batches_tracked.fill_(3)
    model.scale.grad = torch.ones(())
    model.weight.requires_grad_(False)
    tensors = [*model.parameters(), *model.buffers()]
    held = [t.detach().clone() for t in tensors]

    def facts():
        now = [*model.parameters(), *model.buffers()]
        return [[id(t) for t in now], [str(t.dtype) for t in now], [t.requires_grad for t in now],
                ["none" if t.grad is None else t.grad.item() for t in now],
                [sorted(vars(model)), len(model._forward_hooks)]]

    before = facts()
    results, flags = [], []
    for modes in ([True, True, True, True, False, False], [False, True, False, False, True, True]):
        for module, mode in zip(model.modules(), modes):
            module.training = mode
        given = x if len(results) == 0 else x.flip(0)
        mine, theirs = given.clone(), others.clone()
        if order == "columns":
            mine, theirs = (t.mT.contiguous().mT for t in (mine, theirs))
        torch.set_grad_enabled(not results)  # the second call comes from under no_grad
        results.append(fn(model, mine, theirs))
        calls["left"].append(int(torch.is_grad_enabled()))
        flags.append([module.training for module in model.modules()])
        calls["changed"] += int((mine != given).sum() + (theirs != others).sum()
                                + mine.requires_grad + theirs.requires_grad)
    now = (*model.parameters(), *model.buffers())
    return {"results": results, "flags": flags, **calls,
            "facts": [int(a != b) for a, b in zip(facts(), before)],
            "held": sum(int((a != b).sum()) for a, b in zip(held, now))}


def attended(z, weight):
    """Attention across the batch, token by token; float64."""
    q, w = z.double(), weight.double()
    scores = torch.einsum("nsi,ij,msj->snm", q, w, q)
    return torch.einsum("snm,msi->nsi", torch.softmax(scores, -1), q)


def expected(kind, x, others, weight):
    """The largest change of a number of output 0, from the formula of each kind; float64."""
    old = x.double()
    new = torch.cat([old[:1], others.double()])
    if kind == "attention":
        change = (attended(new, weight) - attended(old, weight))[0]
    elif kind in ("mean", "writes"):
        change = (old.sum(0) - new.sum(0)) / len(old)
    elif kind == "flat":
        change = (old[0] @ weight.double()[:, 0]) * (new - old).sum()
    elif kind == "last":
        change = new[-1] ** 2 - old[-1] ** 2
    elif kind == "tokens":
        table = weight.double()
        change = (table[old.long()] - table[new.long()]).sum(0) / len(old)
    else:
        change = torch.zeros(1)
    return float(change.abs().max())


@ex.law
def law(out, kind, x, others, weight, order):
    expect_parts(out, "results", "flags", "train", "grad", "changed", "left", "facts", "held")
    expect_length("calls of your function", out["results"], 2)
    expect_length("calls of your function", out["flags"], 2)
    modes = [[True, True, True, True, False, False], [False, True, False, False, True, True]]
    for k, (got, flags) in enumerate(zip(out["results"], out["flags"], strict=True), 1):
        right = expected(kind, x if k == 1 else x.flip(0), others, weight)
        expect_close(f"result of call {k}", got, right, rtol=2e-4,
                     atol=1e-6 * float(x.abs().max()) ** (2 if kind in ("flat", "last") else 1))
        expect_equal(f"training flags after call {k}", flags, modes[k - 1],
                     "Each module gets its own mode back.")
    expect_equal("calls in train mode", out["train"], 0, "Measure in eval mode.")
    expect_equal("calls with gradients", out["grad"], 0, "Measure under no_grad.")
    expect_equal("numbers changed in weights and buffers", out["held"], 0)
    expect_equal("facts of parameters that changed (objects, dtype, requires_grad, gradients, "
                 "attributes and hooks of the model)", out["facts"], [0] * 5)
    expect_equal("grad mode after the call: on at first, then off", out["left"], [1, 0],
                 "Use with torch.no_grad().")
    expect_equal("numbers changed in x and others", out["changed"], 0, "Hand over copies.")


# ---- wrong, by name

@not_an_answer
def moved(model, x, others, *, batch=lambda x, others: torch.cat([x[:1], others]),
          first=torch.clone, size=lambda change: change.abs().max(), row=lambda out: out[0],
          restore=True, evaluate=True, grad=False):
    """The worked answer with its pieces as options."""
    modes = [(module, module.training) for module in model.modules()]
    if evaluate:
        model.eval()
    with torch.set_grad_enabled(grad):
        old = row(model(first(x))).detach().clone()
        new = row(model(batch(x, others))).detach()
    if restore:
        for module, mode in modes:
            module.training = mode
    return size(new - old).item()


@ex.wrong("the batch permuted: blind, the outputs are permuted with it", breaks="others")
def permuted(model, x, others):
    return moved(model, x, others, batch=lambda x, o: torch.cat([x[:1], x[1:].flip(0)]))


@ex.wrong("one row repeated, against the row alone", breaks="others")
def repeated(model, x, others):
    return moved(model, x, others, first=lambda x: x[:1].clone(),
                 batch=lambda x, o: x[:1].expand_as(x).clone())


ex.wrong("the same batch twice",
         lambda model, x, others: moved(model, x, others, batch=lambda x, o: x.clone()),
         breaks="result")
ex.wrong("the row alone in place of the row with others",
         lambda model, x, others: moved(model, x, others, batch=lambda x, o: x[:1].clone()),
         breaks="others")


@ex.wrong("one other row replaced only", breaks="others")
def one_replaced(model, x, others):
    return moved(model, x, others, batch=lambda x, o: torch.cat([x[:1], o[:1], x[2:]]))


ex.wrong("row 0 replaced as well", moved, breaks="result", batch=lambda x, o: torch.cat([o[:1], o]))
ex.wrong("the largest change over all outputs", moved, breaks="largest", row=lambda out: out)
ex.wrong("the mean change", moved, breaks="largest", size=lambda c: c.abs().mean())
ex.wrong("the largest change with its sign: a fall is not seen", moved, breaks="largest",
         size=lambda c: c.max())
ex.wrong("the length of the change", moved, breaks="largest", size=lambda c: c.norm())
ex.wrong("the largest squared change", moved, breaks="largest", size=lambda c: c.square().max())
ex.wrong("a tensor in place of a number",
         lambda model, x, others: torch.tensor(moved(model, x, others)), says="type of the result",
         breaks="largest")


@ex.wrong("the mode left as it was: dropout looks like a leak", breaks="eval")
def in_train_mode(model, x, others):
    torch.manual_seed(0)
    with torch.no_grad():
        old = model(x.clone())[0].clone()
        torch.manual_seed(0)
        new = model(torch.cat([x[:1], others]))[0]
    return (new - old).abs().max().item()


@ex.wrong("modes put back by type", breaks="modes")
def by_type(model, x, others):
    modes = {type(module): module.training for module in model.modules()}
    out = moved(model, x, others)
    for module in model.modules():
        module.training = modes[type(module)]
    return out


@ex.wrong("a change below 1e-6 taken for none", breaks="largest")
def tiny_as_none(model, x, others):
    out = moved(model, x, others)
    return out if out > 1e-6 else 0.0


KNOWN: dict = {}


@ex.wrong("the result remembered by the model", says="result of call 2", breaks="result")
def remembered(model, x, others):
    if KNOWN.get("model") is not model:
        KNOWN.update(model=model, result=moved(model, x, others))
    return KNOWN["result"]


ex.wrong("eval left behind", moved, breaks="modes", restore=False)


@ex.wrong("train mode for all at the end", breaks="modes")
def train_left(model, x, others):
    out = moved(model, x, others)
    model.train()
    return out


@ex.wrong("the model's own mode given to all its parts", breaks="modes")
def one_mode(model, x, others):
    mode = model.training
    out = moved(model, x, others)
    model.train(mode)
    return out


ex.wrong("a graph built", moved, breaks="no graph", grad=True)


@ex.wrong("running statistics reset first", breaks="buffers")
def resets(model, x, others):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
    return moved(model, x, others)


@ex.wrong("the parameters' gradients set to None", breaks="facts")
def zeroes(model, x, others):
    model.zero_grad()
    return moved(model, x, others)


@ex.wrong("requires_grad switched off, and on for all", breaks="facts")
def all_asking(model, x, others):
    model.requires_grad_(False)
    out = moved(model, x, others)
    model.requires_grad_(True)
    return out


@ex.wrong("gradients switched off for good", breaks="grad mode")
def off_for_good(model, x, others):
    out = moved(model, x, others)
    torch.set_grad_enabled(False)
    return out


@ex.wrong("gradients switched on at the end, whatever they were", breaks="grad mode")
def on_at_the_end(model, x, others):
    out = moved(model, x, others)
    torch.set_grad_enabled(True)
    return out


ex.wrong("tokens turned into floats",
         lambda model, x, others: moved(model, x.float(), others.float()), says="raised TypeError",
         breaks="tokens")
ex.wrong("x viewed as if rows came first in memory",
         lambda model, x, others: moved(model, x.view(-1).view(x.shape), others),
         says="raised RuntimeError", breaks="memory")
ex.wrong("x itself handed to a model that writes",
         lambda model, x, others: moved(model, x, others, first=lambda x: x), breaks="writes")


@ex.wrong("x handed over last: it comes back changed", breaks="writes")
def x_last(model, x, others):
    return moved(model, x, others, first=lambda z: torch.cat([z[:1], others]),
                 batch=lambda x, o: x)


ex.wrong("rows flattened before the model",
         lambda model, x, others: float(x.dim()) if x.dim() > 2 else moved(model, x, others),
         breaks="model")
ex.wrong("only the first 32 rows looked at",
         lambda model, x, others: moved(model, x[:32], others[:31]), breaks="x")
