"""Exercise 09.1, `amp_step`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import math

import torch
from torch import nn

from dlsys_checks.s09.e1_amp_step import amp, ex, tensors, used_ones


@ex.right("clipped while scaled, to a limit that is scaled, too")
def scaled_limit(opt, scaler, loss_of, dtype, max_norm):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=dtype):
        loss = loss_of()
    if dtype is torch.bfloat16:
        loss.backward()
        norm = nn.utils.clip_grad_norm_(tensors(opt), max_norm)
        opt.step()
        return norm.item()
    scale = scaler.get_scale()
    scaler.scale(loss).backward()
    norm = nn.utils.clip_grad_norm_(tensors(opt), max_norm * scale)
    scaler.step(opt)
    scaler.update()
    return norm.item() / scale


@ex.right("a disabled scaler in bfloat16")
def disabled(opt, scaler, loss_of, dtype, max_norm):
    used = scaler if dtype == torch.float16 else torch.amp.GradScaler("cpu", enabled=False)
    with torch.autocast("cpu", dtype):
        loss = loss_of()
    opt.zero_grad(set_to_none=False)
    for p in tensors(opt):
        p.grad = None
    used.scale(loss).backward()
    used.unscale_(opt)
    norm = float(nn.utils.get_total_norm([p.grad for p in used_ones(opt)]))
    nn.utils.clip_grads_with_norm_(tensors(opt), max_norm, torch.tensor(norm))
    used.step(opt)
    used.update()
    return norm


@ex.right("autograd.grad, and the clip by hand")
def by_hand(opt, scaler, loss_of, dtype, max_norm):
    half, params = dtype == torch.float16, tensors(opt)
    with torch.autocast("cpu", dtype):
        loss = loss_of()
    found = torch.autograd.grad(scaler.scale(loss) if half else loss, params, allow_unused=True)
    for p, slope in zip(params, found, strict=True):
        p.grad = slope
    if half:
        scaler.unscale_(opt)
    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in used_ones(opt)))
    if norm > max_norm:
        for p in used_ones(opt):
            p.grad.mul_(max_norm / norm)
    scaler.step(opt) if half else opt.step()
    if half:
        scaler.update()
    return norm


@ex.right("a hook that clips before the step")
def by_hook(opt, scaler, loss_of, dtype, max_norm):
    opt.zero_grad()
    norms = []

    def clip():
        flat = torch.cat([p.grad.flatten() for p in used_ones(opt)])
        norms.append(flat.norm().item())
        if norms[0] > max_norm:
            for p in used_ones(opt):
                p.grad = p.grad * (max_norm / norms[0])
    with torch.autocast("cpu", dtype):
        loss = loss_of()
    if dtype != torch.float16:
        loss.backward()
        clip()
        opt.step()
    else:
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        clip()
        scaler.step(opt)
        scaler.update()
    return norms[0]


@ex.probe("the example looked up, and its sign wrong", says="change of parameter", breaks="example")
def looked_up(opt, scaler, loss_of, dtype, max_norm):
    weights = tensors(opt)
    norm = amp(opt, scaler, loss_of, dtype, max_norm)
    if len(weights) == 1 and weights[0].shape == (1, 2) and max_norm == 1.0:
        weights[0].data.neg_()
    return norm
