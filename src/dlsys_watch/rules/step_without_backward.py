"""Optimizer steps without any gradient."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.run import params


class StepWithoutBackward(Rule):
    id, trap = "step-without-backward", "02.1"
    reads = "whether any gradient was computed between two steps"
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.times = weakref.WeakKeyDictionary()
        self.calls = weakref.WeakKeyDictionary()   # optimizer -> calls of models at its last step

    def on_step(self, optimizer, closure):
        known = self.run.opt(optimizer)
        if closure is not None or known.steps > 20:
            return
        ran = self.run.grad_calls > self.calls.get(optimizer, 0)  # else a schedule is looked at
        self.calls[optimizer] = self.run.grad_calls
        idle = ran and known.last_backward == self.run.backwards and all(
            p.grad is None for p in params(optimizer))
        self.times[optimizer] = self.times.get(optimizer, 0) + 1 if idle else 0
        if self.times[optimizer] == 3:
            self.say("3 steps without a backward pass before them: no tensor of the optimizer "
                     "has a gradient")
