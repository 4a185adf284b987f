"""zero_grad between backward and step."""

import weakref

from torch.optim import Optimizer

from dlsys_watch.rule import Rule
from dlsys_watch.run import params
from dlsys_watch.values import is_zero


class ErasedBeforeStep(Rule):
    id, trap = "erased-before-step", "02.1"
    reads = "what zero_grad erases between a backward pass and a step"
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.erased = None     # where the gradients of the last backward pass went
        self.times = weakref.WeakKeyDictionary()

    def on_backward(self, tensors, kept):
        self.erased = None

    def on_zero(self, owner, *_):
        held = params(owner) if isinstance(owner, Optimizer) else list(owner.parameters())
        if not self.run.in_step and any(p.grad is not None for p in held):
            self.erased = self.here()

    def on_step(self, optimizer, closure):
        known = self.run.opt(optimizer)
        if self.erased is None or closure is not None or known.steps > 100:
            return
        if known.last_backward == self.run.backwards:   # nothing to step with, erased or not
            return
        nothing = all(is_zero(p.grad) for p in params(optimizer))
        self.times[optimizer] = self.times.get(optimizer, 0) + 1 if nothing else 0
        if self.times[optimizer] == 3:
            self.say("zero_grad between backward and step: 3 steps in a row had no gradient left",
                     self.erased)
