"""Frozen weights that the optimizer still moves."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.run import params
from dlsys_watch.values import fingerprint


class FrozenWeightsMove(Rule):
    id, trap = "frozen-weights-move", "07.10"
    reads = "weights with requires_grad False and a gradient, before and after a step"
    rests = ("step", "step_done")

    def __init__(self, watch):
        super().__init__(watch)
        self.before, self.times = {}, 0
        self.trained = {}    # id of a tensor that was trained -> weak reference

    def on_step(self, optimizer, closure):
        self.before.clear()
        for p in params(optimizer):
            if p.requires_grad:
                self.trained.setdefault(id(p), weakref.ref(p))
            elif p.grad is not None and len(self.before) < 3 and (
                    self.trained.get(id(p), int)() is p):
                self.before[id(p)] = fingerprint(p)

    def on_step_done(self, optimizer):
        if not self.before:
            return
        moved = [p for p in params(optimizer)
                 if id(p) in self.before and fingerprint(p) != self.before[id(p)]]
        self.times += bool(moved)
        if self.times == 2:
            self.say(f"a frozen weight {tuple(moved[0].shape)} moves at each step: its old "
                     "gradient is still there, and momentum or decay goes on. Set its grad to None")
