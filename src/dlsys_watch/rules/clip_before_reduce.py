"""Every rank clips by its own norm."""

from dlsys_watch.rule import Rule
from dlsys_watch.rules.past_the_wrapper import world


class ClipBeforeReduce(Rule):
    id, trap = "clip-before-reduce", "09.12"
    reads = "whether gradients are averaged over ranks after they were clipped"
    rests = ("step_done",)

    def __init__(self, watch):
        super().__init__(watch)
        self.clipped, self.line, self.times = set(), None, 0

    def on_clip(self, kind, parameters, most):
        if world() > 1 and most != float("inf"):
            self.clipped = {p.grad.data_ptr() for p in parameters if p.grad is not None}
            self.line = self.here()

    def on_reduce(self, tensor, *_):
        if tensor.data_ptr() in self.clipped:
            self.clipped = set()
            self.times += 1
            if self.times == 2:
                self.say(f"each of {world()} ranks clips by the norm of its own gradients, and "
                         "they are averaged afterwards: average first", self.line)

    def on_step_done(self, optimizer):
        self.clipped = set()
