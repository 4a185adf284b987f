"""Exercise 06.1, `make_transforms`: right by other routes, mutants that are right, probes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dlsys_checks.s06.e1_make_transforms import ex


@ex.right("the lesson's pipelines, image by image")
def by_compose(pad, mean, std):
    from torchvision.transforms import v2

    def train(x):
        whole = v2.Compose([v2.RandomCrop(tuple(x.shape[2:]), padding=pad),
                            v2.Normalize([mean], [std])])
        return torch.stack([whole(image) for image in x])
    return train, lambda x: (x - mean) / std


@ex.right("slices of the padded batch")
def by_slices(pad, mean, std):
    def train(x):
        h, w = x.shape[-2:]
        wide = F.pad(x, (pad, pad, pad, pad))
        cut = [wide[n, :, i:i + h, j:j + w] for n, (i, j) in enumerate(
            torch.randint(2 * pad + 1, (len(x), 2)).tolist())]
        return (torch.stack(cut) - mean) / std
    return train, lambda x: x.sub(mean).div(std)


@ex.right("a table of all cut-outs")
def by_unfold(pad, mean, std):
    def train(x):
        wide = F.pad(x, (pad,) * 4)
        cuts = wide.unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)
        n = torch.arange(len(x))
        i, j = torch.randint(cuts.shape[2], (2, len(x)))
        return (cuts[n, :, i, j] - mean) / std
    return train, lambda x: (x - mean) * (1 / std)


@ex.right("normalized first, padded with what zero becomes")
def by_padding(pad, mean, std):
    def evaluate(x):
        return (x - mean) / std

    def train(x):
        wide = F.pad(evaluate(x), (pad,) * 4, value=-mean / std)
        rows = torch.randint(2 * pad + 1, (len(x), 1)) + torch.arange(x.shape[2])
        columns = torch.randint(2 * pad + 1, (len(x), 1)) + torch.arange(x.shape[3])
        n = torch.arange(len(x))[:, None, None]
        return wide[n, 0, rows[:, :, None], columns[:, None, :]][:, None]
    return [train, evaluate]


ex.equivalent("crop = v2.RandomCrop(x.shape[-2:], padding=pad) -> "
              "crop = v2.RandomCrop(x.shape[2:], padding=pad)", "x has four axes")


@ex.probe("seeded by the clock", breaks="own place")
def seeded_by_the_clock(pad, mean, std):
    def train(x):
        torch.seed()
        wide = F.pad(x, (pad,) * 4).unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)
        i, j = torch.randint(2 * pad + 1, (2, len(x)))
        return (wide[torch.arange(len(x)), :, i, j] - mean) / std
    return train, lambda x: (x - mean) / std
