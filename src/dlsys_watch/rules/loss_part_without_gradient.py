"""A part of a mixture-of-experts loss that has no gradient."""

import torch

from dlsys_watch.rule import Rule

STEPS = 3


class LossPartWithoutGradient(Rule):
    id, trap, sound = "loss-part-without-gradient", "15.5", False
    reads = "scalars without a graph, added to the loss of a model that routes inside"

    def __init__(self, watch):
        super().__init__(watch)
        self.chooses, self.parts = False, {}   # line -> {step: value}

    def on_choose(self, tensor):
        self.chooses = self.chooses or (bool(self.run.stack) and tensor.requires_grad)

    def on_arithmetic(self, sign, left, right, answer):
        if sign != "+" or not self.chooses or not torch.is_tensor(right) or answer.dim() or (
                left.requires_grad is right.requires_grad):
            return
        part, values = (right if left.requires_grad else left), self.parts.setdefault(
            self.here(), {})
        if len(values) < STEPS:
            values[self.run.steps] = part.item()
            if len(values) == STEPS == len(set(values.values())):
                self.say("a part of the loss changes from step to step and has no gradient, last "
                         f"{part.item():.4g}: nothing learns from it")
