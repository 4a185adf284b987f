"""kl_div on probabilities where it takes log-probabilities."""

from dlsys_watch.graphs import is_made_by
from dlsys_watch.rule import Rule
from dlsys_watch.values import are_probabilities


class KlOfProbabilities(Rule):
    id, trap = "kl-of-probabilities", "11.3"
    reads = "the first argument of kl_div"

    def on_loss(self, loss):
        if loss.name != "kl_div" or not loss.input.dim() or not self.seldom(self.here()):
            return
        if is_made_by(loss.input, "Softmax") or are_probabilities(loss.input, -1):
            self.say("kl_div takes log-probabilities first and gets probabilities: its rows sum "
                     "to 1.000")
