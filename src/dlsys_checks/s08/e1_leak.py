"""Exercise 08.1, `leak`."""

from __future__ import annotations

import torch
from torch import nn

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_parts, expect_type
from dlsys_helpers.judging import not_an_answer

ex = exercise("08.1", "leak", seen=("kind", "x", "others", "weight"), says="entry")

ex.promise_table("""
whole     | Measure how far each position leaks into the outputs before it. | entry
model     | Args: model: maps (N, T, ...) to (N, T, ...). | case the mean of all positions;
            attention without a mask; more axes; no axes after T; tokens, by their embedding
sizes     | x, others: both (N, T, ...) with T >= 1. | case one position; two positions; many
            positions; one row; many rows
tokens    | Both are float32 or int64. | case tokens, by their embedding
list      | Returns: A list of T floats. | type of the; number of entries
alone     | For every position t, replace x[:, t] by others[:, t] and nothing else, and run the
            model again. | entry
rows      | Consider all rows. | entry
entry     | Entry t is the largest absolute change in any output before position t. | entry
first     | Entry 0 is 0.0. | entry 0
eval      | The model runs in eval mode. | entry; calls in train mode
no graph  | No graph is built. | calls with gradients
grad mode | Afterwards the grad mode is what it was. | grad mode after the call
modes     | Every module's training flag is also what it was. | training flags
left      | x and others are unchanged. | values changed in x and others
example   | Example: a model that shifts all positions one to the left, with x [[1., 2., 3.]] and
            others [[5., 5., 9.]], gives [0.0, 3.0, 6.0]. | case the example
""")


@ex.cases
def cases(g):
    whole = integers(g)

    def one(name, kind, rows, places, *shape, scale=1.0):
        x, others = torch.randn(2, rows, places, *shape, generator=g) * scale
        if kind == "tokens":
            x = torch.randint(4, (rows, places), generator=g)
            others = 3 - x
        if kind == "one row":
            others[:-1] = x[:-1]
        return name, {"kind": kind, "x": x, "others": others,
                      "weight": torch.randn(4, 4, generator=g)}
    example = {"kind": "next", "x": torch.tensor([[1.0, 2.0, 3.0]]), "weight": torch.zeros(4, 4),
               "others": torch.tensor([[5.0, 5.0, 9.0]])}
    return [one("no leak", "causal", whole(2, 5), whole(4, 9), 4),
            one("the mean of all positions", "mean", whole(2, 5), whole(4, 9), 4),
            one("attention without a mask", "attention", whole(2, 4), whole(3, 7), 4),
            one("only the next position", "next", whole(2, 5), whole(4, 9), 4),
            one("two positions ahead", "second", whole(2, 5), whole(4, 9), 4),
            one("only the last position", "last", whole(2, 5), whole(4, 9), 4),
            one("only output 0 looks ahead", "first", whole(2, 5), whole(4, 9), 4),
            one("only one row leaks", "one row", whole(3, 6), whole(4, 8), 4),
            one("dropout", "dropout", whole(2, 5), whole(4, 9), 4),
            one("a tiny leak", "mean", whole(2, 5), whole(4, 9), 4, scale=1e-7),
            one("a large leak", "mean", whole(2, 5), whole(4, 9), 4, scale=1e4),
            one("more axes", "mean", whole(2, 4), whole(3, 6), 2, 3),
            one("no axes after T", "mean", whole(2, 5), whole(4, 9)),
            one("tokens, by their embedding", "tokens", whole(2, 5), whole(4, 9)),
            one("one position", "mean", whole(2, 5), 1, 4), one("two positions", "mean", 2, 2, 4),
            one("many positions", "mean", 2, whole(40, 60), 4), one("one row", "mean", 1, 5, 4),
            one("many rows", "one row", whole(40, 60), 4, 4), ("the example", example)]


@ex.act
def act(fn, kind, x, others, weight):
    calls = {"train": 0, "grad": 0, "changed": 0, "left": []}

    class Model(nn.Module):
        """Looks ahead as `kind` says; notes mode and grad mode of each call."""

        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.2)),
                                       nn.Dropout(0.5))
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, z):
            calls["train"] += any(m.training for m in self.modules())
            calls["grad"] += torch.is_grad_enabled()
            if kind == "tokens":
                if z.dtype != torch.int64:
                    raise TypeError(f"model: got {z.dtype}, expected int64 tokens, as x has them")
                z = weight[z]
            z = z * self.scale
            if kind == "causal":
                return z.cumsum(1).cumsum(1)
            if kind == "attention":
                return ((z @ weight) @ z.mT).softmax(-1) @ z
            if kind in ("next", "second"):
                far = 1 if kind == "next" else 2
                return torch.cat([z[:, far:], 0 * z[:, :far]], 1)
            if kind == "last":
                return z + z[:, -1:]
            if kind == "first":
                return torch.cat([z.sum(1, keepdim=True), z[:, 1:]], 1)
            if kind == "dropout":
                return self.inner[0](z)
            return z - z.mean(1, keepdim=True)

    model = Model()
    results, flags = [], []
    for modes in ([True, True, True, True, False, False], [False, True, False, False, True, True]):
        for module, mode in zip(model.modules(), modes):
            module.training = mode
        given = [x, others] if len(results) == 0 else [others, x.flip(0)]
        mine, theirs = (t.clone() for t in given)
        torch.set_grad_enabled(not results)  # the second call comes from under no_grad
        results.append(fn(model, mine, theirs))
        calls["left"].append(int(torch.is_grad_enabled()))
        flags.append([module.training for module in model.modules()])
        calls["changed"] += int((mine != given[0]).sum() + (theirs != given[1]).sum()
                                + mine.requires_grad + theirs.requires_grad)
    return {"results": results, "flags": flags, **calls}


def attended(z, weight):
    """Attention without a mask; float64."""
    return torch.einsum("nts,nsf->ntf", torch.einsum("ntf,fg,nsg->nts", z, weight, z).softmax(-1),
                        z)


def expected(kind, x, others, weight):
    """The list, from what each kind does with one place; float64."""
    x, others, weight = x.double(), others.double(), weight.double()
    if kind == "tokens":
        x, others = weight[x.long()], weight[others.long()]
    places, found = x.shape[1], [0.0]
    for t in range(1, places):
        change = float((others[:, t] - x[:, t]).abs().max())
        if kind == "attention":
            other = x.clone()
            other[:, t] = others[:, t]
            gap = attended(other, weight) - attended(x, weight)
            found.append(float(gap[:, :t].abs().max()))
        elif kind in ("mean", "tokens", "one row"):
            found.append(change / places)
        else:
            sees = {"causal": False, "dropout": False, "next": True, "second": t > 1,
                    "last": t == places - 1, "first": True}
            found.append(change * sees[kind])
    return found


@ex.law
def law(out, kind, x, others, weight):
    expect_parts(out, "results", "flags", "train", "grad", "changed", "left")
    modes = [[True, True, True, True, False, False], [False, True, False, False, True, True]]
    given = [(x, others), (others, x.flip(0))]
    expect_equal("calls of your function", (len(out["results"]), len(out["flags"])), (2, 2))
    for k, (got, flags) in enumerate(zip(out["results"], out["flags"], strict=True), 1):
        right = expected(kind, *given[k - 1], weight)
        expect_type(f"result of call {k}", got, list)
        expect_equal(f"number of entries of call {k}", len(got), len(right))
        for t, (mine, entry) in enumerate(zip(got, right, strict=True)):
            expect_close(f"entry {t} of call {k}", mine, entry, rtol=1e-3,
                         atol=3e-6 * float(x.abs().max()) if t else 0.0)
        expect_equal(f"training flags after call {k}", flags, modes[k - 1],
                     "Each module gets its own mode back.")
    expect_equal("calls in train mode", out["train"], 0, "Measure in eval mode.")
    expect_equal("calls with gradients on", out["grad"], 0, "Measure under no_grad.")
    expect_equal("grad mode after the call (first call: on, second: off)", out["left"], [1, 0],
                 "Use with torch.no_grad().")
    expect_equal("values changed in x and others (or their requires_grad)", out["changed"], 0,
                 "Change a copy.")


# ---- wrong, by name

@not_an_answer
def probed(model, x, others, *, size=lambda change: change.abs().max().item()):
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    found = []
    with torch.set_grad_enabled(False):
        before = model(x.clone()).detach()
        for t in range(x.shape[1]):
            changed = x.clone()
            changed[:, t] = others[:, t]
            change = (model(changed).detach() - before)[:, :t]
            found.append(size(change) if t else 0.0)
    for module, mode in modes:
        module.training = mode
    return found


wrong = ex.edits(probed)
BEFORE, START, END = "[:, :t]", "modes =", "return found"
wrong("including the output at the changed position itself, which may change",
      "entry", BEFORE, "[:, :t + 1]")
wrong("measuring the outputs from the position on, not those before it", "entry",
      BEFORE, "[:, t:]")
wrong("measuring all outputs, not only those before the position", "entry",
      "(model(changed).detach() - before)[:, :t]", "model(changed).detach() - before")
wrong("measuring only the output right before the position", "entry", BEFORE, "[:, t - 1:t]")
wrong("measuring only the output at position 0", "entry", BEFORE, "[:, :1]")
wrong("measuring only the first row", "rows", BEFORE, "[:1, :t]")
wrong("replacing the position and everything after it", "alone",
      "[:, t] =", "[:, slice(t, None)] =", "others[:, t]", "others[:, slice(t, None)]")
wrong("replacing the earlier positions as well", "alone",
      "[:, t] =", "[:, slice(0, t + 1)] =", "others[:, t]", "others[:, slice(0, t + 1)]")
wrong("always replacing the last position", "alone",
      "[:, t] =", "[:, -1] =", "others[:, t]", "others[:, -1]")
wrong("replacing the next position instead", "alone",
      "[:, t] =", "[:, slice(t + 1, t + 2)] =", "others[:, t]", "others[:, slice(t + 1, t + 2)]")
wrong("using one copy for all positions, so that earlier changes stay", "alone",
      "[:, t] =", "[:, slice(1, t + 1)] =", "others[:, t]", "others[:, slice(1, t + 1)]")
wrong("replacing x[:, t] by zeros instead of by others[:, t]",
      "alone", START, f"others = torch.zeros_like(others); {START}")
wrong("replacing x[:, t] by x[:, t] + 1 instead of by others[:, t]", "alone",
      START, f"others = (x + 1) % 4 if x.dtype == torch.int64 else x + 1; {START}")
ex.wrong("halving the change of a position and doubling its effect, as if the model were linear",
         breaks="model",
         fn=lambda model, x, others: probed(model, x, others) if x.dtype == torch.int64 else probed(
             model, x, (x + others) / 2, size=lambda c: 2 * c.abs().max().item()))
ex.wrong("returning the mean change instead of the largest change",
         probed, breaks="entry", size=lambda c: c.abs().mean().item())
ex.wrong("keeping the sign of the change, so that a decrease does not show", probed, breaks="entry",
         size=lambda c: c.max().item())
ex.wrong("returning the norm of the change instead of its largest value",
         probed, breaks="entry", size=lambda c: c.norm().item())
ex.wrong("returning the sum of the changes instead of the largest change", probed, breaks="entry",
         size=lambda c: c.abs().sum().item())
ex.wrong("returning 1.0 or 0.0 instead of the size of the change", probed, breaks="entry",
         size=lambda c: float(c.abs().max() > 1e-5))
ex.wrong("treating a change below 1e-6 as no change", probed, breaks="entry",
         size=lambda c: c.abs().max().item() if c.abs().max() > 1e-6 else 0.0)
wrong("returning only the largest entry", "list",
      END, "return max(found)", says="type of the result")
wrong("returning a tensor instead of a list", "list",
      END, "return torch.tensor(found)", says="type of the result")
wrong("returning a list of tensors instead of floats", "list",
      END, "return list(torch.tensor(found))", says="type of the entry")
wrong("leaving out the entry for position 0",
      "list", END, "return found[1:]", says="number of entries")
wrong("returning None for position 0", "first", "else 0.0", "else None", says="type of the entry 0")
wrong("not calling eval(), so that dropout looks like a leak", "eval",
      "model.eval()", "pass")
wrong("leaving the model in eval mode", "modes",
      "for module, mode in modes:\n        module.training = mode", "pass")
wrong("setting every module to train mode at the end", "modes", END, f"model.train(); {END}")
wrong("giving the model's own mode to all its modules at the end", "modes",
      START, f"own_mode = model.training; {START}",
      END, f"model.train(own_mode); {END}")
wrong("measuring with gradients on, which builds a graph", "no graph", "False", "True")
wrong("turning gradients off and leaving them off", "grad mode",
      END, f"torch.set_grad_enabled(False); {END}")
wrong("turning gradients on at the end, whatever the grad mode was before", "grad mode",
      END, f"torch.set_grad_enabled(True); {END}")
wrong("changing x itself and never restoring it", "left",
      END, f"x.copy_(others); {END}")
wrong("converting tokens to floats", "tokens",
      START, f"x = x.float(); others = others.float(); {START}", says="raised TypeError")
wrong("testing only the first 32 positions", "sizes",
      START, f"x = x[:, :32]; others = others[:, :32]; {START}", says="number of entries")
wrong("replacing x[:, t] by random values instead of by others[:, t]", "alone",
      START,
      "g = torch.Generator().manual_seed(0); drawn = (torch.randint(4, x.shape, generator=g) if "
      f"x.dtype == torch.int64 else torch.randn(x.shape, generator=g)); {START}",
      "t] = others[", "t] = drawn[")

KNOWN: dict = {}


@ex.wrong("returning the first call's result again for the same model",
          says="of call 2", breaks="whole")
def remembered(model, x, others):
    if KNOWN.get("model") is not model:
        KNOWN.update(model=model, result=probed(model, x, others))
    return KNOWN["result"]
