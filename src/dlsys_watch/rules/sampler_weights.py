"""A WeightedRandomSampler that has a weight for each class, not for each row."""

from collections.abc import Sized

from torch.utils.data import WeightedRandomSampler

from dlsys_watch.rule import Rule


class SamplerWeights(Rule):
    id, trap = "sampler-weights", "06.8"
    reads = "how many weights a WeightedRandomSampler has, and the rows of its dataset"

    def on_loader(self, loader):
        if not isinstance(loader.sampler, WeightedRandomSampler) or not (
                isinstance(loader.dataset, Sized) and self.seldom(id(loader), first=1, then=10**9)):
            return
        weights, rows = len(loader.sampler.weights), len(loader.dataset)
        if 2 * weights <= rows:
            self.say(f"the WeightedRandomSampler has {weights} weights for {rows} rows, and draws "
                     f"the first {weights} rows alone: it takes one weight for each row",
                     self.run.loader_places.get(loader))
