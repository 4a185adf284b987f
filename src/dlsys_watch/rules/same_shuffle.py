"""A shuffled loader that repeats its order."""

import weakref

from torch.utils.data import RandomSampler

from dlsys_watch.rule import Rule
from dlsys_watch.values import fingerprint, first_tensor

FEWEST = 8   # rows of a batch: fewer may come in the same order by chance


class SameShuffle(Rule):
    id, trap = "same-shuffle", "09.5"
    reads = "the first batch of each pass of a shuffled loader"

    def __init__(self, watch):
        super().__init__(watch)
        self.prints = weakref.WeakKeyDictionary()   # loader -> first batch of its last pass
        self.passes = weakref.WeakKeyDictionary()   # loader -> passes with steps between
        self.steps = weakref.WeakKeyDictionary()

    def on_batch(self, loader, batch, number):
        if number or not isinstance(loader.sampler, RandomSampler) or loader.sampler.replacement:
            return
        rows = first_tensor(batch)
        if rows is None or not rows.dim() or len(rows) < FEWEST or rows.flatten(1).shape[1] < 2 or (
                self.steps.get(loader) == self.run.steps):
            return
        self.steps[loader] = self.run.steps
        mark = tuple(fingerprint(row) for row in rows[:FEWEST])
        before, self.prints[loader] = self.prints.get(loader), mark
        self.passes[loader] = self.passes.get(loader, 0) + 1
        if before == mark and len(set(mark)) == FEWEST:   # an earlier one: resumed in one program
            self.say(f"pass {self.passes[loader]} of a shuffled loader begins with the batch of "
                     "the one before, row by row: the random numbers are seeded anew for each pass",
                     self.run.loader_places.get(loader))
