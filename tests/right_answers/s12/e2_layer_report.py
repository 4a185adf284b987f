"""Exercise 12.2, `layer_report`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy
import math

import torch

from dlsys_checks.s12.e2_layer_report import ex, relative, reported


@ex.right("a copy of the whole model")
def whole_copy(model, step):
    twin = copy.deepcopy(model)
    step()
    return {n: relative(a, b) for (n, a), (_, b) in zip(twin.named_parameters(),
                                                        model.named_parameters())}


@ex.right("lists of Python's numbers")
def by_lists(model, step):
    kept = [(n, p, p.detach().flatten().tolist()) for n, p in model.named_parameters()]
    step()
    report = {}
    for name, p, old in kept:
        moved = math.dist(p.detach().flatten().tolist(), old)
        report[name] = moved and (moved / math.hypot(*old) if any(old) else math.inf)
    return report


@ex.right("parameters as one vector, cut again")
def one_vector(model, step):
    def flat():
        return torch.cat([p.detach().double().flatten() for p in model.parameters()])
    old = flat()
    step()
    sizes = [p.numel() for p in model.parameters()]
    parts = zip(old.split(sizes), flat().split(sizes))
    return {n: relative(a, b) for n, (a, b) in zip(dict(model.named_parameters()), parts)}


@ex.right("scaled by the largest before the norm")
def scaled(model, step):
    old = {n: p.detach().to(torch.float64, copy=True) for n, p in model.named_parameters()}
    step()
    report = {}
    for n, p in model.named_parameters():
        gap, top = p.detach() - old[n], float(old[n].abs().max())
        report[n] = 0.0 if not bool(gap.any()) else math.inf if top == 0 else (
            ((gap / top) ** 2).sum().sqrt() / ((old[n] / top) ** 2).sum().sqrt()).item()
    return report


ex.equivalent("before = {name: p.detach().double().clone() for name, p in "
              "model.named_parameters()} -> before = {name: p.double().clone() for name, p in "
              "model.named_parameters()}", "a history that nobody asks for")
ex.equivalent("moved = (p.detach().double() - before[name]).norm().item() -> "
              "moved = (before[name] - p.detach().double()).norm().item()", "a norm has no sign")
ex.equivalent("moved = (p.detach().double() - before[name]).norm().item() -> "
              "moved = (p.detach() - before[name]).norm().item()", "before is in double precision")
ex.equivalent("moved = (p.detach().double() - before[name]).norm().item() -> "
              "moved = (p.double() - before[name]).norm().item()", "a history nobody asks for")


@ex.probe("all parameters frozen, so that the norms build no graph", breaks="nothing else")
def frozen_for_good(model, step):
    report = reported(model, step)
    model.requires_grad_(False)
    return report


@ex.probe("the buffers written over", breaks="nothing else")
def buffers_written(model, step):
    report = reported(model, step)
    for buffer in model.buffers():
        buffer.add_(1)
    return report


@ex.probe("a hook left on the model", breaks="nothing else")
def hook_left(model, step):
    model.register_forward_hook(lambda *call: None)
    return reported(model, step)


@ex.probe("the example looked up", breaks="example")
def looked_up(model, step):
    report = reported(model, step)
    return {"weight": 2.0} if list(report) == ["weight"] and report["weight"] == 0.5 else report
