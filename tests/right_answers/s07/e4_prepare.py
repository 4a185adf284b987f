"""Exercise 07.4, `prepare`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch

from dlsys_checks.s07.e4_prepare import done, ex


@ex.right("channel by channel, stacked")
def stacked(images, mean, std):
    return torch.stack([(images[..., k].float() / 255 - mean[k]) / std[k]
                        for k in range(len(mean))], 1)


@ex.right("normalized with the channels last, then permuted")
def permuted_last(images, mean, std):
    x = (images / 255 - torch.tensor(mean)) / torch.tensor(std)
    return x.movedim(-1, 1).contiguous()


@ex.right("one factor and one shift a channel")
def affine(images, mean, std):
    factor = [1 / (255 * s) for s in std]
    shift = [m / s for m, s in zip(mean, std, strict=True)]
    x = images.permute(0, 3, 1, 2).float()
    return x * torch.tensor(factor)[:, None, None] - torch.tensor(shift)[:, None, None]


@ex.right("in double precision, in place on a copy")
def in_double(images, mean, std):
    x = images.double().div_(255).transpose(1, 3).transpose(2, 3).clone()
    for k, (m, s) in enumerate(zip(mean, std, strict=True)):
        x[:, k].sub_(m).div_(s)
    return x.float()


ex.probe("the example, with its number looked up wrong",
         lambda images, mean, std: done(images, mean, std) * (1 if images.numel() > 1 else -1),
         breaks="example")
