"""Workers that draw the same random numbers."""

import random

import torch

from dlsys_watch.rule import Rule

KINDS = ("Generator", "RandomState")


class SameRandomNumbers(Rule):
    id, trap, sound = "same-random-numbers", "12.3", False
    reads = "generators that a dataset holds while several workers copy it"

    def on_loader(self, loader):
        if loader.num_workers < 2 or loader.worker_init_fn is not None:
            return
        for name, value in getattr(loader.dataset, "__dict__", {}).items():
            if isinstance(value, random.Random | torch.Generator) or (
                    type(value).__name__ in KINDS and type(value).__module__.startswith("numpy")):
                self.say(f"each of {loader.num_workers} workers gets a copy of dataset.{name}: "
                         "they draw the same random numbers",
                         self.run.loader_places.get(loader))
                return
