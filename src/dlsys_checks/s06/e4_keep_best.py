"""Exercise 06.4, `keep_best`."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from dlsys_checks.kit import integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    Broken,
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
    expect_type,
)
from dlsys_helpers.judging import not_an_answer

ex = exercise("06.4", "keep_best", seen=("kinds", "losses", "moves"))

ex.promise_table("""
lowest       | Return the lowest validation loss. | lowest loss
state        | Train, and restore the state of the best epoch. | state after
order        | In each epoch, call train_epoch(model), which changes tensors of state_dict(), and
               then val_loss(model), which returns a float, finite or NaN. epochs >= 1. | calls in
               order
ties         | Among equal losses, the first counts. | case equal losses
nan          | NaN never counts. | case NaN at first; NaN in between; nothing but NaN
all nan      | If all losses are NaN, leave the model as it is after the last epoch and return inf.
               | case nothing but NaN
same objects | Every parameter stays the same object, and its gradient does not matter. | replaced
               by new objects
one copy     | Keep at most one copy of a state at a time, the best epoch's. | states kept
example      | Example: for losses 3., 1., 2. return 1. and restore the state after two epochs. |
               case the example
""")


@ex.cases
def cases(g):
    number = integers(g)

    def run(kind, losses):
        # In float64 the sums have digits that no float32 holds.
        dtype = torch.float64 if kind == "double" else torch.float32
        return {"kinds": [kind], "losses": [losses],
                "moves": [torch.rand(len(losses), generator=g, dtype=dtype) + 0.5]}

    def drawn(n, best):
        values = (2 + torch.rand(n, generator=g)).tolist()
        values[best] = 1 + 0.5 * float(torch.rand((), generator=g))
        return values

    n, nan = number(5, 8), math.nan
    first, second = run("norm", drawn(n, 1)), run("linear", drawn(n, 2))
    return [("best in the middle", run("norm", drawn(n, number(1, n - 2)))),
            ("a plain layer", run("linear", drawn(n, 2))),
            ("the first epoch", run("own", drawn(n, 0))),
            ("the last epoch", run("norm", drawn(n, n - 1))),
            ("a model of its own class", run("own", drawn(n, 1))),
            ("a frozen layer", run("frozen", drawn(n, 1))),
            ("equal losses", run("norm", [2.5, 1.25, 1.25, 3.0, 1.25, 2.0])),
            ("losses below zero", run("norm", [-v for v in drawn(n, 0)])),
            ("losses in the billions", run("linear", [1e9 * v for v in drawn(n, 2)])),
            ("NaN at first", run("norm", [nan, *drawn(n, 2)])),
            ("NaN in between", run("own", [3.0, nan, 2.0, nan, 2.5])),
            ("nothing but NaN", run("norm", [nan] * 4)),
            ("one epoch", run("own", [1.5])),
            ("many epochs", run("norm", drawn(30, 12))),
            ("falling all the way", run("norm", [9.0 - k for k in range(9)])),
            ("two runs in turn", {k: first[k] + second[k] for k in first}),
            ("the lowest loss is 0", run("own", [1.0, 0.0, 0.5, 2.0])),
            ("losses that hardly differ", run("norm", [1.0, 1.0 - 1e-11, 1.0 - 2e-11, 3.0])),
            ("a model in float64", run("double", drawn(n, 2))),
            ("the example", run("norm", [3.0, 1.0, 2.0]))]


@ex.act
def act(fn, kinds, losses, moves):
    import tracemalloc
    import weakref
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        """Remembers all tensors that are made, for as long as they live."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                seen.append(weakref.ref(result))
            return result

    class Own(nn.Module):
        """A bare parameter, a counter, and a part in eval mode."""

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.zeros(3))
            self.inner = nn.ModuleDict({"a": nn.Linear(2, 3)})
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.inner.eval()

    def made(kind):
        if kind == "own":
            return Own()
        if kind == "double":
            return nn.Linear(3, 2).double()
        if kind == "norm":
            return nn.Sequential(nn.Linear(3, 61), nn.BatchNorm1d(61), nn.Linear(61, 2))
        layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        layers[0].requires_grad_(kind != "frozen")
        return layers

    def copies(model):
        """Living tensors beside the model's own, in states of the model, rounded."""
        seen[:] = [ref for ref in seen if ref() is not None]
        memory = {t.data_ptr(): t.nbytes() for t in [ref().untyped_storage() for ref in seen]}
        own = [t.untyped_storage() for t in model.state_dict().values()]
        others = sum(memory.values()) - sum(memory.get(t.data_ptr(), 0) for t in own)
        return round(others / sum(t.nbytes() for t in own))
    found = {"answers": [], "states": [], "calls": [], "others": 0, "most": 0, "strange": 0,
             "without": 0, "switched": 0, "hoarded": 0}

    def one_run(kind, values, steps):
        model = made(kind)
        with torch.no_grad():
            for t in model.state_dict().values():
                t.zero_()
        before, calls, counts, memory = dict(model.named_parameters()), [], [], []
        flags = [p.requires_grad for p in model.parameters()]
        modes = [m.training for m in model.modules()]

        def train_epoch(m):
            # A call too many is for the law to tell, so no list may end here.
            step = steps[min(calls.count("train"), len(values) - 1)].item()
            calls.append("train")
            found["strange"] += m is not model
            found["without"] += not torch.is_grad_enabled()
            with torch.no_grad():
                for t in m.state_dict().values():
                    t.add_(1 if t.dtype == torch.int64 else step)

        def val_loss(m):
            calls.append("val")
            found["strange"] += m is not model
            if kind == "norm":
                counts.append(copies(model))
                # Bytes and arrays are in Python's memory, not in a tensor's.
                memory.append(tracemalloc.get_traced_memory()[0])
            return values[min(calls.count("val"), len(values)) - 1]
        seen.clear()
        if len(values) == 30:
            tracemalloc.start()
        with Watch():
            answer = fn(model, train_epoch, val_loss, len(values))
        tracemalloc.stop()
        if len(memory) == len(values) == 30:
            # From epoch 14 on no state is the best: 15 of them would take 15 times 2 kB.
            found["hoarded"] += max(0, memory[29] - memory[14]) // 15000
        found["switched"] += modes != [m.training for m in model.modules()]
        found["switched"] += flags != [p.requires_grad for p in model.parameters()]
        found["answers"].append("inf" if answer == math.inf else answer)
        found["states"].append({k: v.clone() for k, v in model.state_dict().items()})
        found["calls"].append(calls)
        found["others"] += sum(p is not before[n] for n, p in model.named_parameters())
        found["most"] = max([found["most"], *counts])
    for kind, values, steps in zip(kinds, losses, moves, strict=True):
        one_run(kind, values, steps)
    return found


@ex.law
def law(out, kinds, losses, moves):
    expect_parts(out, "answers", "states", "calls", "others", "most", "strange", "without",
                 "switched", "hoarded")
    for part in ("answers", "states", "calls"):
        expect_length(part, out[part], len(kinds))
    for kind, values, steps, answer, state, calls in zip(
            kinds, losses, moves, out["answers"], out["states"], out["calls"], strict=True):
        expect_equal("calls in order", calls, ["train", "val"] * len(values))
        numbers = [(v, k) for k, v in enumerate(values) if not math.isnan(v)]
        lowest, best = min(numbers) if numbers else (math.inf, len(values) - 1)
        if lowest < math.inf:
            answer = math.inf if answer == "inf" else answer
            expect_close("lowest loss", answer, lowest, rtol=1e-13)
        elif answer != "inf":
            raise Broken("lowest loss", answer, lowest, "Every loss was NaN.")
        expect_state(state, SHAPES[kind], steps, best, kind == "double",
                     "Copy the state at the best epoch, and write it back at the "
                     "end." if numbers else
                     "Every loss was NaN, so leave the model as it is.")
    expect_equal("calls in order, calls with an object other than model", out["strange"], 0)
    expect_equal("calls in order, calls of train_epoch under no_grad", out["without"], 0,
                 "train_epoch needs gradients, so do not call it under no_grad.")
    expect_equal("state after the run, changes of modes or requires_grad", out["switched"], 0)
    expect_equal("parameters replaced by new objects", out["others"], 0,
                 "Write the values back into the model's own tensors.")
    expect_type("number of states kept", out["most"], int)
    if out["most"] > 1:
        raise Broken("states kept at once", out["most"], "at most 1", "Keep only the best.")
    expect_equal("states kept outside tensors, in units of 15 kB", out["hoarded"], 0,
                 "Keep only the best.")


LINEAR = {"0.weight": (4, 3), "0.bias": (4,), "1.weight": (2, 4), "1.bias": (2,)}
SHAPES = {
    "linear": LINEAR, "frozen": LINEAR, "double": {"weight": (2, 3), "bias": (2,)},
    "own": {"scale": (3,), "count": (), "inner.a.weight": (3, 2), "inner.a.bias": (3,)},
    "norm": {"0.weight": (61, 3), "0.bias": (61,), "1.weight": (61,), "1.bias": (61,),
             "1.running_mean": (61,), "1.running_var": (61,), "1.num_batches_tracked": (),
             "2.weight": (2, 61), "2.bias": (2,)},
}


def expect_state(state, shapes, steps, best, double, look):
    """Every entry has moved once an epoch, up to the best; counters are those without an axis."""
    expect_parts(state, *shapes, what="state of the model")
    moved = float(steps[:best + 1].double().sum())
    for name, shape in shapes.items():
        dtype = torch.float64 if double else torch.float32
        wanted = torch.full(shape, moved, dtype=dtype) if shape else torch.tensor(best + 1)
        expect_close(f"state after epoch {best + 1}, {name}", state[name], wanted,
                     rtol=1e-11 if double else 1e-5, look=look)


# ---- wrong, by name

STATE = ("state", "ties", "nan", "example")


@not_an_answer
def run(model, train_epoch, val_loss, epochs):
    lowest, best = math.inf, None
    for _ in range(epochs):
        train_epoch(model)
        loss = val_loss(model)
        if loss < lowest:
            lowest, best = loss, copy.deepcopy(model.state_dict())
    if best is not None:
        model.load_state_dict(best, strict=False)
    return lowest


wrong = ex.edits(run)
STATE_DICT = "copy.deepcopy(model.state_dict())"
LOWEST = "lowest, best = math"
KEPT = "kept = []; lowest, best = math"
LOSS = "loss = val_loss"
STRICT = "best, strict=False"
wrong("keeping state_dict() without a copy, or writing nothing back", STATE,
      STATE_DICT, "model.state_dict()")
wrong("copying parameters but not buffers", "state",
      STATE_DICT, "{k: p.detach().clone() for k, p in model.named_parameters()}")
wrong("not copying counters such as num_batches_tracked", "state",
      STATE_DICT, "{k: v.clone() for k, v in model.state_dict().items() if v.ndim}")
wrong("copying trainable parameters and buffers, but not frozen parameters", "state",
      STATE_DICT,
      "{k: v.clone() for k, v in model.state_dict(keep_vars=True).items() if v.requires_grad or "
      "not isinstance(v, nn.Parameter)}")
wrong("copying the state before the epoch instead of after it", (*STATE,),
      STATE_DICT, "before", "train_epoch(model)", f"before = {STATE_DICT}; train_epoch(model)",
      STRICT, "best")
wrong("keeping the state of the last of several equal losses",
      "ties", "loss < lowest", "loss <= lowest", says="state after")
wrong("counting NaN as a lower loss", "nan", "loss < lowest", "not loss >= lowest",
      says="lowest loss")
wrong("treating NaN as the lowest loss when it comes first", "nan",
      "math.inf", "None", "loss < lowest", "lowest is None or loss < lowest", STRICT, "best",
      says="lowest loss")
wrong("starting with a lowest loss such as 1000", ("lowest", "nan"),
      "math.inf", "1000.0", "loss < lowest", "lowest is None or loss < lowest", STRICT, "best",
      says="lowest loss")


@ex.wrong("restoring the first state when every loss is NaN", says="state after", breaks="all nan")
def nan_first(model, train_epoch, val_loss, epochs):
    states, lowest = [], math.inf
    for _ in range(epochs):
        train_epoch(model)
        loss = val_loss(model)
        if not states or loss < lowest:
            states = [copy.deepcopy(model.state_dict())]
        lowest = min(loss, lowest) if loss == loss else lowest
    model.load_state_dict(states[0])
    return lowest


wrong("returning the last loss instead of the lowest", ("lowest", "nan", "ties", "example"),
      "return lowest", "return loss if loss == loss else math.inf")
wrong("returning a value near the lowest loss, not the loss itself", "lowest",
      "return lowest", "return lowest if lowest in (math.inf, 1.25, 1.0) else lowest * 1.001")
wrong("validating before training in each epoch", "order",
      "loss = val_loss(model)", "pass", "train_epoch(model)", LOSS + "(model); train_epoch(model)",
      STRICT, "best")
wrong("replacing the parameters with new ones", "same objects", "strict=False", "assign=True")
wrong("keeping every epoch's state in a list", "one copy",
      LOWEST, KEPT, LOSS, f"kept.append({STATE_DICT}); {LOSS}")
wrong("keeping a second state next to the best state", "one copy",
      LOWEST, KEPT, LOSS, f"kept[:] = [{STATE_DICT}]; {LOSS}")
wrong("keeping every epoch's state in one long tensor", "one copy",
      LOWEST, KEPT, LOSS, "kept[:] = [torch.cat([*kept, *[v.double().flatten() for v in "
      f"model.state_dict().values()]])]; {LOSS}")
wrong("keeping every epoch's state as bytes", "one copy",
      LOWEST, f"import io; {KEPT}",
      LOSS, f"kept.append(io.BytesIO()); torch.save(model.state_dict(), kept[-1]); {LOSS}")
wrong("keeping every epoch's state as NumPy arrays", "one copy",
      LOWEST, KEPT,
      LOSS, f"kept.append([v.numpy().copy() for v in model.state_dict().values()]); {LOSS}")


@ex.wrong("training a copy of the model", breaks="order")
def on_a_copy(model, train_epoch, val_loss, epochs):
    other = copy.deepcopy(model)
    lowest = run(other, train_epoch, val_loss, epochs)
    model.load_state_dict(other.state_dict())
    return lowest


@ex.wrong("calling train_epoch under no_grad", breaks="order")
def no_gradients(model, train_epoch, val_loss, epochs):
    with torch.no_grad():
        return run(model, train_epoch, val_loss, epochs)


wrong("validating once more at the end", "order", "return lowest", "val_loss(model); return lowest")
wrong("leaving the model in eval mode", "state", "return lowest", "model.eval(); return lowest")
wrong("treating a lowest loss of 0 as if there were none yet", "lowest",
      "loss < lowest", "loss == loss and (not lowest or loss < lowest)")
wrong("comparing losses with a tolerance, or in float32", "lowest", "lowest:", "lowest - 1e-4:")
wrong("keeping the state in float32", "state",
      STATE_DICT,
      "{k: v.float() if v.dtype == torch.float64 else v.clone() for k, v in "
      "model.state_dict().items()}")
