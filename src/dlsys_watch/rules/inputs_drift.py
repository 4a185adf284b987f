"""Inputs that grow or shrink with each pass: the dataset changes its own rows."""

import weakref
from itertools import pairwise

import torch

from dlsys_watch.events import plain
from dlsys_watch.rule import Rule
from dlsys_watch.rules.random_evaluation import first_tensor
from dlsys_watch.values import some

TIMES, PASSES = 1.3, 3   # how much from pass to pass, and for how many passes in a row


class InputsDrift(Rule):
    id, trap, sound = "inputs-drift", "07.4", False
    reads = "the size of the first batch in each pass of a loader"
    begins = ("batch",)

    def __init__(self, watch):
        super().__init__(watch)
        self.sizes = weakref.WeakKeyDictionary()   # loader -> sizes of its last first batches

    def on_batch(self, loader, batch, number):
        rows = first_tensor(batch) if number == 0 else None
        if rows is None or not plain(rows) or not rows.is_floating_point() or rows.numel() < 64:
            return
        size = torch.linalg.vector_norm(some(rows).double()).item() / min(rows.numel(), 4096) ** 0.5
        sizes = self.sizes[loader] = [*self.sizes.get(loader, [])[-PASSES:], size]
        ratios = [after / before if before else 1.0
                  for before, after in pairwise(sizes)]
        if len(ratios) == PASSES and (min(ratios) > TIMES or max(ratios) < 1 / TIMES):
            self.say(f"the first batch of this loader has a size of {size:.3g}, {PASSES} passes "
                     f"earlier it was {sizes[0]:.3g}: does the dataset change its rows in place?",
                     self.run.loader_places.get(loader))
