"""Exercise 06.6, `add_brightness`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s06.e6_add_brightness import ex


@ex.right("floats, cut, then bytes")
def by_float(img, d):
    return (img.float() + d).clamp(0, 255).to(torch.uint8)


@ex.right("a table of 256 values")
def by_table(img, d):
    table = (torch.arange(256) + d).clamp(0, 255).to(torch.uint8)
    return table[img.long()]


@ex.right("cut before the sum, in bytes")
def cut_first(img, d):
    if d >= 0:
        return img.clamp(max=255 - d) + d
    return img.clamp(min=-d) - (-d)


@ex.right("where the sum leaves the range")
def by_where(img, d):
    total = img.short() + d
    total = torch.where(total > 255, 255, total)
    return torch.where(total < 0, 0, total).byte()


@ex.probe("the example, with one of its pixels looked up wrong", says="pixels", breaks="example")
def looked_up(img, d):
    out = (img.int() + d).clamp(0, 255).to(torch.uint8)
    return out - 1 if img.tolist() == [0, 100, 250] else out
