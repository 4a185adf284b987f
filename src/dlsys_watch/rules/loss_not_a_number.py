"""A loss that is nan, and steps that go on."""

from dlsys_watch.events import plain
from dlsys_watch.rule import Rule

WATCHED = 40  # backward passes of which each loss is read; later every 50th


class LossNotANumber(Rule):
    id, trap = "loss-not-a-number", "12.5"
    reads = "the value that backward starts from"

    def __init__(self, watch):
        super().__init__(watch)
        self.bad = 0

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
