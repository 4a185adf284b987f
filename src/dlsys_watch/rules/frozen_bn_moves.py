"""Frozen weights, moving statistics."""

import weakref

from torch.nn.modules.batchnorm import _BatchNorm

from dlsys_watch.rule import Rule
from dlsys_watch.values import fingerprint

STEPS = 2


class FrozenBnMoves(Rule):
    id, trap, sound = "frozen-bn-moves", "07.7", False
    reads = "the mode of a BatchNorm whose weights are frozen and stay as they are"

    def __init__(self, watch):
        super().__init__(watch)
        self.frozen = weakref.WeakKeyDictionary()   # layer -> (steps, its weights)

    def on_module(self, module, args, kwargs, grad):
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats and (
                module.weight is not None and not module.weight.requires_grad):
            steps, weights = self.frozen.setdefault(
                module, (self.run.steps, fingerprint(module.weight)))
            if self.run.steps >= steps + STEPS and weights == fingerprint(module.weight):
                self.say("a BatchNorm with frozen weights is in train mode: its running statistics "
                         "move")
