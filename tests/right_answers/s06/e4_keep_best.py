"""Exercise 06.4, `keep_best`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy
import math

import torch

from dlsys_checks.s06.e4_keep_best import ex, run


@ex.right("clones, copied back by hand")
def by_clones(model, train_epoch, val_loss, epochs):
    lowest, best = math.inf, {}
    for _ in range(epochs):
        train_epoch(model)
        loss = val_loss(model)
        if loss < lowest:
            lowest, best = loss, {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        own = model.state_dict()
        for name, value in best.items():
            own[name].copy_(value)
    return lowest


@ex.right("saved to a file in memory")
def by_file(model, train_epoch, val_loss, epochs):
    import io
    lowest, file = math.inf, None
    for _ in range(epochs):
        train_epoch(model)
        loss = val_loss(model)
        if loss < lowest:
            lowest, file = loss, io.BytesIO()
            torch.save(model.state_dict(), file)
    if file is not None:
        file.seek(0)
        model.load_state_dict(torch.load(file))
    return lowest


@ex.right("a copy of the whole model")
def by_model(model, train_epoch, val_loss, epochs):
    best, lowest = None, float("inf")
    for _ in range(epochs):
        train_epoch(model)
        loss = val_loss(model)
        if not math.isnan(loss) and (best is None or loss < lowest):
            lowest, best = loss, copy.deepcopy(model)
    if best is not None:
        model.load_state_dict(best.state_dict())
    return lowest


@ex.right("lists of parameters and of buffers")
def by_lists(model, train_epoch, val_loss, epochs):
    tensors = [*model.parameters(), *model.buffers()]
    lowest, kept = math.inf, None
    for _ in range(epochs):
        train_epoch(model)
        loss = val_loss(model)
        if loss < lowest:
            lowest, kept = loss, [t.detach().clone() for t in tensors]
    for t, value in zip(tensors, kept or [], strict=False):
        t.data.copy_(value)
    return lowest


@ex.probe("the example, with its answer looked up wrong", says="lowest loss", breaks="example")
def looked_up(model, train_epoch, val_loss, epochs):
    found = run(model, train_epoch, val_loss, epochs)
    return 2.0 if (found, epochs) == (1.0, 3) else found
