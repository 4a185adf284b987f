"""Workers that all deliver the same rows."""

import weakref

import torch

from dlsys_watch.rule import Rule
from dlsys_watch.values import fingerprint, first_tensor

ROUNDS = 3


class SameRowsFromWorkers(Rule):
    id, trap = "same-rows-from-workers", "06.10"
    reads = "the first batches of each worker of a loader"

    def __init__(self, watch):
        super().__init__(watch)
        self.marks = weakref.WeakKeyDictionary()   # loader -> fingerprints of its first batches

    def on_pass_(self, loader):
        if loader.num_workers > 1:
            self.marks[loader] = []

    def on_batch(self, loader, batch, number):
        marks = self.marks.get(loader)
        values = first_tensor(batch, floating=True) if marks is not None else None
        if marks is None or len(marks) != number:
            return
        if not torch.is_tensor(values) or loader.num_workers > 64:
            self.marks.pop(loader)
            return
        marks.append(fingerprint(values))
        workers = loader.num_workers
        if len(marks) == ROUNDS * workers:   # a batch of each worker in turn
            rounds = [set(marks[at : at + workers]) for at in range(0, len(marks), workers)]
            self.marks.pop(loader)
            if all(len(one) == 1 for one in rounds) and len(set(marks)) == ROUNDS:
                self.say(f"each of {workers} workers delivers the same batches: every row comes "
                         f"{workers} times in a pass. Split the data by get_worker_info()",
                         self.run.loader_places.get(loader))
