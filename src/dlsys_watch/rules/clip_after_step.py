"""Clipping gradients after they were used."""

from dlsys_watch.rule import Rule
from dlsys_watch.run import params


class ClipAfterStep(Rule):
    id, trap = "clip-after-step", "03.3"
    reads = "whether a step comes between the backward pass and the clipping"

    def __init__(self, watch):
        super().__init__(watch)
        self.times = 0

    def on_clip(self, kind, parameters, most):
        wanted = {id(p) for p in parameters}
        if most is None or most == float("inf") or not self.seldom(first=50):
            return
        for optimizer in list(self.run.optimizers):
            known = self.run.opt(optimizer)
            held = {id(p) for p in params(optimizer)}
            if known.steps and wanted & held and known.last_backward == self.run.backwards:
                self.times += wanted <= held and any(p.grad is not None for p in parameters)
                if self.times == 2:
                    self.say("gradients are clipped after the step that used them: no step sees "
                             "the clipped ones")
                return
