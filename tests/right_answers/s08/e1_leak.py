"""Exercise 08.1, `leak`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy

import torch

from dlsys_checks.s08.e1_leak import ex, probed

ex.equivalent("change = (model(changed) - before)[:, :t] -> change = (before - model(changed))"
              "[:, :t]", "The sign of a change does not count.")


@ex.right("a copy of the model, under inference_mode")
@torch.inference_mode()
def by_copy(model, x, others):
    twin, found = copy.deepcopy(model).eval(), [0.0]
    before = twin(x)
    for t in range(1, x.shape[1]):
        changed = torch.cat([x[:, :t], others[:, t:t + 1], x[:, t + 1:]], 1)
        found.append(float((twin(changed)[:, :t] - before[:, :t]).abs().max()))
    return found


@ex.right("all places in one batch")
def in_one_batch(model, x, others):
    modes = [module.training for module in model.modules()]
    model.eval()
    n, places = x.shape[:2]
    batch = x.repeat(places + 1, *[1] * (x.dim() - 1)).unflatten(0, (places + 1, n))
    for t in range(places):
        batch[t + 1, :, t] = others[:, t]
    with torch.no_grad():
        out = model(batch.flatten(0, 1)).unflatten(0, (places + 1, n))
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    return [0.0] + [(out[t + 1, :, :t] - out[0, :, :t]).abs().max().item()
                    for t in range(1, places)]


@ex.right("by a mask of the place, output by output")
def by_mask(model, x, others):
    modes = {name: module.training for name, module in model.named_modules()}
    place = torch.arange(x.shape[1]).view(-1, *[1] * (x.dim() - 2))
    found = []
    try:
        model.train(False)
        with torch.no_grad():
            before = model(x.clone()).double()
            for t in range(x.shape[1]):
                change = model(torch.where(place == t, others, x)).double() - before
                found.append(max([change[:, s].abs().amax().item() for s in range(t)], default=0.0))
    finally:
        for name, module in model.named_modules():
            module.training = modes[name]
    return found


@ex.right("from the last place to the first, one copy put back")
def backwards(model, x, others):
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = False
    found, row = [0.0] * x.shape[1], x.clone()
    with torch.set_grad_enabled(False):
        before = model(row).clone()
        for t in reversed(range(1, x.shape[1])):
            row[:, t] = others[:, t]
            change = model(row)[:, :t] - before[:, :t]
            row[:, t] = x[:, t]
            found[t] = max(change.max().item(), -change.min().item())
    for module, mode in modes:
        module.training = mode
    return found


@ex.probe("x and others made to require a gradient", breaks="left")
def asking(model, x, others):
    for t in (x, others):
        t.requires_grad_(t.is_floating_point())
    return probed(model, x.detach(), others.detach())


@ex.probe("the example, looked up wrong", breaks="example")
def placeholder(model, x, others):
    out = probed(model, x, others)
    return out[::-1] if x.tolist() == [[1.0, 2.0, 3.0]] else out
