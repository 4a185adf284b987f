"""Exercise 01.1, `predict`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy

import torch

from dlsys_checks.s01.e1_predict import ex


@ex.right("flags by module, and no graph in inference mode")
def by_dict(model, x):
    flags = {module: module.training for module in model.modules()}
    with torch.inference_mode():
        out = model.eval()(x)
    for module, flag in flags.items():
        module.training = flag
    return out.clone()


@ex.right("a copy in eval mode")
@torch.no_grad()
def by_copy(model, x):
    return copy.deepcopy(model).eval()(x)


@ex.right("only the modules in train mode remembered, put back whatever happens")
def by_list(model, x):
    live = [module for module in model.modules() if module.training]
    try:
        model.train(False)
        with torch.set_grad_enabled(False):
            return model(x)
    finally:
        for module in live:
            module.training = True


@ex.right("flags by name")
def by_name(model, x):
    flags = [(name, module.training) for name, module in model.named_modules()]
    model.eval()
    with torch.no_grad():
        out = model(x.clone())
    for name, flag in flags:
        model.get_submodule(name).training = flag
    return out


@ex.right("modules one by one, by recursion")
def by_recursion(model, x):
    def flags(module):
        return [(module, module.training)] + [f for m in module.children() for f in flags(m)]
    kept = flags(model)
    with torch.no_grad():
        out = model.eval()(x)
    for module, flag in kept:
        module.training = flag
    return out


def in_eval(model, x, modules):
    modes = [(m, m.training) for m in modules]
    model.eval()
    with torch.no_grad():
        out = model(x)
    for module, mode in modes:
        module.training = mode
    return out


@ex.probe("a graph where the model is in eval mode already", breaks=("eval mode", "result"))
def nothing_to_do_in_eval_mode(model, x):
    return model(x) if not model.training else in_eval(model, x, list(model.modules()))
