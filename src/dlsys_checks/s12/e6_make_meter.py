"""Exercise 12.6, `make_meter`."""

from __future__ import annotations

import fractions
import math

import torch

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("12.6", "make_meter", seen=("losses", "rows", "dtype", "graph", "asked"))

ex.promise_table("""
two     | Make two functions that compute the mean loss over many batches. Returns: (add, mean). |
          what make_meter returns; mean after; led to
loss    | add(loss, rows): loss is the mean loss of a batch, a tensor of shape () of any float
          dtype, with or without a graph. | case half precision, large; bfloat16; double precision;
          with a graph; many batches with a graph; asked in between | mean after; led to
rows    | rows is the batch's number of rows, 1 or more. | mean after
mean    | mean() returns the mean over all rows so far as a float, summed in double precision. |
          mean after; mean of a second meter
nan     | Before the first batch, mean() returns math.nan. | case asked before the first; no batch
asked   | mean() can be called at any time, and more batches may be added after that. | case asked
          in between; asked before the first; one batch, asked twice; no batch
alive   | After the caller has dropped loss, nothing that only loss referred to stays in memory. |
          tensors saved by the graph; losses whose memory is still held; mean after
left    | add leaves loss as it is, and backward() still works. | losses that changed; gradients
          that are wrong
grow    | A meter's memory does not grow with the number of batches. | bytes by which a meter grows
own     | Each call of make_meter returns a new meter. | mean of a second meter; mean after
example | Example: a loss of 2. over 1 row and a loss of 5. over 2 rows give 4.0. | case the example
""")


@ex.cases
def cases(g):
    def some(n, scale=1.0):
        return [scale * v for v in (0.5 + torch.rand(n, generator=g)).tolist()]

    def one(name, losses, rows=None, dtype="float32", graph=False, asked=None):
        rows = torch.randint(1, 65, (len(losses),), generator=g).tolist() if rows is None else rows
        return name, {"losses": losses, "rows": rows, "dtype": dtype, "graph": graph,
                      "asked": [len(losses)] if asked is None else asked}
    return [one("five batches", some(5)), one("one batch, asked twice", some(1), asked=[1, 1]),
            one("asked in between", some(4), graph=True, asked=[1, 2, 2, 4]),
            one("asked before the first", some(2), asked=[0, 1, 2]),
            one("no batch", [], asked=[0, 0]),
            one("half precision, large", some(4, 3e4), [500, 64, 7, 300], "float16"),
            one("bfloat16", some(3), dtype="bfloat16"),
            one("double precision", [v + 1e-9 for v in some(3)], dtype="float64"),
            one("a large sum that goes away", [3e6, *some(6), -3e6], [1] * 8),
            one("with a graph", some(4), graph=True),
            one("many batches", some(90)),
            one("many batches with a graph", some(60), graph=True),
            one("losses of zero", [0.0, -0.0, 0.0]),
            one("an infinite loss", [*some(2), math.inf]),
            one("a loss that is NaN", [*some(1), math.nan, *some(1)]),
            one("the example", [2.0, 5.0], [1, 2])]


@ex.act
def act(fn, losses, rows, dtype, graph, asked):
    import gc
    import sys
    import types
    import weakref

    saved = weakref.WeakSet()

    class Saved:
        def __init__(self, tensor):
            self.tensor = tensor.detach()
            saved.add(self)

    def parts(thing):
        """What an object holds; of functions and generators not the names of their module."""
        if isinstance(thing, (type, types.ModuleType, types.CodeType, types.FrameType)):
            return []
        if isinstance(thing, types.FunctionType):
            return [thing.__closure__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__]
        if isinstance(thing, types.GeneratorType):
            return [dict(thing.gi_frame.f_locals)]
        return gc.get_referents(thing)

    def size():
        """Bytes that can be reached from the two functions."""
        found, todo = {}, [made]
        while todo:
            thing = todo.pop()
            if id(thing) not in found:
                found[id(thing)] = thing
                todo += parts(thing)
        return sum(sys.getsizeof(t) + (t.untyped_storage().nbytes() if torch.is_tensor(t) else 0)
                   for t in found.values())

    def plain(value):
        """Not a number and infinities as texts: nothing is 2 % off them."""
        return value if type(value) is not float or math.isfinite(value) else str(value)

    made, other = fn(), fn()
    if type(made) is not tuple or len(made) != 2:
        return {"made": f"{type(made).__name__} of {len(made) if hasattr(made, '__len__') else 1}",
                "means": [], "saved": 0, "memory": 0, "changed": 0, "grads": 0, "grew": 0,
                "other": 0.0}
    add, mean = made
    means = [plain(mean()) for when in asked if when == 0]
    held = memory = changed = grads = 0
    sizes, kind = [], getattr(torch, dtype)
    for place, (value, n) in enumerate(zip(losses, rows), 1):
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(
                Saved, lambda s: s.tensor):
            loss, w = torch.tensor(value, dtype=kind), None
            if graph:
                w = torch.full((4,), value / 4, dtype=kind, requires_grad=True)
                loss = (w * torch.ones(4, dtype=kind)).sum()
            before = loss.detach().clone()
            add(loss, n)
            changed += int(not torch.equal(loss.detach().nan_to_num(77), before.nan_to_num(77))
                           or loss.requires_grad != graph)
            if graph and place % 2:
                try:
                    loss.backward()
                    grads += int((w.grad != 1).sum())
                except RuntimeError:  # the graph is gone
                    grads += 4
        storage = weakref.ref(loss.untyped_storage())
        loss.detach().fill_(1234.0)  # whoever shares its memory sees this
        del loss, w, before
        held, memory = max(held, len(saved)), memory + int(storage() is not None)
        means += [plain(mean()) for when in asked if when == place]
        if place == 3:
            other[0](torch.tensor(0.75), 1)
        if place % 20 == 0:
            sizes.append(size())
    if len(losses) < 3:
        other[0](torch.tensor(0.75), 1)
    grew = max(sizes) - min(sizes) if sizes else 0
    return {"made": "tuple of 2", "means": means, "saved": held, "memory": memory,
            "changed": changed, "grads": grads, "grew": grew * int(grew > 64),
            "other": plain(other[1]())}


@ex.law
def law(out, losses, rows, dtype, graph, asked):
    expect_parts(out, "made", "means", "saved", "memory", "changed", "grads", "grew", "other")
    expect_equal("what make_meter returns", out["made"], "tuple of 2")
    expect_equal("losses that changed", out["changed"], 0)
    expect_equal("gradients that are wrong after add", out["grads"], 0,
                 "Read the number, and leave the loss's graph intact.")
    expect_length("means", out["means"], len(asked))
    given = [torch.tensor(v, dtype=getattr(torch, dtype)).item() for v in losses]
    expect_equal("tensors saved by the graph and still alive after add", out["saved"], 0)
    expect_equal("losses whose memory is still held after add", out["memory"], 0)
    for n, got in zip(asked, out["means"]):
        what, part = f"mean after {n} batches", given[:n]
        texts = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
        if n == 0 or not all(map(math.isfinite, part)):
            wanted = "inf" if n and math.inf in part else "nan"
            if got != wanted:
                raise Broken(what, texts.get(got, got) if type(got) is str else got, texts[wanted])
        else:
            exact = sum(fractions.Fraction(v) * r for v, r in zip(part, rows)) / sum(rows[:n])
            expect_close(what, texts.get(got, got) if type(got) is str else got, float(exact),
                         rtol=1e-12 if dtype == "float64" else 1e-7,
                         look="Losses times rows: " + " + ".join(
                             f"{v:.4g} * {r}" for v, r in zip(part[:5], rows))
                         + (" ..." if n > 5 else ""))
    expect_close("mean of a second meter", out["other"], 0.75)
    expect_equal("bytes by which a meter grows in 40 batches", out["grew"], 0)


# ---- wrong, by name

@not_an_answer
def summed():
    total, count = 0.0, 0

    def add(loss, rows):
        nonlocal total, count
        total = total + loss.item() * rows
        count += rows

    def mean():
        return total / count if count else math.nan

    return add, mean


wrong = ex.edits(summed)
START, ITEM, TAKEN, COUNTED = "0.0, 0", "loss.item()", "loss.item() * rows", "count += rows"
MEAN, EMPTY, END = "total / count", "math.nan", "return add, mean"
wrong("summing the losses with their graphs",
      "alive", ITEM, "loss.double()", MEAN, "(total / count).item()")
wrong("summing the losses with their graphs and returning a tensor",
      ("alive", "mean"), ITEM, "loss")
wrong("summing detached losses and returning a tensor", "mean", ITEM, "loss.detach()")
wrong("keeping all loss tensors in a list", ("alive", "grow"),
      START, "[], 0", TAKEN, "[(loss, rows)]",
      MEAN, "sum(loss.detach().double() * n for loss, n in total).item() / count")
wrong("keeping every loss as a Python number in a list", "grow",
      START, "[], 0", TAKEN, "[loss.item() * rows]", MEAN, "sum(total) / count")
wrong("keeping every loss as a number in a growing tensor", "grow",
      START, "torch.zeros(0), 0", f"total + {TAKEN}",
      f"torch.cat([total, torch.tensor([{TAKEN}], dtype=torch.float64)])",
      MEAN, "total.sum().item() / count")
wrong("keeping the last loss, detached, in addition to the sum", "alive",
      COUNTED, "count += rows; add.last = loss.detach()")
wrong("detaching the loss in place", "left", ITEM, "loss.detach_().item()")
wrong("calling backward() in add()", "left",
      COUNTED, "count += rows; loss.requires_grad and loss.backward()")
wrong("multiplying the loss by its rows in place", "left",
      COUNTED, "count += rows; loss.detach().mul_(1.5).add_(1)")
wrong("averaging over batches instead of rows", "rows",
      TAKEN, ITEM, COUNTED, "count += 1")
wrong("dividing by the number of rows without weighting each loss by its rows", "rows", TAKEN, ITEM)
wrong("summing in the dtype of the loss", ("mean", "loss"),
      START, "torch.zeros(()), 0", ITEM, "loss.detach()", MEAN, "(total / count).item()")
wrong("summing in single precision", "mean",
      START, "torch.zeros(()), 0", ITEM, "loss.detach().float()", MEAN, "(total / count).item()")
wrong("returning a tensor instead of a float", "mean",
      MEAN, "torch.tensor(total / count, dtype=torch.float64)")
wrong("returning the sum instead of the mean", "mean", MEAN, "total")
wrong("returning 0 before the first batch", "nan", EMPTY, "0.0", says="mean after 0")
wrong("dividing by zero before the first batch", "nan", " if count else math.nan", "",
      says="led to ZeroDivisionError")
wrong("resetting the meter after each call of mean()",
      "asked", f"return {MEAN} if count else math.nan",
      f"nonlocal total, count; found = {MEAN} if count else math.nan; total, count = 0.0, 0; "
      "return found", says="mean after")
wrong("leaving out losses that are not finite", "mean",
      TAKEN, f"({TAKEN} if loss.isfinite() else 0.0)")
wrong("sharing one meter between all calls of make_meter", "own",
      "total, count = 0.0", "global total, count; total, count = 0.0", "nonlocal", "global")
wrong("swapping the two functions", "two", END, "return mean, add",
      says="led to TypeError")
wrong("returning a list instead of a tuple", "two", END, "return [add, mean]")
wrong("calling numpy() on a loss that still has its graph", "loss",
      ITEM, "float(loss.double().numpy())", says="led to RuntimeError")
