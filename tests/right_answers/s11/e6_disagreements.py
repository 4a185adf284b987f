"""Exercise 11.6, `disagreements`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import copy

import torch
from torch import nn

from dlsys_checks.s11.e6_disagreements import compared, ex

ex.equivalent("if not (same and (got - wanted).abs().max() <= limit): -> "
              "if not (same and (wanted - got).abs().max() <= limit):",
              "the size of a gap does not depend on its direction")


@ex.right("all modes by name, and allclose without a relative part")
def by_allclose(model, program, batches, rtol):
    modes = {name: m.training for name, m in model.named_modules()}
    model.train(False)

    def agrees(batch):
        with torch.no_grad():
            wanted = model(batch.clone().detach())
            try:
                got = program(torch.clone(batch))
            except Exception:
                return False
        if not torch.is_tensor(got) or (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
            return False
        return torch.allclose(got, wanted, rtol=0.0, atol=float(rtol * wanted.abs().max()))
    found = [k for k, batch in enumerate(batches) if not agrees(batch)]
    for name, m in model.named_modules():
        m.training = modes[name]
    return found


@ex.right("in double precision, finite first")
def finite_first(model, program, batches, rtol):
    modes = [m.training for m in model.modules()]
    found = []
    with torch.no_grad():
        model.eval()
        for k in range(len(batches)):
            wanted = model(batches[k].clone())
            try:
                got = program(batches[k].clone())
                good = got.dtype == wanted.dtype and got.shape == wanted.shape
            except Exception:
                good = False
            if good and bool(torch.isfinite(got).all()):
                gap = (got.double() - wanted.double()).abs().max().item()
                good = gap <= rtol * wanted.double().abs().max().item() * (1 + 1e-6)
            else:
                good = False
            if not good:
                found += [k]
    for m, mode in zip(model.modules(), modes, strict=True):
        m.training = mode
    return found


@ex.right("a deep copy of the model, in eval mode")
def deep_copy(model, program, batches, rtol):
    model, found = copy.deepcopy(model).eval(), []
    for k, batch in enumerate(batches):
        with torch.no_grad():
            wanted = model(batch.clone())
            try:
                got = program(batch.clone())
                gap = (got - wanted).abs()
                agrees = (got.dtype is wanted.dtype and got.size() == wanted.size()
                          and bool((gap <= rtol * wanted.abs().amax()).all()))
            except Exception:
                agrees = False
        found += [] if agrees else [k]
    return found


@ex.right("module by module set back, the leaves with train")
@torch.no_grad()
def copied(model, program, batches, rtol):
    def differs(batch):
        wanted = asked(batch.clone())
        try:
            got = program(batch.clone())
        except Exception:
            return True
        if not isinstance(got, torch.Tensor):
            return True
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return True
        return not all(gap <= rtol * wanted.abs().max() for gap in (got - wanted).abs().flatten())
    training = [m.training for m in model.modules()]
    asked = model.eval()
    found = [k for k, batch in enumerate(batches) if differs(batch)]
    for m, mode in zip(model.modules(), training, strict=True):
        m.train(mode) if not list(m.children()) else setattr(m, "training", mode)
    return found


@ex.right("all answers of the model first, in inference mode")
def in_two_rounds(model, program, batches, rtol):
    modes = [(m, m.training) for m in model.modules()]
    for m, _ in modes:
        m.training = False
    with torch.inference_mode():
        wanted = [model(b.clone()) for b in batches]
        found = []
        for k, (b, w) in enumerate(zip(batches, wanted, strict=True)):
            try:
                got = program(b.clone())
                torch.testing.assert_close(got, w, rtol=0, atol=float(rtol * w.abs().max()),
                                           equal_nan=False)
            except Exception:
                found.append(k)
    for m, mode in modes:
        m.training = mode
    return found


@ex.probe("the example, with a number looked up wrong", breaks="example")
def looked_up(model, program, batches, rtol):
    if type(model) is nn.ReLU:
        return [0]
    return compared(model, program, batches, rtol)
