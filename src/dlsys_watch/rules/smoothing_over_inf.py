"""Label smoothing over masked logits."""

import math

from dlsys_watch.rule import Rule


class SmoothingOverInf(Rule):
    id, trap = "smoothing-over-inf", "12.11"
    reads = "the lowest logit, where labels are smoothed"

    def on_loss(self, loss):
        if loss.name == "cross_entropy" and loss.options.get("label_smoothing", 0) > 0 and (
                self.seldom(self.here()) and loss.input.min().item() == -math.inf):
            share = loss.options["label_smoothing"]
            self.say(f"label_smoothing={share} gives each class a share, the masked ones too, "
                     "whose logits are -inf: the loss is infinite")
