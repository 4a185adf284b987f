"""A sigmoid before a loss that applies one."""

from dlsys_watch.graphs import is_made_by
from dlsys_watch.rule import Rule


class SigmoidTwice(Rule):
    id, trap = "sigmoid-twice", "03.1"
    reads = "the function that made the input of binary_cross_entropy_with_logits"

    def on_loss(self, loss):
        if loss.name != "binary_cross_entropy_with_logits" or not loss.grad:
            return
        if self.seldom(self.here()) and is_made_by(loss.input, "Sigmoid", "Softmax"):
            low, high = loss.input.min().item(), loss.input.max().item()
            self.say("sigmoid twice: binary_cross_entropy_with_logits takes logits and gets "
                     f"probabilities, {low:.2f} to {high:.2f}")
