"""Exercise 11.9, `nvfp4_scales`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s11.e9_nvfp4_scales import ex, made
from dlsys_helpers.judging import edited


@ex.right("stacked, and split again")
def stacked(parts):
    together = torch.cat(parts)
    top = together.abs().max()
    whole = torch.where(top > 0, top / 2688, torch.ones(()))
    scales = together.reshape(-1, 16).abs().amax(1) / 6 / whole
    scales = scales.to(torch.float8_e4m3fn).view(len(together), -1)
    return whole, list(scales.split([len(part) for part in parts]))


@ex.right("in double precision")
def double(parts):
    top = max(float(part.double().abs().max()) for part in parts)
    whole = top / 6 / 448 or 1.0
    scales = [(part.double().abs().unfold(1, 16, 16).amax(-1) / (6 * whole)).to(
        torch.float8_e4m3fn) for part in parts]
    return torch.tensor(whole, dtype=torch.float32), scales


@ex.right("multiplied by 448 over the largest")
def multiplied(parts):
    top = torch.stack([torch.maximum(part.max(), -part.min()) for part in parts]).max()
    ratio = torch.where(top > 0, 448 / top, 0.0)
    scales = [(F.max_pool1d(part.abs()[None], 16)[0] * ratio).to(torch.float8_e4m3fn)
              for part in parts]
    return torch.where(top > 0, top / (6 * 448), 1.0), scales


@ex.right("block by block, in Python")
def in_python(parts):
    top = 0.0
    for part in parts:
        for value in part.flatten().tolist():
            top = max(top, abs(value))
    whole = top / (6 * 448) if top else 1.0
    scales = []
    for part in parts:
        rows = [[max(map(abs, row[i:i + 16])) / 6 / whole for i in range(0, len(row), 16)]
                for row in part.tolist()]
        scales.append(torch.tensor(rows).to(torch.float8_e4m3fn))
    return torch.tensor(whole), scales


@ex.right("cut at 448 before it is rounded, by shapes of three axes")
def clamped(parts):
    whole = torch.tensor(1.0)
    top = torch.cat([part.abs().flatten() for part in parts]).amax()
    if top.item() != 0:
        whole = top.div(6).div(448)
    scales = []
    for part in parts:
        rows, columns = part.shape
        blocks = part.reshape(rows, columns // 16, 16)
        largest = torch.linalg.vector_norm(blocks, ord=float("inf"), dim=2)
        scales.append(largest.div(6 * whole).clamp_(0, 448).to(torch.float8_e4m3fn))
    return whole, scales


ex.probe("the example, with a scale looked up wrong", says="scale of part", breaks="example",
         fn=edited(made, ("(high / whole)", "(high / whole).clamp(max=1 if parts[0].numel() == "
                          "part.numel() == 16 else 500)"), "11.9, a scale looked up wrong"))
ex.probe("three parts at most", breaks="parts", fn=edited(
    made, ("for part in parts)", "for part in parts[:3])"), "11.9, three parts at most"))
ex.probe("ten blocks a row at most", says="scale of part", breaks="sizes", fn=edited(
    made, ("part.abs().unflatten", "torch.where(torch.arange(part.shape[1]) // 16 == 10, 0.0, "
           "part.abs()).unflatten"), "11.9, ten blocks a row at most"))
