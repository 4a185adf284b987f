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

ex.promise_table("""
result    | Measure how far the output for x[0] moves when the other rows change. | result
model     | Args: model: maps (N, ...) to (N, ...), one output per row. | case attention across the
            batch; images; one value per row; sums by row; three axes in the output; columns first
            in memory
x         | x: (N, ...), N >= 2. | case two rows; many rows; the example
tokens    | x is float32 or int64. | case tokens, by their embedding
memory    | Any memory order works. | case columns first in memory
others    | others: (N - 1, ...), the rows that replace x[1:]. | result
largest   | The result is the largest absolute change in any value of output 0. | result
eval      | The model runs in eval mode. | result; calls in train mode
no graph  | No graph is built. | calls with gradients
grad mode | Afterwards the grad mode is what it was. | grad mode after the call
modes     | The model, whose buffers do not change in eval mode, keeps every module's training flag.
            | training flags
buffers   | All parameters and buffers are unchanged. | weights and buffers
facts     | Their dtype, gradients and requires_grad also stay the same. | properties of parameters
writes    | The model may write into its input, but x and others must not change. | case a model
            that writes; a model that writes, no dependence | result; values changed
example   | Example: for a model that subtracts the mean of the batch, x [[1.], [3.]] and others
            [[7.]], the output for row 0 moves from -1 to -3, so the result is 2. | case the example
""")


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
            one("one value per row", "flat", whole(3, 7), 4),
            one("a small dependence", "mean", whole(3, 6), 4, scale=1e-3),
            one("a tiny dependence", "mean", whole(3, 6), 4, scale=1e-7),
            one("a large dependence", "mean", whole(3, 6), 4, scale=1e4),
            one("two rows", "mean", 2, 4), one("many rows", "mean", whole(40, 60), 4),
            one("only the last row counts", "last", whole(4, 8), 4),
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
    expect_equal("calls with gradients on", out["grad"], 0, "Measure under no_grad.")
    expect_equal("values changed in weights and buffers", out["held"], 0)
    expect_equal("properties of parameters that changed (objects, dtype, requires_grad, gradients, "
                 "attributes and hooks of the model)", out["facts"], [0] * 5)
    expect_equal("grad mode after the call (first call: on, second: off)", out["left"], [1, 0],
                 "Use with torch.no_grad().")
    expect_equal("values changed in x and others", out["changed"], 0, "Pass copies.")


# ---- wrong, by name

@not_an_answer
def moved(model, x, others, *, batch=lambda x, others: torch.cat([x[:1], others]),
          first=torch.clone, size=lambda change: change.abs().max()):
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.set_grad_enabled(False):
        old = model(first(x))[0].detach().clone()
        new = model(batch(x, others))[0].detach()
    for module, mode in modes:
        module.training = mode
    out = size(new - old).item()
    return out


wrong = ex.edits(moved)
OTHERS = "batch(x, others)"
wrong("permuting the other rows instead of replacing them", "others",
      OTHERS, "torch.cat([x[:1], x[1:].flip(0)])")
wrong("comparing a batch of copies of row 0 with row 0 alone", "others",
      "first(x)", "x[:1].clone()", OTHERS, "x[:1].expand_as(x).clone()")
wrong("running the same batch twice", "result", OTHERS, "x.clone()")
wrong("comparing with row 0 alone instead of with row 0 and other rows",
      "others", OTHERS, "x[:1].clone()")
wrong("replacing only one other row", "others", OTHERS, "torch.cat([x[:1], others[:1], x[2:]])")
ex.wrong("replacing row 0 as well",
         moved, breaks="result", batch=lambda x, o: torch.cat([o[:1], o]))
wrong("returning the largest change over all outputs, not only output 0", "largest",
      "model(first(x))[0]", "model(first(x))", "model(batch(x, others))[0]", f"model({OTHERS})")
ex.wrong("returning the mean change instead of the largest change",
         moved, breaks="largest", size=lambda c: c.abs().mean())
ex.wrong("keeping the sign of the change, so that a decrease does not show", moved,
         breaks="largest",
         size=lambda c: c.max())
ex.wrong("returning the norm of the change instead of its largest value",
         moved, breaks="largest", size=lambda c: c.norm())
ex.wrong("returning the largest squared change",
         moved, breaks="largest", size=lambda c: c.square().max())
wrong("returning a tensor instead of a number", "largest",
      "return out", "return torch.tensor(out)", says="type of the result")
wrong("leaving the mode as it was and seeding both calls alike", "eval",
      "modes = [(module, module.training) for module in model.modules()]\n    model.eval()\n    "
      "with torch.set_grad_enabled(False):\n        old = model(first(x))[0].detach().clone()\n  "
      "      new = model(batch(x, others))[0].detach()\n    for module, mode in modes:\n        "
      "module.training = mode\n    out = size(new - old).item()",
      "torch.manual_seed(0)\n    with torch.no_grad(): old = model(x.clone())[0].clone(); "
      "torch.manual_seed(0); new = model(torch.cat([x[:1], others]))[0]\n    out = (new - "
      "old).abs().max().item()")
wrong("not calling eval(), so that dropout looks like a dependence", "eval", "model.eval()", "pass")
wrong("restoring one mode for all modules of the same type", "modes",
      "modes =",
      "kinds = {type(m): m.training for m in model.modules()}; modes =",
      "return out", "for m in model.modules(): m.training = kinds[type(m)]\n    return out")
wrong("treating a change below 1e-6 as no change", "largest",
      "return out", "return out if out > 1e-6 else 0.0")


KNOWN: dict = {}


@ex.wrong("returning the first call's result again for the same model", says="result of call 2",
          breaks="result")
def remembered(model, x, others):
    if KNOWN.get("model") is not model:
        KNOWN.update(model=model, result=moved(model, x, others))
    return KNOWN["result"]


wrong("leaving the model in eval mode", "modes",
      "for module, mode in modes:\n        module.training = mode", "pass")
wrong("setting every module to train mode at the end", "modes", "return out",
      "model.train(); return out")
wrong("giving the model's own mode to all its modules at the end", "modes",
      "modes =", "own_mode = model.training; modes =",
      "return out", "model.train(own_mode); return out")
wrong("measuring with gradients on, which builds a graph", "no graph", "False", "True")
wrong("resetting the running statistics before the forward pass", "buffers",
      "modes =",
      "for norm in model.modules():\n        if isinstance(norm, nn.BatchNorm1d): "
      "norm.reset_running_stats()\n    modes =")
wrong("setting the parameters' gradients to None", "facts", "modes =", "model.zero_grad(); modes =")
wrong("switching requires_grad off and then on for all parameters", "facts",
      "modes =", "model.requires_grad_(False); modes =",
      "return out", "model.requires_grad_(True); return out")
wrong("turning gradients off and leaving them off", "grad mode",
      "return out", "torch.set_grad_enabled(False); return out")
wrong("turning gradients on at the end, whatever the grad mode was before", "grad mode",
      "return out", "torch.set_grad_enabled(True); return out")
wrong("converting tokens to floats", "tokens",
      "modes =", "x = x.float(); modes =", "(x, others)", "(x, others.float())",
      says="raised TypeError")
wrong("calling view() on x, whatever its memory order", "memory",
      "modes =", "x = x.view(-1).view(x.shape); modes =", says="raised RuntimeError")
wrong("passing x itself to the first call, although the model writes into its input",
      "writes", "first(x)", "x")
wrong("passing x itself to the second call, although the model writes into its input", "writes",
      "first(x)", "torch.cat([x[:1], others])", OTHERS, "x")
wrong("flattening the rows before calling the model", "model",
      "return out", "return float(x.dim()) if x.dim() > 2 else out")
wrong("looking only at the first 32 rows", "x",
      "modes =", "x = x[:32]; modes =", "(x, others)", "(x, others[:31])")
