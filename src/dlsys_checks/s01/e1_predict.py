"""Exercise 01.1, `predict`."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.registry import exercise
from dlsys_helpers.acting import same
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("01.1", "predict", seen=("kind", "x", "modes", "frozen", "hook", "state"),
              kept=("after",), says="prediction: got")

ex.promise_table("""
eval mode    | Run a model in eval mode. | prediction:; stored state after the call: got running;
               ValueError
no graph     | The call builds no graph. | graphs built
any model    | Args: model: any module. Each of its submodules can be in train or eval mode. | case
               a module of its own; a hook on the output; a nested model
any input    | x: (N, ...) float32. | case three axes; one row
result       | Returns: What model(x) returns in eval mode, with requires_grad False. |
               requires_grad of the prediction
modes        | Afterwards, every module is in the same mode as before. | training flags
frozen norm  | A frozen BatchNorm inside a model in train mode stays frozen. | case a frozen norm
               inside a model in train mode
nothing else | The call changes nothing else. | stored state after; requires_grad of the weights;
               grad mode after; settings of the modules
example      | Example: a model with dropout, in train mode, gives the same result in two calls, and
               `model.training` is still True afterwards. | case dropout in train mode, no norm
""")

# The modules in the order of model.modules(), by kind; True is train mode.
MODULES = {"flat": "root linear norm relu dropout linear",
           "nested": "root linear block norm inner relu dropout linear",
           "own": "root linear norm linear",
           "shared": "root linear first norm second relu dropout linear",
           "dropout": "root linear relu dropout linear"}


@ex.cases
def cases(g):
    def one(name, kind, batch, evals="", hook=False, every=True, frozen=False):
        sizes = [int(torch.randint(3, 8, (), generator=g)) for _ in range(3)]
        names = MODULES[kind].split()
        modes = [every != (name in evals.split()) for name in names]
        x = torch.randn(*batch, sizes[0], generator=g) * 2 + 1
        return name, {"kind": kind, "x": x, "modes": modes, "frozen": frozen, "hook": hook,
                      "state": trained_state(g, kind, *sizes)}

    def rows():
        return int(torch.randint(5, 20, (), generator=g))
    return [one("a model in train mode", "flat", (rows(),)),
            one("a model in eval mode", "flat", (rows(),), every=False),
            one("a frozen norm inside a model in train mode", "flat", (rows(),), "norm"),
            one("dropout in train mode, no norm", "dropout", (rows(),)),
            one("a frozen dropout", "flat", (rows(),), "dropout"),
            one("a live dropout in a model in eval mode", "nested", (rows(),), "dropout",
                every=False),
            one("a live norm in a model in eval mode", "nested", (rows(),), "norm", every=False),
            one("a nested model", "nested", (rows(),), "inner"),
            one("a norm that two blocks share", "shared", (rows(),), "second"),
            one("a module of its own", "own", (rows(),)),
            one("weights that require no gradient", "nested", (rows(),), frozen=True),
            one("a hook on the output", "flat", (rows(),), hook=True),
            one("one row", "flat", (1,)), one("three axes", "own", (rows(), 3))]


def trained_state(g, kind, i, u, o):
    """Weights as nn.Linear draws them, and statistics that are no longer the initial ones."""
    def uniform(*shape, fan_in):
        return (2 * torch.rand(*shape, generator=g) - 1) / math.sqrt(fan_in)
    state = {"first.weight": uniform(u, i, fan_in=i), "first.bias": uniform(u, fan_in=i),
             "last.weight": uniform(o, u, fan_in=u), "last.bias": uniform(o, fan_in=u)}
    return state if kind == "dropout" else state | {
        "weight": 0.5 + torch.rand(u, generator=g), "bias": 0.1 * torch.randn(u, generator=g),
        "running_mean": 0.3 * torch.randn(u, generator=g),
        "running_var": 0.5 + torch.rand(u, generator=g),
        "num_batches_tracked": torch.randint(1, 9, (), generator=g)}


@ex.act
def act(fn, kind, x, modes, frozen, hook, state):
    class Net(nn.Module):
        """Layers by name, for any number of axes in front; dropout without a module."""

        def __init__(self, first, norm, last):
            super().__init__()
            self.first, self.norm, self.last = first, norm, last

        def forward(self, x):
            h = self.first(x)
            h = self.norm(h.flatten(0, -2)).view(h.shape).relu()
            return self.last(F.dropout(h, 0.5, self.training))

    (u, i), o = state["first.weight"].shape, len(state["last.bias"])
    first, last = nn.Linear(i, u), nn.Linear(u, o)
    norm, tail = nn.BatchNorm1d(u), [nn.ReLU(), nn.Dropout(0.5)]
    model = {"flat": lambda: nn.Sequential(first, norm, *tail, last),
             "dropout": lambda: nn.Sequential(first, *tail, last),
             "nested": lambda: nn.Sequential(
                 first, nn.Sequential(norm, nn.Sequential(*tail)), last),
             "own": lambda: Net(first, norm, last),
             "shared": lambda: nn.Sequential(
                 first, nn.Sequential(norm), nn.Sequential(norm, *tail), last)}[kind]()
    held = {f"{name}.{part}": tensor for name, layer in (("first", first), ("last", last))
            for part, tensor in layer.named_parameters()}
    held |= norm.state_dict(keep_vars=True) if kind != "dropout" else {}
    with torch.no_grad():
        for name, value in state.items():
            held[name].copy_(value)
    for parameter in first.parameters():
        parameter.requires_grad_(not frozen)
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode

    def settings():
        return [v for m in model.modules() for v in vars(m).values() if type(v) in (int, float)]

    graphs, before = [], settings()
    model.register_forward_hook(lambda m, a, out: graphs.append(out.requires_grad) or (
        2 * out if hook else None))
    asked = [p.requires_grad for p in model.parameters()]
    outs = [fn(model, x), fn(model, x)]
    on = torch.is_grad_enabled()
    with torch.no_grad():
        fn(model, x)
        off = torch.is_grad_enabled()
    return {"out": outs[0], "again": outs[1], "graphs": sum(graphs),
            "grad": [getattr(out, "requires_grad", None) for out in outs],
            "changed": sum(p.requires_grad != a for p, a in zip(model.parameters(), asked)),
            "settings": sum(a != b for a, b in zip(before, settings())),
            "grad_mode": [on, off], "modes": [m.training for m in model.modules()],
            "after": held}


def eval_forward(kind, x, hook, state):
    """Linear, BatchNorm with stored statistics, ReLU, Linear, written out in float64."""
    p = {k: v.double() for k, v in state.items()}

    def once(h):
        if kind != "dropout":
            h = (h - p["running_mean"]) / (p["running_var"] + 1e-5).sqrt() * p["weight"] + p["bias"]
        return h
    h = once(x.double() @ p["first.weight"].T + p["first.bias"])
    h = (once(h) if kind == "shared" else h).clamp(min=0)
    return ((h @ p["last.weight"].T + p["last.bias"]) * (2 if hook else 1)).float()


@ex.law
def law(out, kind, x, modes, frozen, hook, state):
    expect_parts(out, "out", "again", "graphs", "grad", "changed", "settings", "grad_mode",
                 "modes", "after")
    expect_parts(out["after"], *state, what="stored state after the call")
    for name in sorted(state, key=lambda name: not name.startswith("running")):
        if not same(out["after"][name], state[name]):
            raise Broken("stored state after the call", f"{name} changed", "no change",
                         "In train mode, BatchNorm updates its buffers." if "running" in name
                         else "")
    look = "The expected value is what the model returns in eval mode."
    wanted = eval_forward(kind, x, hook, state)
    expect_close("prediction", out["out"], wanted, rtol=1e-3, look=look)
    expect_close("second call's prediction", out["again"], wanted, rtol=1e-3, look=look)
    # Graphs and flags are seen from inside, because nothing else shows them.
    expect_equal("requires_grad of the predictions", out["grad"], [False, False],
                 "As long as a result requires grad, its graph stays in memory.")
    expect_equal("graphs built in the passes", out["graphs"], 0,
                 "A graph costs memory, even if you detach the result afterwards.")
    expect_equal("training flags of all modules after the call", out["modes"], modes,
                 "Restore each module's own mode.")
    expect_equal("changes in requires_grad of the weights", out["changed"], 0,
                 "Leave the model as you found it.")
    expect_equal("changes in settings of the modules", out["settings"], 0,
                 "Leave the model as you found it.")
    expect_equal("grad mode after a call with gradients on, and after one with gradients off",
                 out["grad_mode"], [True, False],
                 "Leave the grad mode as you found it.")


# ---- wrong, by name

@not_an_answer
def evaluated(model, x):
    kept = [(m, m.training) for m in model.modules()]
    model.eval()
    with torch.no_grad():
        out = model(x)
    for m, mode in kept:
        m.training = mode
    return out


wrong = ex.edits(evaluated)
START, EACH, EVAL = "kept =", "model.modules()", "model.eval()"
NO_GRAD, OUT, END = "with torch.no_grad():", "model(x)", "return out"
RESTORED = "for m, mode in kept:\n        m.training = mode"
wrong("using no_grad without eval mode", ("eval mode", "example"), EVAL, "pass",
      says="stored state")
wrong("putting only the root module into eval mode", ("eval mode", "modes", "example"),
      EVAL, "model.training = False", RESTORED, "", says="stored state")
wrong("switching only the BatchNorm and Dropout layers to eval mode", ("any model", "any input"),
      EVAL,
      "[m.eval() for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.Dropout)]")
wrong("switching to eval mode only if the root is in train mode", "eval mode",
      EVAL, "model.training and model.eval()", says="prediction")
wrong("never leaving eval mode", ("modes", "example"), RESTORED, "")
wrong("calling train() at the end, even if the model was in eval mode before", "modes",
      RESTORED, "model.train()")
wrong("putting every module into the root's former mode",
      "modes", RESTORED, "model.train(kept[0][1])")
wrong("restoring only the modes of the root and its children", "modes",
      EACH, "[model, *model.children()]")
wrong("restoring only the modes of the BatchNorm layers", "modes", "for m, mode in kept",
      "model.train(kept[0][1])\n    for m, mode in kept", "m.training = mode",
      "m.training = mode if isinstance(m, nn.BatchNorm1d) else m.training")
wrong("leaving every BatchNorm in train mode if the root was in train mode", "frozen norm",
      "m.training = mode",
      "m.training = mode or kept[0][1] and isinstance(m, nn.BatchNorm1d)", says="training flags")
wrong("calling train(mode) on each module, which overwrites a shared module's mode", "modes",
      "m.training = mode", "m.train(mode)")
wrong("using eval mode without no_grad", ("result", "no graph"), NO_GRAD, "if True:",
      says="requires_grad")
wrong("using neither eval mode nor no_grad", ("eval mode", "result", "no graph", "example"),
      EVAL, "pass", NO_GRAD, "if True:", says="stored state")
wrong("building a graph and then detaching the result", "no graph",
      NO_GRAD, "if True:", END, "return out.detach()")
wrong("calling requires_grad_() on the result", "result",
      END, "return out.requires_grad_()")
wrong("flattening x to two axes before the forward pass", "any input",
      OUT, "model(x.reshape(len(x), -1))",
      says="raised RuntimeError")
wrong("running the model on two copies of the row if x has only one", "any input",
      OUT, "model(x if len(x) > 1 else x.repeat(2, *[1] * (x.dim() - 1)))",
      says="shape of the prediction")
wrong("calling the layers one by one, as if every model were an nn.Sequential",
      ("any model", "any input"),
      "out = model(x)", "out = x\n        for layer in model: out = layer(out)",
      says="not iterable")
wrong("calling model.forward, which skips the hooks", "any model", OUT, "model.forward(x)")
wrong("freezing the weights and never unfreezing them", "nothing else",
      START, "model.requires_grad_(False); kept =")
wrong("unfreezing all weights at the end", "nothing else",
      END, "model.requires_grad_(True); return out")
wrong("switching gradients on at the end, even if they were off before", "nothing else",
      END, "torch.set_grad_enabled(True); return out")
wrong("setting every dropout's p to 0 and never restoring it", "nothing else", EVAL,
      "for m in model.eval().modules():\n        if isinstance(m, nn.Dropout): m.p = 0.0")
wrong("switching gradients off for the whole session", "nothing else",
      START, "torch.set_grad_enabled(False); kept =")
wrong("switching to eval mode only if the model has a BatchNorm", "example",
      EVAL, "any(isinstance(m, nn.BatchNorm1d) for m in model.modules()) and model.eval()")
