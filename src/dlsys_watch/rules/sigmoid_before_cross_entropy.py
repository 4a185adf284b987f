"""A sigmoid on the outputs of a classifier of many classes."""

import math

from dlsys_watch.graphs import is_made_by
from dlsys_watch.rule import Rule


class SigmoidBeforeCrossEntropy(Rule):
    id, trap = "sigmoid-before-cross-entropy", "03.1"
    reads = "the function that made the input of cross_entropy"

    def on_loss(self, loss):
        if loss.name != "cross_entropy" or not loss.grad or loss.input.dim() < 2:
            return
        if self.seldom(self.here()) and is_made_by(loss.input, "Sigmoid"):
            classes = loss.input.shape[1]
            self.say("sigmoid before cross_entropy: logits lie between 0 and 1, so the loss "
                     f"cannot fall below {math.log(1 + (classes - 1) / math.e):.2f}")
