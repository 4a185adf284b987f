"""Exercise 07.11, `linear_in`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy
import math

import torch

from dlsys_checks.s07.e11_linear_in import ex


@ex.right("a copy made under the device meta, two rows less one")
def two_rows(features, shape):
    twin = copy.deepcopy(features).to(device="meta")
    twin.train(False)
    return twin(torch.zeros((2, *shape), device="meta")).numel() // 2


@ex.right("the product of the axes behind the first")
@torch.no_grad()
def by_axes(features, shape):
    out = copy.deepcopy(features).eval().to("meta")(torch.empty((3, *shape), device="meta"))
    return math.prod(out.shape[1:])


@ex.right("flattened, and the width read off")
def by_flatten(features, shape):
    twin = copy.deepcopy(features).eval().to("meta")
    return twin(torch.rand(5, *shape, device="meta")).flatten(1).shape[1]


@ex.right("weights of shapes alone handed in from outside")
def functional(features, shape):
    twin = copy.deepcopy(features).eval()
    held = {n: t.to("meta") for n, t in twin.state_dict().items()}
    out = torch.func.functional_call(twin, held, (torch.empty(1, *shape, device="meta"),))
    return out[0].numel()


def shapes(features, shape):
    twin = copy.deepcopy(features).to("meta").eval()
    return twin(torch.empty(1, *shape, device="meta")).numel()


@ex.probe("forward hooks cleared", breaks="as it is")
def hooks_cleared(features, shape):
    for module in features.modules():
        module._forward_hooks.clear()
    return shapes(features, shape)


@ex.probe("forward pre-hooks cleared", breaks="as it is")
def hooks_before_cleared(features, shape):
    for module in features.modules():
        module._forward_pre_hooks.clear()
    return shapes(features, shape)


@ex.probe("backward hooks cleared", breaks="as it is")
def hooks_behind_cleared(features, shape):
    for module in features.modules():
        module._backward_hooks.clear()
    return shapes(features, shape)
