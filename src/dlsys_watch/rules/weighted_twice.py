"""Rare classes drawn more often and also weighted in the loss."""

from collections import Counter

import torch
from torch.utils.data import WeightedRandomSampler

from dlsys_watch.rule import Rule

BATCHES = 10


class WeightedTwice(Rule):
    id, trap = "weighted-twice", "06.8"
    reads = "the sampler's weights, the loss's weights, and the classes of ten batches"

    def __init__(self, watch):
        super().__init__(watch)
        self.counts, self.batches = Counter(), 0

    def on_loss(self, loss):
        weight = loss.options.get("pos_weight")
        weight = loss.options.get("weight") if weight is None else weight
        loader = self.run.loader() if self.run.loader else None
        if not loss.grad or weight is None or self.batches >= BATCHES:
            return
        sampler = getattr(loader, "sampler", None)
        if not isinstance(sampler, WeightedRandomSampler) or ratio(sampler.weights) < 2:
            return
        self.counts.update(loss.target.flatten().long().tolist()[:4096])
        self.batches += 1
        uneven = ratio(weight) if weight.numel() > 1 else max(weight.item(), 1 / weight.item())
        if self.batches == BATCHES and uneven > 2 and len(self.counts) > 1:
            rarest, most = min(self.counts.values()), max(self.counts.values())
            if most < 2 * rarest:
                self.say("rare classes corrected twice: the sampler draws all classes evenly, and "
                         f"the loss weights them {uneven:.0f} to 1 on top")


def ratio(weights) -> float:
    """The largest weight as a multiple of the smallest."""
    weights = torch.as_tensor(weights).double()
    return (weights.max() / weights.min().clamp(min=1e-12)).item()
