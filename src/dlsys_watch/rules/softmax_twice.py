"""Softmax, then a loss that takes logits."""

import math

from dlsys_watch.graphs import is_made_by, kind, maker, previous, step_back
from dlsys_watch.rule import Rule
from dlsys_watch.values import are_probabilities


class SoftmaxTwice(Rule):
    id, trap = "softmax-twice", "03.1"
    reads = "the rows that reach cross_entropy, or log_softmax before nll_loss, and what made them"

    def on_loss(self, loss):
        classes = loss.input.shape[1] if loss.input.dim() > 1 else 0
        taken = {"cross_entropy": "cross_entropy", "nll_loss": "log_softmax"}.get(loss.name)
        if taken is None or classes < 2 or not self.seldom(self.here()):
            return
        if self.are_soft(loss):
            floor = math.log(1 + (classes - 1) / math.e)
            self.say(f"softmax twice: rows of the input of {taken} sum to 1.000, so the loss "
                     f"cannot fall below {floor:.2f}")

    def are_soft(self, loss) -> bool:
        """Whether there is a softmax before the loss's own."""
        if loss.name == "cross_entropy":
            return is_made_by(loss.input, "Softmax") or are_probabilities(loss.input, 1)
        last = maker(loss.input)
        if last is None or kind(last) != "LogSoftmax":
            return False
        before = step_back(previous(last))
        return before is not None and kind(before) == "Softmax"
