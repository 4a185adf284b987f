"""nll_loss on something other than log-probabilities."""

from dlsys_watch.graphs import is_made_by
from dlsys_watch.rule import Rule
from dlsys_watch.values import are_probabilities


class NllOfProbabilities(Rule):
    id, trap = "nll-of-probabilities", "03.1"
    reads = "the rows that reach nll_loss"

    def on_loss(self, loss):
        if loss.name != "nll_loss" or loss.input.dim() < 2 or not self.seldom(self.here()):
            return
        if is_made_by(loss.input, "Softmax") or are_probabilities(loss.input, 1):
            self.say("nll_loss takes log-probabilities and gets probabilities: its rows sum to "
                     "1.000, and the loss is bounded by -1")
        elif is_made_by(loss.input, "Addmm", "Convolution"):
            self.say("nll_loss takes log-probabilities and gets the plain outputs of a layer: "
                     "log_softmax is missing")
