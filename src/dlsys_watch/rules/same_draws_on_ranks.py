"""Random inputs that are the same on all ranks, next to data that differ."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dlsys_watch.events import plain
from dlsys_watch.rule import Rule
from dlsys_watch.rules.past_the_wrapper import world
from dlsys_watch.values import fingerprint, some

BATCHES, VALUES = 3, 4    # batches that are compared; different numbers that such an input holds
KEY = "dlsys_watch/draws/"   # in the store that the ranks met at: no message between them


class SameDrawsOnRanks(Rule):
    id, trap = "same-draws-on-ranks", "12.3"
    reads = "each input and target of the first three batches on each rank"

    watches = 0    # of this process: a second one asks under other keys

    def __init__(self, watch):
        super().__init__(watch)
        SameDrawsOnRanks.watches += 1
        self.key = f"{KEY}{SameDrawsOnRanks.watches}/"
        self.marks, self.line, self.told = {}, None, False   # name -> its fingerprints
        self.batches = 0

    def on_root(self, module, args, kwargs, grad):
        if self.told or not grad or not isinstance(module, DistributedDataParallel) or (
                world() == 1):
            return
        self.batches += 1
        if self.batches > BATCHES:
            self.compare()
            return
        self.line = self.here()
        for name, value in [*enumerate(args, 1), *kwargs.items()]:
            self.mark(f"argument {name}" if isinstance(name, int) else f"`{name}`", value)

    def on_loss(self, loss):
        if loss.grad and self.batches and not self.told:
            self.mark(f"the target of {loss.name}", loss.target)

    def mark(self, name, value):
        marks = self.marks.setdefault(name, [])
        if torch.is_tensor(value) and plain(value) and len(marks) == self.batches - 1:
            varied = value.numel() >= 2 * VALUES and len(some(value).unique()) >= VALUES
            marks.append(fingerprint(value) if varied else 0.0)

    def on_end(self):
        if self.batches >= BATCHES and not self.told and dist.is_initialized():
            self.compare()

    def compare(self):
        store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
        mine = {name: marks for name, marks in self.marks.items() if len(marks) == BATCHES}
        if rank:
            store.set(f"{self.key}{rank}", repr(mine))
            self.told = True
            return
        others = [f"{self.key}{other}" for other in range(1, world())]
        if not others or not store.check(others):
            return
        self.told = True
        theirs = [store.get(key).decode() for key in others]
        alike = [name for name, marks in mine.items() if len(set(marks)) == BATCHES
                 and all(repr(name) + ": " + repr(marks) in text for text in theirs)]
        if alike and any(repr(mine) != text for text in theirs):
            self.say(f"{' and '.join(alike[:2])} of the model is the same on all {world()} ranks "
                     f"in each of {BATCHES} batches, although their data differ: each rank draws "
                     "from a generator with the same seed. Add the rank to the seed", self.line)
