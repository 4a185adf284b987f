"""Inputs that grow or shrink with each pass: the dataset changes its own rows."""

import weakref
from itertools import pairwise

from dlsys_watch.events import plain
from dlsys_watch.rule import Rule
from dlsys_watch.values import first_tensor, size

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
        sizes = self.sizes[loader] = [*self.sizes.get(loader, [])[-PASSES:], size(rows)]
        ratios = [after / before if before else 1.0
                  for before, after in pairwise(sizes)]
        if len(ratios) == PASSES and (min(ratios) > TIMES or max(ratios) < 1 / TIMES):
            self.say(f"the first batch of this loader has a size of {sizes[-1]:.3g}, {PASSES} "
                     f"passes earlier it was {sizes[0]:.3g}: does the dataset change its rows "
                     "in place?",
                     self.run.loader_places.get(loader))
