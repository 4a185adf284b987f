"""A step with gradients that carry the factor of the GradScaler."""

from dlsys_watch.rule import Rule


class StepWhileScaled(Rule):
    id, trap = "step-while-scaled", "09.1"
    reads = "whether scaler.step or unscale_ came between a scaled loss and the step"
    begins = ("scale",)

    def __init__(self, watch):
        super().__init__(watch)
        self.scaled = self.factor = None    # id of the last scaled loss; its scaler's factor
        self.pending, self.unscaled, self.inside = False, set(), False

    def on_scale(self, scaler, scaled):
        self.scaled = id(scaled) if scaler.is_enabled() else None
        self.factor = getattr(scaler, "_init_scale", 2.0**16)

    def on_backward(self, tensors, kept):
        self.pending = self.scaled is not None and id(tensors[0]) == self.scaled
        self.scaled = None

    def on_unscale(self, scaler, optimizer, *_):
        self.unscaled.add(id(optimizer))

    def on_scaled_step(self, scaler, optimizer, *_):
        self.inside = True

    def on_scaled_done(self, scaler, optimizer, *_):
        self.inside = False
        self.unscaled.discard(id(optimizer))

    def on_step(self, optimizer, closure):
        if self.pending and not self.inside and id(optimizer) not in self.unscaled:
            self.say(f"a step with gradients {self.factor:.0f} times too large: the loss was "
                     "scaled, and neither scaler.step nor unscale_ was called")
        self.unscaled.discard(id(optimizer))
