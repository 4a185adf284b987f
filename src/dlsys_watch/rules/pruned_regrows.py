"""Pruned weights that come back."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.run import params
from dlsys_watch.values import some


class PrunedRegrows(Rule):
    id, trap = "pruned-regrows", "11.5"
    reads = "the zeros of a weight whose mask was removed, after the next steps"

    def __init__(self, watch):
        super().__init__(watch)
        self.pruned = {}   # id of a weight -> (weak reference, its share of zeros, line)

    def on_pruned(self, module, name):
        weight = getattr(module, name)
        zeros = (some(weight) == 0).double().mean().item()
        if zeros > 0.1:
            self.pruned[id(weight)] = weakref.ref(weight), zeros, self.here()

    def on_step_done(self, optimizer):
        for p in params(optimizer) if self.pruned else ():
            ref, zeros, line = self.pruned.get(id(p), (lambda: None, 0, None))
            if ref() is p and (now := (some(p) == 0).double().mean().item()) < zeros / 4:
                del self.pruned[id(p)]
                self.say(f"{zeros:.0%} of a weight was pruned, {now:.0%} is zero after a step: "
                         "prune.remove took the mask away before the training", line)
