"""Exercise 01.1, `predict`."""

from __future__ import annotations

import math

import torch
from torch import nn

from dlsys_helpers.acting import same
from dlsys_helpers.checking import exercise
from dlsys_helpers.expect import Broken, expect_close, expect_equal, expect_parts

ex = exercise("01.1", "predict",
              seen=("x", "training", "frozen_norm", "state"), kept=("after",))


@ex.cases
def cases(g):
    def one(name, batch, training, frozen):
        return name, {"x": torch.randn(batch, 6, generator=g) * 2 + 1, "training": training,
                      "frozen_norm": frozen, "state": trained_state(g)}
    return [one("a model in train mode", 17, True, False),
            one("a model in eval mode", 5, False, False),
            one("a frozen norm inside a model in train mode", 9, True, True)]


def trained_state(g):
    """Weights as nn.Linear draws them, and statistics that are no longer the initial ones."""
    def uniform(*shape, fan_in):
        return (2 * torch.rand(*shape, generator=g) - 1) / math.sqrt(fan_in)
    return {"0.weight": uniform(8, 6, fan_in=6), "0.bias": uniform(8, fan_in=6),
            "1.weight": torch.ones(8), "1.bias": torch.zeros(8),
            "1.running_mean": 0.3 * torch.randn(8, generator=g),
            "1.running_var": 0.5 + torch.rand(8, generator=g),
            "1.num_batches_tracked": torch.tensor(1),
            "4.weight": uniform(3, 8, fan_in=8), "4.bias": uniform(3, fan_in=8)}


@ex.act
def act(fn, x, training, frozen_norm, state):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5),
                          nn.Linear(8, 3))
    model.load_state_dict(state)
    model.train(training)
    if frozen_norm:
        model[1].eval()
    first, second = fn(model, x), fn(model, x)
    return {"out": first, "again": second, "grad": bool(getattr(first, "requires_grad", False)),
            "modes": [m.training for m in model.modules()], "after": dict(model.state_dict())}


def eval_forward(x, state):
    """Linear, BatchNorm with stored statistics, ReLU, Linear, written out in float64."""
    p = {k: v.double() for k, v in state.items()}
    h = x.double() @ p["0.weight"].T + p["0.bias"]
    h = (h - p["1.running_mean"]) / (p["1.running_var"] + 1e-5).sqrt()
    h = (h * p["1.weight"] + p["1.bias"]).clamp(min=0)
    return (h @ p["4.weight"].T + p["4.bias"]).float()


@ex.law
def law(out, x, training, frozen_norm, state):
    expect_parts(out, "out", "again", "grad", "modes", "after")
    expect_parts(out["after"], *state, what="stored state after the call")
    for name, before in state.items():
        if not same(out["after"][name], before):
            raise Broken("stored state after the call", f"{name} changed", "no change",
                         "BatchNorm moves its buffers in train mode.")
    expect_close("prediction", out["out"], eval_forward(x, state), rtol=1e-3, atol=1e-4,
                 look="Compare with the model in eval mode.")
    expect_equal("second call's result", out["again"], out["out"])
    # Whether there was a graph, and the flags: seen from inside, for nothing else shows them.
    expect_equal("requires_grad of the prediction", out["grad"], False,
                 "The graph of this pass is kept in memory.")
    # nn.Sequential and its five layers, in the order of model.modules().
    modes = [training, training, training and not frozen_norm, training, training, training]
    expect_equal("training flags of all modules after the call", out["modes"], modes,
                 "Each module gets its own former mode back.")


@ex.wrong("no_grad without eval mode", says="stored state")
def no_grad_only(model, x):
    with torch.no_grad():
        return model(x)


@ex.wrong("eval mode for the root module only", says="stored state")
@torch.no_grad()
def root_only(model, x):
    model.training = False
    return model(x)


@ex.wrong("eval mode that is never left again", says="training flags")
@torch.no_grad()
def stays_in_eval(model, x):
    return model.eval()(x)


@ex.wrong("train() at the end, whatever the mode was before", says="training flags")
@torch.no_grad()
def always_train(model, x):
    out = model.eval()(x)
    model.train()
    return out


@ex.wrong("the root's former mode for every layer", says="training flags")
@torch.no_grad()
def one_mode_for_all(model, x):
    was = model.training
    out = model.eval()(x)
    model.train(was)
    return out


@ex.wrong("eval mode without no_grad", says="requires_grad")
def keeps_graph(model, x):
    modes = [(m, m.training) for m in model.modules()]
    out = model.eval()(x)
    for module, mode in modes:
        module.training = mode
    return out
