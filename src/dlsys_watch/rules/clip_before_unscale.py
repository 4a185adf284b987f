"""Clipping gradients that carry the factor of the GradScaler."""

from dlsys_watch.rule import Rule
from dlsys_watch.run import params


class ClipBeforeUnscale(Rule):
    id, trap = "clip-before-unscale", "03.3"
    reads = "whether unscale_ came between scaler.scale and the clipping"
    begins = ("scale",)

    def __init__(self, watch):
        super().__init__(watch)
        self.scaled, self.pending, self.unscaled = None, False, set()

    def on_scale(self, scaler, scaled):
        self.scaled = id(scaled) if scaler.is_enabled() else None

    def on_backward(self, tensors, kept):
        self.pending = self.scaled is not None and id(tensors[0]) == self.scaled

    def on_unscale(self, scaler, optimizer, *_):
        self.unscaled.add(id(optimizer))

    def on_step_done(self, optimizer):
        self.unscaled.discard(id(optimizer))

    def on_scaled_done(self, scaler, optimizer, *_):
        self.unscaled.discard(id(optimizer))

    def on_clip(self, kind, parameters, most):
        if not self.pending or most == float("inf"):
            return
        ids = {id(p) for p in parameters}
        for optimizer in list(self.run.optimizers):
            if ids & {id(p) for p in params(optimizer)} and id(optimizer) not in self.unscaled:
                self.say("gradients are clipped while they carry the factor of the GradScaler: "
                         "call unscale_ first")
                return
