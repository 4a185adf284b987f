"""A step with gradients that the ranks did not average."""

import weakref

from torch.nn.parallel import DistributedDataParallel

from dlsys_watch.rule import Rule
from dlsys_watch.rules.past_the_wrapper import world
from dlsys_watch.run import params

ROW = 3


class NotReduced(Rule):
    id, trap = "not-reduced", "09.6"
    reads = "whether each rank's last forward pass before a step was one that averages gradients"
    rests = ("root", "step")

    def __init__(self, watch):
        super().__init__(watch)
        self.times = weakref.WeakKeyDictionary()   # wrapper -> steps in a row
        self.last = weakref.WeakKeyDictionary()    # wrapper -> (averages, line, backward passes)

    def on_root(self, module, args, kwargs, grad):
        if isinstance(module, DistributedDataParallel) and grad:
            self.last[module] = (module.require_backward_grad_sync, self.here(),
                                 self.run.backwards)

    def on_reduce(self, *_):
        self.last.clear()    # averaged by hand

    def on_step(self, optimizer, closure):
        if not self.last or world() == 1:
            return
        held = {id(p) for p in params(optimizer)}
        for wrapper, (averages, line, backwards) in list(self.last.items()):
            if backwards == self.run.backwards or not any(
                    id(p) in held for p in wrapper.parameters()):
                continue
            del self.last[wrapper]
            self.times[wrapper] = 0 if averages else self.times.get(wrapper, 0) + 1
            if self.times[wrapper] == ROW:
                self.say("the last forward pass before the step ran without synchronisation: each "
                         f"of {world()} ranks steps with its own gradients. no_sync() has to hold "
                         "the forward pass of all batches but the last", line)
