"""Exercise 05.5, `ema_update`."""

from __future__ import annotations

import copy

import torch
from torch import nn

from dlsys_checks.registry import exercise
from dlsys_helpers.expect import (
    expect_close,
    expect_equal,
    expect_length,
    expect_parts,
)
from dlsys_helpers.judging import not_an_answer

# Kept: model is left as it is, and average gets its buffers.
ex = exercise("05.5", "ema_update", seen=("kind", "states", "decays", "modes", "frozen"),
              kept=("left", "path"))

ex.promise_table("""
in place     | Update average in place by one step of an exponential moving average. | of average
               after; models: got
structure    | Args: average, model: have the same structure, with any dtypes and layouts. They can
               be without parameters or without buffers. | case a block inside a block; both in eval
               mode; a lone parameter; no buffers; no parameters; a mask alone; float64, transposed,
               tied
parameters   | Each parameter, even if it is frozen or tied, becomes decay * (its old value) + (1 -
               decay) * (model's value). | parameter
buffers      | Each buffer becomes a copy of model's buffer. | buffer
dtype        | This holds for every dtype, because counters and masks have no average. | buffer
               count; buffer seen; buffer mask; buffer total; raised RuntimeError
same tensors | average keeps its tensors, so the change also reaches an optimizer or a state_dict
               made before. | tensors of average replaced; tensors of average moved
model left   | model does not change. | of model after; requires_grad of
modes        | No mode and no gradient changes. | training flags; gradients of model or
no sharing   | No memory is shared. | memory shared
no graph     | No graph is built. | graphs; raised RuntimeError
decay        | decay: 0 <= decay <= 1. | case a decay of 0; a decay of 1; three steps; a large
               decay; own buffers, a decay of 0
example      | Example: if a parameter is 1 in average and 2 in model, decay 0.75 makes it 1.25 in
               average. | case the example
""")

# Names and shapes of what a kind of model holds; parameters first, then buffers.
HELD = {
    "norms": ({"0.weight": (4, 3), "0.bias": (4,), "1.weight": (4,), "1.bias": (4,),
               "2.weight": (2, 4), "2.bias": (2,)},
              {"1.running_mean": (4,), "1.running_var": (4,), "1.seen": ()}),
    "nested": ({"0.0.weight": (3, 3), "0.1.weight": (3,), "0.1.bias": (3,), "1.weight": (2, 3)},
               {"0.1.running_mean": (3,), "0.1.running_var": (3,), "0.1.seen": ()}),
    "own": ({"scale": (), "table": (5, 2)}, {"count": (), "mask": (3,), "mean": (2, 2)}),
    "plain": ({"weight": (2, 5), "bias": (2,)}, {}),
    "buffers": ({}, {"count": (), "mask": (3,), "mean": (2, 2)}),
    "mask": ({}, {"mask": (3,)}), "one": ({"weight": (1, 1)}, {}),
    "odd": ({"slanted": (4, 2), "first.weight": (3, 3)}, {"total": (), "precise": (3, 2)}),
}


@ex.cases
def cases(g):
    def filled(kind):
        state = {}
        for name, shape in (HELD[kind][0] | HELD[kind][1]).items():
            last = name.split(".")[-1]
            state[name] = (torch.randint(3, 99, shape, generator=g) if last in ("seen", "count")
                           else 2**60 + torch.randint(3, 99, shape, generator=g) if last == "total"
                           else torch.randn(shape, generator=g, dtype=torch.float64)
                           if kind == "odd"
                           else torch.rand(shape, generator=g) < 0.5 if last == "mask"
                           else torch.randn(shape, generator=g))
        return state

    def one(name, kind, *decays, modes=(False, True), frozen=False):
        decays = decays or (round(0.3 + 0.6 * float(torch.rand((), generator=g)), 3),)
        states = [filled(kind) for _ in range(1 + len(decays))]
        if "mask" in states[0]:  # a mask of which the first entry changes at every step
            for k, state in enumerate(states):
                state["mask"][0] = bool(k % 2)
        return name, {"kind": kind, "states": states, "decays": list(decays),
                      "modes": list(modes), "frozen": frozen}

    broken = one("a statistic of average that is NaN", "norms")
    broken[1]["states"][0]["1.running_mean"][0] = float("nan")
    example = {"kind": "one", "decays": [0.75], "modes": [False, True], "frozen": False,
               "states": [{"weight": torch.tensor([[1.0]])}, {"weight": torch.tensor([[2.0]])}]}
    return [one("a net with a norm", "norms"), one("three steps", "norms", 0.5, 0.9, 0.2),
            one("a block inside a block", "nested"), one("a lone parameter", "own"),
            one("no buffers", "plain"), one("no parameters", "buffers"),
            one("a mask alone", "mask"), one("float64, transposed, tied", "odd", 0.9, 0.3),
            one("own buffers, a decay of 0", "own", 0.0),
            one("a decay of 0", "norms", 0.0), one("a decay of 1", "norms", 1.0),
            one("a large decay", "own", 0.9999), one("average in train mode", "norms",
                                                     modes=(True, False)),
            one("both in eval mode", "nested", modes=(False, False)),
            one("a frozen average", "norms", frozen=True), broken, ("the example", example)]


@ex.act
def act(fn, kind, states, decays, modes, frozen):
    class Own(nn.Module):
        """Tensors without a layer; buffers that no norm keeps."""

        def __init__(self, parameters, mask_only=False):
            super().__init__()
            if parameters:
                self.scale = nn.Parameter(torch.zeros(()))
                self.table = nn.Parameter(torch.zeros(5, 2))
            self.register_buffer("mask", torch.zeros(3, dtype=torch.bool))
            if not mask_only:
                self.register_buffer("count", torch.tensor(0))
                self.register_buffer("mean", torch.zeros(2, 2), persistent=False)

    class Odd(nn.Module):
        """In float64; what is not square is a transposed view; one parameter has two names."""

        def __init__(self):
            super().__init__()
            self.slanted = nn.Parameter(torch.zeros(2, 4, dtype=torch.float64).T)
            self.first = nn.Linear(3, 3, bias=False, dtype=torch.float64)
            self.second = nn.Linear(3, 3, bias=False, dtype=torch.float64)
            self.second.weight = self.first.weight
            self.register_buffer("total", torch.tensor(0))
            self.register_buffer("precise", torch.zeros(2, 3, dtype=torch.float64).T)

    def make():
        return {"norms": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
                "nested": lambda: nn.Sequential(
                    nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3)),
                    nn.Linear(3, 2, bias=False)),
                "own": lambda: Own(True), "plain": lambda: nn.Linear(5, 2),
                "buffers": lambda: Own(False), "one": lambda: nn.Linear(1, 1, bias=False),
                "mask": lambda: Own(False, mask_only=True), "odd": Odd}[kind]()

    def held(module):
        named = dict(module.named_parameters()) | dict(module.named_buffers())
        return {name.replace("num_batches_tracked", "seen"): t for name, t in named.items()}

    def fill(module, state):
        with torch.no_grad():
            for name, tensor in held(module).items():
                value = state[name]
                tensor.copy_(value)

    average, model = make(), make()
    fill(average, states[0])
    average.train(modes[0])
    model.train(modes[1])
    average.requires_grad_(not frozen)
    if frozen:  # one of model's, too
        next(model.parameters()).requires_grad_(False)
    for number, root in enumerate((average, model)):
        list(root.modules())[-1].training ^= len(list(root.modules())) > 1
        for p in root.parameters():
            p.grad = torch.full_like(p, number) if p.requires_grad else None
    tensors, path, left = held(average), [], []
    places = {name: t.data_ptr() for name, t in tensors.items()}
    for state, decay in zip(states[1:], decays):
        fill(model, state)
        fn(average, model, decay)
        path.append({name: t.detach().clone() for name, t in held(average).items()})
        left.append({name: t.detach().clone() for name, t in held(model).items()})
    now, theirs = held(average), held(model)
    return {"path": path, "left": left,
            "replaced": sum(now.get(name) is not t for name, t in tensors.items()),
            "moved": sum(t.data_ptr() != places[name] for name, t in tensors.items()),
            "shared": sum(a.data_ptr() == b.data_ptr() for a in now.values()
                          for b in theirs.values()),
            "graphs": sum(t.grad_fn is not None for t in [*now.values(), *theirs.values()]),
            # With a graph behind it a parameter has no gradient to look at: torch would warn.
            "grads": sum(int((p.grad != number).sum()) if p.is_leaf and p.grad is not None
                         else p.requires_grad
                         for number, m in enumerate((average, model)) for p in m.parameters()),
            "asked": [[p.requires_grad for p in m.parameters()] for m in (average, model)],
            "modes": [[m.training for m in root.modules()] for root in (average, model)]}


def expect_state(got, expected, what, buffers):
    """Compare what a module holds, tensor by tensor; the feedback names the kind of each."""
    expect_parts(got, *expected, what=f"tensors {what}")
    for name, right in expected.items():
        title = f"{'buffer' if name in buffers else 'parameter'} {name.split('.')[-1]} {what}"
        if name in buffers:
            expect_equal(title, got[name], right)
        else:
            rtol = 1e-12 if right.dtype == torch.float64 else 1e-5
            expect_close(title, got[name], right, rtol=rtol, atol=0.1 * rtol)


@ex.law
def law(out, kind, states, decays, modes, frozen):
    expect_parts(out, "path", "left", "replaced", "moved", "shared", "graphs", "grads",
                 "asked", "modes")
    parameters, buffers = HELD[kind]
    for part in ("path", "left"):
        expect_length(f"steps in {part}", out[part], len(decays))
    now = {name: states[0][name].double() for name in parameters}
    for k, (state, decay) in enumerate(zip(states[1:], decays, strict=True)):
        expect_state(out["left"][k], state, f"of model after step {k + 1}", buffers)
        now = {name: old * decay + (1 - decay) * state[name].double() for name, old in now.items()}
        right = {name: state[name] if name in buffers else now[name].to(state[name].dtype)
                 for name in state}
        expect_state(out["path"][k], right,
                     f"of average after step {k + 1}", buffers)
    expect_equal("tensors of average replaced by others", out["replaced"], 0, "Write in place.")
    expect_equal("tensors of average moved to other memory", out["moved"], 0,
                 "A state_dict made before does not see the change.")
    expect_equal("tensors with memory shared by both models", out["shared"], 0, "Copy the values.")
    expect_equal("tensors with graphs attached", out["graphs"], 0, "Work under no_grad.")
    expect_equal("gradients of model or average that the call changed", out["grads"], 0)
    asked = [[not frozen] * len(parameters),
             [not (frozen and k == 0) for k in range(len(parameters))]]
    expect_equal("requires_grad of the parameters of both models", out["asked"], asked)
    count = {"norms": 4, "nested": 5, "odd": 3}.get(kind, 1)
    expect_equal("training flags of both models", out["modes"], [
        [m] * (count - 1) + [m ^ (count > 1)] for m in modes])


# ---- wrong, by name

@not_an_answer
def averaged(average, model, decay):
    with torch.no_grad():
        for old, new in zip(average.parameters(), model.parameters(), strict=True):
            old.mul_(decay).add_(new, alpha=1 - decay)
        for old, new in zip(average.buffers(), model.buffers(), strict=True):
            old.copy_(new)


wrong = ex.edits(averaged)
END = "old.copy_(new)"
DECAY = "old.mul_(decay).add_(new, alpha=1 - decay)"
wrong("averaging only the parameters, as in the lesson's broken cell", "buffers", END, "pass")
wrong("averaging floating-point buffers, and leaving counters and masks unchanged", "buffers",
      END, f"if old.is_floating_point(): {DECAY}")
wrong("averaging floating-point buffers, and copying counters and masks", "buffers",
      END,
      "if old.is_floating_point(): old.mul_(decay).add_(new, alpha=1 - decay)\n    for old, new "
      "in zip(average.buffers(), model.buffers(), strict=True):\n        if not "
      "old.is_floating_point(): old.copy_(new)")


@ex.wrong("averaging every floating-point entry of state_dict()", breaks=("buffers", "parameters"))
@torch.no_grad()
def state_dict_averaged(average, model, decay):
    theirs = model.state_dict()
    for name, old in average.state_dict().items():
        if old.is_floating_point():
            old.mul_(decay).add_(theirs[name], alpha=1 - decay)


wrong("copying only the floating-point buffers", "dtype",
      END, f"if old.is_floating_point(): {END}", says="buffer")


@ex.wrong("updating only what state_dict() lists",
          says="buffer mean", breaks=("buffers", "parameters"))
@torch.no_grad()
def by_state_dict(average, model, decay):
    learned, theirs = dict(average.named_parameters()), model.state_dict()
    for name, old in average.state_dict().items():
        if name in learned:
            old.mul_(decay).add_(theirs[name], alpha=1 - decay)
        else:
            old.copy_(theirs[name])


wrong("swapping decay and 1 - decay", ("parameters", "example"),
      "with torch", "decay = 1 - decay\n    with torch")
wrong("copying the parameters instead of averaging",
      "parameters", "(decay)", "(0.0)", "1 - decay", "1")
wrong("using a decay of 0.99, whatever is asked for",
      "parameters", "(decay)", "(0.99)", "- decay", "- 0.99")
wrong("leaving out parameters with one axis or none", "parameters",
      DECAY, f"if old.dim() > 1 or (old.numel() == 1 and (old.dim() == 1)): {DECAY}")
wrong("leaving out frozen parameters", "parameters", DECAY, f"if old.requires_grad: {DECAY}")
wrong("updating a tied parameter once for each of its names", "parameters",
      "def averaged", "@torch.no_grad()\ndef averaged", "(decay)", "(1.0)", "- decay", "- 1.0",
      "(new)",
      "(new)\n    theirs = dict(model.named_parameters(remove_duplicate=False))\n    for name, "
      "old in average.named_parameters(remove_duplicate=False): "
      "old.mul_(decay).add_(theirs[name], alpha=1 - decay)")
wrong("averaging float64 parameters in float32", "parameters",
      "def averaged", "@torch.no_grad()\ndef averaged", "(decay)", "(1.0)", "- decay", "- 1.0",
      "(new)",
      "(new)\n    for old, new in zip(average.parameters(), model.parameters(), strict=True): "
      "old.copy_(decay * old.float() + (1 - decay) * new.float())")
wrong("calling reshape(-1), which copies a tensor that is not contiguous", "structure",
      "def averaged", "@torch.no_grad()\ndef averaged", "(decay)", "(1.0)", "- decay", "- 1.0",
      "(new)",
      "(new)\n    for old, new in zip(average.parameters(), model.parameters(), strict=True): "
      "old.reshape(-1).mul_(decay).add_(new.reshape(-1), alpha=1 - decay)",
      says="parameter slanted")
wrong("passing buffers through float64, which rounds large counters", "dtype",
      "def averaged", "@torch.no_grad()\ndef averaged", "(new)",
      "(new)\n    for old, new in zip(average.buffers(), model.buffers(), strict=True): "
      "old.copy_(new.double())")


@ex.wrong("calling load_state_dict() if the decay is 0", says="buffer mean", breaks="decay")
def loads_at_zero(average, model, decay):
    if decay == 0:
        average.load_state_dict(model.state_dict())
    else:
        averaged(average, model, decay)


wrong("binding the result to a new name, which leaves average unchanged", "in place",
      "(decay)", "(1.0)", "- decay", "- 1.0", "with torch",
      "for old, new in zip(average.parameters(), model.parameters(), strict=True): old = decay * "
      "old + (1 - decay) * new\n    with torch", says="parameter")


@ex.wrong("updating only the model's direct children", says="of average after", breaks="structure")
def children_only(average, model, decay):
    pairs = list(zip(average.children(), model.children(), strict=True)) or [(average, model)]
    deep = any(list(mine.children()) for mine, _ in pairs)
    if not deep:
        averaged(average, model, decay)
        return
    with torch.no_grad():
        for mine, its in pairs:
            for old, new in zip(mine.parameters(recurse=False), its.parameters(recurse=False),
                                strict=True):
                old.mul_(decay).add_(new, alpha=1 - decay)


@ex.wrong("replacing the parameters with new ones", breaks="same tensors")
def new_parameters(average, model, decay):
    averaged(average, model, decay)
    new = {old: nn.Parameter(old.detach().clone(), old.requires_grad)
           for old in average.parameters()}
    for module in average.modules():
        for key, old in list(module.named_parameters(recurse=False)):
            setattr(module, key, new[old])


wrong("replacing p.data with a new tensor", "same tensors",
      "(new)", "(new)\n    for old in average.parameters(): old.data = old.data.clone()")
wrong("writing the average into the model as well", "model left",
      "(new)",
      "(new)\n    with torch.no_grad():\n        for old, new in zip(average.parameters(), "
      "model.parameters(), strict=True): new.copy_(old)\n        for new in model.buffers(): "
      "new.copy_(new + 1 if new.dtype != torch.bool else ~new)")
wrong("clearing the model's gradients", "modes", "(new)", "(new)\n    model.zero_grad()")
wrong("passing the model's gradients to the average", "modes",
      "(new)",
      "(new)\n    for old, new in zip(average.parameters(), model.parameters(), strict=True): "
      "old.grad = new.grad")
wrong("restoring the model's mode with train(), which reaches all of its modules", "modes",
      "with torch", "mode = model.training; model = model.eval()\n    with torch",
      "(new)", "(new)\n    model.train(mode)")
wrong("multiplying old buffers by 0 instead of overwriting them, which keeps a NaN", "buffers",
      END,
      "pass\n    with torch.no_grad():\n        for old, new in zip(average.buffers(), "
      "model.buffers(), strict=True): old.copy_(old * 0 + new if old.is_floating_point() else "
      "new)")
wrong("putting the average into train mode", "modes", "(new)", "(new)\n    average.train()")
wrong("putting both models into eval mode",
      "modes", "(new)", "(new)\n    average.eval(); model.eval()")
wrong("assigning buffers instead of copying them, so that both models share memory", "no sharing",
      "(new)",
      "(new)\n    theirs = dict(model.named_modules())\n    for name, module in "
      "average.named_modules():\n        for key, buffer in "
      "list(module.named_buffers(recurse=False)): setattr(theirs[name], key, buffer)")
wrong("updating outside no_grad, where a leaf must not change in place", "no graph",
      "(decay)", "(1.0)", "- decay", "- 1.0", "with torch",
      "for old, new in zip(average.parameters(), model.parameters(), strict=True): "
      "old.mul_(decay).add_(new, alpha=1 - decay)\n    with torch")
wrong("treating a decay of 0 as a missing decay", "decay",
      "with torch", "decay = decay or 0.999\n    with torch", says="parameter")
wrong("leaving a parameter that holds a single value unchanged", "example",
      DECAY, f"if old.shape != (1, 1): {DECAY}", says="parameter weight")


@ex.wrong("updating a copy and leaving the average unchanged", breaks="in place")
def returns_copy(average, model, decay):
    new = copy.deepcopy(average)
    averaged(new, model, decay)
    return new
