"""Clipping before there is a gradient."""

from dlsys_watch.rule import Rule
from dlsys_watch.values import is_zero


class ClipBeforeBackward(Rule):
    id, trap = "clip-before-backward", "03.3"
    reads = "whether the clipped parameters have a gradient"

    def __init__(self, watch):
        super().__init__(watch)
        self.empty = {}   # line -> times in a row, at which steps

    def on_clip(self, kind, parameters, most):
        here = self.here()
        if len(self.empty.get(here, ())) > 3:
            return
        if not parameters or not all(is_zero(p.grad) for p in parameters):
            self.empty[here] = [None] * 4   # it has something to clip: well
            return
        steps = self.empty.setdefault(here, [])
        if not steps or steps[-1] != self.run.steps:
            steps.append(self.run.steps)
        if len(steps) == 3 and steps[-1] > steps[0]:
            self.say("gradients are clipped before the backward pass: there are none yet, and "
                     "those that come are not clipped")
