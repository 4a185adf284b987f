"""A model that ends in a sigmoid, and a second one around it."""

from dlsys_watch.graphs import kind, maker, previous, step_back
from dlsys_watch.rule import Rule


class SigmoidOfSigmoid(Rule):
    id, trap = "sigmoid-of-sigmoid", "03.1"
    reads = "the two functions before a loss of probabilities"

    def on_loss(self, loss):
        node = maker(loss.input) if loss.grad else None
        if node is None or kind(node) != "Sigmoid" or not self.seldom(self.here()):
            return
        before = step_back(previous(node))
        if before is not None and kind(before) in ("Sigmoid", "Softmax"):
            self.say(f"sigmoid of a {kind(before).lower()} before {loss.name}: its values lie "
                     f"between {loss.input.min():.2f} and {loss.input.max():.2f}")
