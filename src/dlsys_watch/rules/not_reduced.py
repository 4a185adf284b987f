"""A step with gradients that the ranks did not average."""

import weakref

from torch.nn.parallel import DistributedDataParallel

from dlsys_watch.rule import Rule
from dlsys_watch.rules.past_the_wrapper import world

ROW = 2


class NotReduced(Rule):
    id, trap = "not-reduced", "09.6"
    reads = "whether the last forward pass of each rank before a step was one that averages"

    def __init__(self, watch):
        super().__init__(watch)
        self.times = weakref.WeakKeyDictionary()   # wrapper -> steps in a row
        self.last = None      # (reference to the wrapper, whether it averages, line, backwards)

    def on_root(self, module, args, kwargs, grad):
        if isinstance(module, DistributedDataParallel) and grad:
            self.last = (weakref.ref(module), module.require_backward_grad_sync, self.here(),
                         self.run.backwards)

    def on_reduce(self, *_):
        self.last = None    # averaged by hand

    def on_step(self, optimizer, closure):
        if self.last is None or world() == 1:
            return
        (ref, averages, line, backwards), self.last = self.last, None
        wrapper = ref()
        if wrapper is None or backwards == self.run.backwards:
            return
        self.times[wrapper] = 0 if averages else self.times.get(wrapper, 0) + 1
        if self.times[wrapper] == ROW:
            self.say(f"the last forward pass before the step ran without synchronisation: each of "
                     f"{world()} ranks steps with its own gradients. no_sync() has to hold the "
                     "forward pass of all batches but the last", line)
