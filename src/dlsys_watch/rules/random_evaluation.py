"""A validation set that is drawn again for each pass."""

import weakref

import torch
from torch.utils.data import SequentialSampler

from dlsys_watch.rule import Rule
from dlsys_watch.values import fingerprint, first_tensor


class RandomEvaluation(Rule):
    id, trap = "random-evaluation", "06.1"
    reads = "the first batches of two passes of a loader with a fixed order and no step after it"
    begins = ("batch",)

    def __init__(self, watch):
        super().__init__(watch)
        self.first = weakref.WeakKeyDictionary()   # loader -> (input, rest, steps)
        self.differ = weakref.WeakSet()

    def on_batch(self, loader, batch, number):
        if not isinstance(loader.sampler, SequentialSampler):
            return
        if number:
            return
        rows = first_tensor(batch)
        if rows is None or not rows.is_floating_point() or torch.is_tensor(batch):
            return
        rest = [fingerprint(t) for t in others(batch, rows)]
        mark = fingerprint(rows)
        old = self.first.get(loader)
        if old is not None and old[1] == rest and rest and old[0] != mark:
            self.differ.add(loader)
        self.first[loader] = mark, rest, self.run.steps

    def on_root(self, module, args, kwargs, grad):
        loader = self.run.loader() if self.differ and self.run.loader else None
        if loader is not None and loader in self.differ and not (grad and module.training):
            self.differ.discard(loader)
            self.say("the first batch of an evaluation loader in fixed order differs between two "
                     "passes, its labels do not: a random transform?",
                     self.run.loader_places.get(loader))


def others(batch, rows) -> list:
    """The other tensors of a batch."""
    parts = batch.values() if isinstance(batch, dict) else batch
    return [t for t in parts if torch.is_tensor(t) and t is not rows]
