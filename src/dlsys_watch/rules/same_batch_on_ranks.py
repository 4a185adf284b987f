"""Ranks that all train on the same batches."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dlsys_watch.rule import Rule
from dlsys_watch.rules.past_the_wrapper import world
from dlsys_watch.values import fingerprint, first_tensor

BATCHES = 3
KEY = "dlsys_watch/batches/"   # in the store that the ranks met at: no message between them


class SameBatchOnRanks(Rule):
    id, trap = "same-batch-on-ranks", "09.5"
    reads = "the first three batches of each rank of a DistributedDataParallel"
    rests = ("root",)

    watches = 0    # of this process: a second one asks under other keys

    def __init__(self, watch):
        super().__init__(watch)
        SameBatchOnRanks.watches += 1
        self.key = f"{KEY}{SameBatchOnRanks.watches}/"
        self.marks, self.line, self.told = [], None, False

    def on_root(self, module, args, kwargs, grad):
        if not isinstance(module, DistributedDataParallel) or not grad or self.told:
            return
        rows = first_tensor(args, floating=True)
        if rows is not None and len(self.marks) < BATCHES:
            self.marks.append(fingerprint(rows))
            self.line = self.here()
        elif len(self.marks) == BATCHES:
            self.compare()

    def on_end(self):
        if len(self.marks) == BATCHES and not self.told and dist.is_initialized():
            self.compare()

    def compare(self):
        store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
        mine = repr(self.marks)
        if rank:
            store.set(f"{self.key}{rank}", mine)
            self.told = True
            return
        others = [f"{self.key}{other}" for other in range(1, world())]
        if others and store.check(others):
            self.told = True
            if all(store.get(key).decode() == mine for key in others):
                self.say(f"all {world()} ranks train on the same batches: the loader has no "
                         "DistributedSampler", self.line)
