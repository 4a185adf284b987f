"""Exercise 08.11, `batch_dependence`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy

import torch

from dlsys_checks.s08.e11_batch_dependence import ex, moved

ex.equivalent("return (after - before).abs().max().item() -> return (before - after).abs().max()"
              ".item()", "The sign of a change does not count.")


@ex.right("modes kept by name, in a try")
@torch.no_grad()
def by_name(model, x, others):
    modes = {name: module.training for name, module in model.named_modules()}
    try:
        model.eval()
        outs = [model(batch)[0] for batch in (x.clone(), torch.cat((x[:1], others)))]
    finally:
        for name, module in model.named_modules():
            module.training = modes[name]
    return float((outs[0] - outs[1]).abs().max())


@ex.right("a copy of the model")
def by_copy(model, x, others):
    twin = copy.deepcopy(model).eval()
    with torch.inference_mode():
        old = twin(x.clone())[0].double()
        new = twin(torch.vstack([x[:1].flatten(1), others.flatten(1)]).view_as(x))[0].double()
    return torch.max(torch.abs(new - old)).item()


@ex.right("the largest of maximum and minimum")
def by_both_ends(model, x, others):
    modes = [module.training for module in model.modules()]
    batch = x.clone()
    batch[1:] = others
    model.train(False)
    with torch.no_grad():
        change = model(batch)[0] - model(x.clone())[0]
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    return max(change.max().item(), -change.min().item())


@ex.right("the infinity norm")
def by_norm(model, x, others):
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = False
    with torch.set_grad_enabled(False):
        old, new = (model(torch.cat([x[:1], rest]))[0] for rest in (x[1:], others))
    for module, mode in modes:
        module.training = mode
    return torch.linalg.vector_norm((new - old).flatten(), ord=torch.inf).item()


@ex.probe("the example, looked up wrong", breaks="example")
def placeholder(model, x, others):
    out = moved(model, x, others)
    return -out if x.shape == (2, 1) else out
