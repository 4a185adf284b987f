"""An image and its mask, flipped independently."""

import torch

from dlsys_watch.rule import Rule

FEWEST, MARGIN, KINDS = 24, 0.2, 16   # rows with a clear answer; how clear; values of a mask


class MaskMirrored(Rule):
    id, trap = "mask-mirrored", "06.1"
    reads = "whether masks fit their images or the mirrored images"

    def __init__(self, watch):
        super().__init__(watch)
        self.counts = {}    # axis -> [rows in which the mask fits, and in which its mirror does]
        self.looked = 0

    def on_batch(self, loader, batch, number):
        if self.looked > 40 or not isinstance(batch, list | tuple | dict):
            return
        parts = list(batch.values()) if isinstance(batch, dict) else list(batch)
        if len(parts) < 2 or not all(torch.is_tensor(t) for t in parts[:2]):
            return
        picture, mask = parts[:2]
        if picture.dim() != 4 or mask.dim() not in (3, 4) or mask.shape[-2:] != picture.shape[-2:]:
            return
        if min(mask.shape[-2:]) < 8 or len(picture) != len(mask) or picture.numel() > 5e6:
            return
        self.looked += 1
        if len(mask.unique()) <= KINDS < len(picture[:4].unique()):
            self.compare(flat(picture), flat(mask), self.run.loader_places.get(loader))

    def compare(self, picture, mask, place):
        straight = correlation(picture, mask).abs()
        for axis, name in ((-1, "left and right"), (-2, "top and bottom")):
            mirrored = correlation(picture, mask.flip(axis)).abs()
            counts = self.counts.setdefault(axis, [0, 0])
            counts[0] += int((straight > mirrored + MARGIN).sum())
            counts[1] += int((mirrored > straight + MARGIN).sum())
            if sum(counts) >= FEWEST and 0.25 * sum(counts) < counts[1]:
                self.looked = 1000
                self.say(f"in {counts[1]} of {sum(counts)} pictures the mask fits the mirror image "
                         f"({name}) better: picture and mask are flipped each by its own chance",
                         place)
                return


def flat(pictures: torch.Tensor) -> torch.Tensor:
    """Pictures (N, H, W) in float, the mean over channels."""
    return (pictures.double().mean(1) if pictures.dim() == 4 else pictures.double())


def correlation(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Of each row of two stacks of pictures; 0 where one has a single value."""
    a, b = one.flatten(1), other.flatten(1)
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    return ((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)).clamp(min=1e-12)).nan_to_num()
