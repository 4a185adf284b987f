"""Inputs that are scaled differently in evaluation than in training."""

import weakref

from dlsys_watch.events import plain
from dlsys_watch.rule import Rule
from dlsys_watch.values import size

TIMES, ENOUGH = 30, 8


class OtherPreprocessing(Rule):
    id, trap = "other-preprocessing", "07.4"
    reads = "the scale of a model's inputs in training and in evaluation"
    rests = ("root",)

    def __init__(self, watch):
        super().__init__(watch)
        self.sizes = weakref.WeakKeyDictionary()   # model -> [smallest, largest, batches]
        self.off = weakref.WeakKeyDictionary()

    def on_root(self, module, args, kwargs, grad):
        if not self.run.looking or len(args) != 1 or not plain(args[0]):
            return
        x = args[0]
        if x.dim() < 2 or x.numel() < 64 or x.requires_grad:
            return
        now = size(x)
        low, high, count = self.sizes.get(module, (now, now, 0))
        if grad and module.training:
            self.sizes[module] = min(low, now), max(high, now), count + 1
        elif not grad and count >= ENOUGH and (now > TIMES * high or 0 < now * TIMES < low):
            self.off[module] = self.off.get(module, 0) + 1
            if self.off[module] == 2:
                self.say(f"inputs of {type(module).__name__} have a size of {now:.3g} here and of "
                         f"{low:.3g} to {high:.3g} in training: another scaling?")
        elif not grad:
            self.off[module] = -10**9   # also evaluated on inputs like those of training
