"""Cross-entropy over a single class."""

from dlsys_watch.graphs import kind, maker
from dlsys_watch.rule import Rule


class OneClass(Rule):
    id, trap = "one-class", "01.2"
    reads = "the number of classes of a softmax"

    def on_loss(self, loss):
        values = loss.input
        if not loss.grad or values.dim() < 2 or values.shape[1] != 1 or not self.seldom():
            return
        node = maker(values)
        if loss.name == "cross_entropy" or (node is not None and kind(node) == "Softmax"
                                            and values.dim() == 2):
            self.say(f"softmax over one class: every probability is 1, so {loss.name} teaches "
                     "nothing. One output takes a sigmoid")
