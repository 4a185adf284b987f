"""Exercise 01.3, `grad_ratio`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.s01.e3_grad_ratio import backward, ex, linear_layers


@ex.right("gradients cleared, then backward")
def cleared(model, x, y):
    model.zero_grad()
    backward(model, x, y)
    weights = [m.weight for m in linear_layers(model)]
    return (weights[0].grad.norm() / weights[-1].grad.norm()).item()


@ex.right("a copy of the model")
def on_a_copy(model, x, y):
    import copy
    twin = copy.deepcopy(model)
    twin.zero_grad()
    F.nll_loss(twin(x).log_softmax(1), y, reduction="sum").backward()  # a sum has the same ratio
    norms = [m.weight.grad.square().sum().sqrt() for m in linear_layers(twin)]
    return float(norms[0]) / float(norms[-1])


@ex.right("torch.func.grad over the weights by name")
def by_functional_grad(model, x, y):
    held = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights):
        return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)
    grads = torch.func.grad(loss)(held)
    names = [f"{name}.weight" for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    return grads[names[0]].norm().item() / grads[names[-1]].norm().item()


@ex.right("the difference that backward makes")
def by_difference(model, x, y):
    first, last = linear_layers(model)[0].weight, linear_layers(model)[-1].weight
    kept = [(p, p.grad) for p in model.parameters()]
    for p, _ in kept:
        p.grad = None
    backward(model, x, y)
    ratio = (torch.linalg.norm(first.grad) / torch.linalg.norm(last.grad)).item()
    for p, grad in kept:
        p.grad = grad
    return ratio
