"""A loss or weights that are nan, while training continues."""

from torch import nn

from dlsys_watch.events import plain
from dlsys_watch.rule import Rule
from dlsys_watch.run import params

WATCHED = 40  # backward passes of which each loss is read; later every 50th


class LossNotANumber(Rule):
    id, trap = "loss-not-a-number", "12.5"
    reads = "the value that backward starts at, and the weights after a step"

    def __init__(self, watch):
        super().__init__(watch)
        self.bad = self.bad_weights = 0

    def on_backward(self, tensors, kept):
        loss = tensors[0]
        if loss.numel() != 1 or not plain(loss) or not self.seldom(first=WATCHED):
            return
        if loss.is_cuda and self.run.backwards > WATCHED:
            return
        self.bad = self.bad + 1 if loss.isnan().item() else 0
        if self.bad == 3:
            self.say("the loss is nan in 3 backward passes in a row: each step makes the weights "
                     "nan, too")

    def on_step_done(self, optimizer):
        if not self.seldom("weights", first=WATCHED):
            return
        held = [p.detach() for p in params(optimizer)[:8] if plain(p) and p.is_floating_point()]
        if self.run.backwards > WATCHED and any(p.is_cuda for p in held):
            return
        if self.bad or not held or not nn.utils.get_total_norm(held).isnan().item():
            self.bad_weights = 0
            return
        self.bad_weights += 1
        if self.bad_weights == 3:
            self.say("weights are nan after 3 steps in a row, and the loss is a number: the "
                     "gradients were nan")
