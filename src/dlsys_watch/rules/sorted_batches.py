"""Training data that arrive class by class."""

import weakref
from collections import Counter

import torch
from torch.utils.data import SequentialSampler

from dlsys_watch.rule import Rule

JUDGED = (20, 40, 80, 160)    # batches of a model
PART = 0.6    # of the classes that a shuffled batch would hold


class SortedBatches(Rule):
    id, trap = "sorted-batches", "12.7"
    reads = "how many classes a training batch holds, compared with a shuffled batch"

    def __init__(self, watch):
        super().__init__(watch)
        self.models = weakref.WeakKeyDictionary()    # model -> [Counter of each batch]

    def on_loss(self, loss):
        target = loss.target
        if not loss.grad or target.dtype != torch.long or target.dim() != 1 or len(target) < 8:
            return
        model = self.run.model
        batches = self.models.setdefault(self if model is None else model, [])
        if len(batches) < JUDGED[-1]:
            batches.append(Counter(target.tolist()))
            if len(batches) in JUDGED:
                self.judge(batches)

    def judge(self, batches):
        total = sum(batches, Counter())
        rows = sum(total.values())
        if len(total) < 2:
            return
        size = rows / len(batches)
        shuffled = sum(1 - (1 - count / rows) ** size for count in total.values())
        found = sum(map(len, batches)) / len(batches)
        if found < PART * shuffled and found < 1 + 0.25 * (shuffled - 1):
            self.say(f"a training batch holds {found:.1f} classes on average, where a shuffled one "
                     f"would hold {shuffled:.1f}: the data arrive sorted by class", self.source())

    def source(self):
        """Where the loader was made, if it is one that keeps the order."""
        loader = self.run.loader() if self.run.loader else None
        if loader is not None and isinstance(loader.sampler, SequentialSampler):
            return self.run.loader_places.get(loader)
        return None
