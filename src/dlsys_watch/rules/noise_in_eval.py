"""A layer that draws random numbers in eval mode."""

import weakref

import torch

from dlsys_watch.rule import Rule

TIMES = 2


class NoiseInEval(Rule):
    id, trap, sound = "noise-in-eval", "05.3", False
    reads = "the random state before and after a layer that the program defines, in eval mode"

    def __init__(self, watch):
        super().__init__(watch)
        self.before = None
        self.times = weakref.WeakKeyDictionary()
        self.place = None

    def on_module(self, module, args, kwargs, grad):
        self.before = None
        if not module.training and not module._modules and self.run.stack and (
                not type(module).__module__.startswith("torch.")):
            self.before, self.place = torch.get_rng_state(), self.here()

    def on_module_done(self, module):
        before, self.before = self.before, None
        if before is None or torch.equal(before, torch.get_rng_state()):
            return
        times = self.times[module] = self.times.get(module, 0) + 1
        if times == TIMES:
            self.say(f"{type(module).__name__} draws random numbers although the model is in eval "
                     "mode: ask for self.training", self.place)
