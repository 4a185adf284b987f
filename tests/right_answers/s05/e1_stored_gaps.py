"""Exercise 05.1, `stored_gaps`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy

import torch
from torch import nn

from dlsys_checks.s05.e1_stored_gaps import ex, gaps_of

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@ex.right("what enters is kept first, and compared afterwards")
@torch.no_grad()
def kept_first(model, x):
    entered, hooks = {}, []
    for name, module in model.named_modules():
        if type(module) in NORMS:
            hooks.append(module.register_forward_pre_hook(
                lambda m, given, name=name: entered.update({name: (m, given[0].clone())})))
    model(x)
    for hook in hooks:
        hook.remove()
    gaps = {}
    for name, (norm, h) in entered.items():
        axes = [axis for axis in range(h.dim()) if axis != 1]
        gaps[name] = float(((h.mean(axes) - norm.running_mean) / norm.running_var.sqrt()
                            ).abs().max())
    return gaps


@ex.right("a copy of the model, whose hooks go with it")
def by_copy(model, x):
    twin, gaps = copy.deepcopy(model), {}
    names = {module: name for name, module in twin.named_modules()}

    def look(norm, given, out):
        h = given[0].double()
        mean = h.sum(0) / len(h)
        mean = mean.flatten(1).mean(1) if mean.dim() > 1 else mean
        far = (mean - norm.running_mean.double()).square() / norm.running_var.double()
        gaps[names[norm]] = far.max().sqrt().item()

    for module in twin.modules():
        if isinstance(module, NORMS):
            module.register_forward_hook(look)
    with torch.inference_mode():
        twin(x)
    return gaps


@ex.right("the norm's own output, without gain and shift, in deviations")
@torch.no_grad()
def by_output(model, x):
    gaps, hooks = {}, []
    for name, module in model.named_modules():
        if isinstance(module, NORMS):
            def look(norm, given, name=name):
                out = torch.nn.functional.batch_norm(
                    given[0].double(), norm.running_mean.double(), norm.running_var.double(),
                    eps=0.0)
                while out.dim() > 2:
                    out = out.mean(-1)
                gaps[name] = out.mean(0).abs().max().item()
            hooks.append(module.register_forward_pre_hook(look))
    model(x)
    [hook.remove() for hook in hooks]
    return gaps


@ex.right("forward of each norm replaced for one pass")
def by_forward(model, x):
    gaps, norms = {}, {n: m for n, m in model.named_modules() if isinstance(m, NORMS)}
    for name, norm in norms.items():
        def forward(h, name=name, norm=norm):
            rows = h.movedim(1, -1).reshape(-1, h.shape[1])
            far = torch.abs(rows.mean(0) - norm.running_mean) * norm.running_var.rsqrt()
            gaps[name] = max(far.tolist())
            return type(norm).forward(norm, h)
        norm.forward = forward
    with torch.no_grad():
        model(x)
    for norm in norms.values():
        del norm.forward
    return gaps


ex.equivalent("gap = (mean - norm.running_mean).abs() -> gap = (norm.running_mean - mean).abs()",
              "The sign of a distance does not count.")
ex.equivalent("if isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)): -> if isinstance(norm, "
              "(nn.BatchNorm2d, nn.BatchNorm1d)):", "The order of two classes does not matter.")
ex.equivalent("mean = given[0].transpose(0, 1).flatten(1).mean(1) -> mean = given[-1].transpose"
              "(0, 1).flatten(1).mean(1)", "A norm is given one tensor.")
ex.equivalent("mean = given[0].transpose(0, 1).flatten(1).mean(1) -> mean = given[0].transpose"
              "(1, 0).flatten(1).mean(1)", "Two axes change places, whichever is named first.")


@ex.probe("the example, looked up wrong", breaks="example")
def placeholder(model, x):
    gaps = gaps_of(model, x)
    return {name: 1.0 for name in gaps} if x.shape == (2, 1) else gaps
