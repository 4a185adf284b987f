"""Workers that draw the same random numbers."""

import random
from types import ModuleType

import torch

from dlsys_watch.rule import Rule

KINDS = ("Generator", "RandomState")
DEPTH, MOST = 3, 30   # how deep, and how many of a list: transforms of transforms


class SameRandomNumbers(Rule):
    id, trap, sound = "same-random-numbers", "12.3", False
    reads = "generators that a dataset holds while several workers copy it"

    def on_loader(self, loader):
        if loader.num_workers < 2 or loader.worker_init_fn is not None:
            return
        if name := generator_in(loader.dataset, "dataset"):
            self.say(f"each of {loader.num_workers} workers gets a copy of {name}: they draw the "
                     "same random numbers", self.run.loader_places.get(loader))


def generator_in(holder, name: str, depth: int = DEPTH) -> str:
    """Where an object holds a generator, itself or in what it holds: "dataset.rng"; "" if not."""
    held = enumerate(holder) if isinstance(holder, list | tuple) else (
        getattr(holder, "__dict__", {}).items())
    for key, value in list(held)[:MOST]:
        place = f"{name}[{key}]" if isinstance(holder, list | tuple) else f"{name}.{key}"
        if isinstance(value, random.Random | torch.Generator) or (
                type(value).__name__ in KINDS and type(value).__module__.startswith("numpy")):
            return place
        if depth and not isinstance(value, type | ModuleType | torch.Tensor) and (
                found := generator_in(value, place, depth - 1)):
            return found
    return ""
