"""Forward past DistributedDataParallel."""

import weakref

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dlsys_watch.rule import Rule

ROW = 2


class PastTheWrapper(Rule):
    id, trap = "past-the-wrapper", "09.11"
    reads = "whether the wrapped model ran through its wrapper before a step"
    begins = ("wrapped",)

    def __init__(self, watch):
        super().__init__(watch)
        self.inner = weakref.WeakSet()
        self.armed, self.past, self.line, self.times = False, False, None, 0

    def on_wrapped(self, wrapper):
        self.inner.add(wrapper.module)

    def on_root(self, module, args, kwargs, grad):
        if isinstance(module, DistributedDataParallel):
            self.armed = self.armed or grad
        elif grad and module in self.inner:
            self.past, self.line = True, self.here()

    def on_reduce(self, *_):
        self.armed = True    # averaged by hand

    def on_step(self, optimizer, closure):
        alone = self.past and not self.armed and world() > 1
        self.times = self.times + 1 if alone else 0
        self.armed = self.past = False
        if self.times == ROW:
            self.say("the model runs past its DistributedDataParallel, through .module: the "
                     f"gradients of {world()} ranks are not averaged", self.line)


def world() -> int:
    """How many ranks train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
