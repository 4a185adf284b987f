"""A loss that was rebuilt from numbers and has no graph."""

from dlsys_watch.rule import Rule
from dlsys_watch.run import params


class LossIsALeaf(Rule):
    id, trap = "loss-is-a-leaf", "02.3"
    reads = "whether backward starts at the end of a graph"
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.started, self.times = None, 0

    def on_backward(self, tensors, kept):
        loss = tensors[0]
        leaf = loss.grad_fn is None and loss.requires_grad and loss.numel() == 1
        self.started = self.here() if leaf and id(loss) not in self.run.held() else None

    def on_step(self, optimizer, closure):
        if self.started and all(p.grad is None for p in params(optimizer)):
            self.times += 1
            if self.times == 2:
                self.say("backward starts at a tensor without a graph: the loss was made anew, "
                         "and no weight gets a gradient", self.started)
