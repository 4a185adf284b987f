"""Ranks whose weights are no longer the same."""

import weakref

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dlsys_watch.rule import Rule
from dlsys_watch.rules.past_the_wrapper import world
from dlsys_watch.values import fingerprint

STEPS, LATER = (2, 8, 32), 2   # after which steps weights are compared, and how much later
KEY = "dlsys_watch/weights/"   # in the store that the ranks met at: no message between them
NAMED = {"not-reduced", "past-the-wrapper", "clip-before-reduce"}   # causes with rules of their own


class RanksDrift(Rule):
    id, trap = "ranks-drift", "09.11"
    reads = "the weights of a DistributedDataParallel on each rank, after a few steps"
    begins = ("wrapped",)

    watches = 0    # of this process: a second one asks under other keys

    def __init__(self, watch):
        super().__init__(watch)
        RanksDrift.watches += 1
        self.key = f"{KEY}{RanksDrift.watches}/"
        self.wrappers = []     # weak references, in the order in which they were made
        self.marks, self.told = {}, False
        self.line = None

    def on_wrapped(self, wrapper):
        self.wrappers.append((weakref.ref(wrapper), self.here()))

    def on_step_done(self, optimizer):
        steps = self.run.opt(optimizer).steps
        if self.told or world() == 1 or not self.wrappers or len(self.run.optimizers) > 1:
            return
        if steps in STEPS:
            self.publish(steps)
        elif steps - LATER in self.marks:
            self.compare(steps - LATER)

    def on_end(self):
        if self.marks and not self.told and dist.is_initialized():
            self.compare(max(self.marks))

    def publish(self, steps):
        ref, self.line = self.wrappers[0]
        wrapper = ref()
        if isinstance(wrapper, DistributedDataParallel):
            weights = [p for p in wrapper.module.parameters() if p.requires_grad][:12]
            self.marks[steps] = [fingerprint(p) for p in weights]
            if rank := dist.get_rank():
                store().set(f"{self.key}{steps}/{rank}", repr(self.marks[steps]))

    def compare(self, steps):
        others = [f"{self.key}{steps}/{other}" for other in range(1, world())]
        if dist.get_rank() or not others or not store().check(others):
            return
        mine = self.marks[steps]
        for rank, key in enumerate(others, 1):
            theirs = [float(part) for part in store().get(key).decode().strip("[]").split(",")]
            off = sum(abs(a - b) > 1e-3 * max(abs(a), abs(b), 1e-3)
                      for a, b in zip(mine, theirs, strict=False))
            if off and not NAMED & {f.rule for f in self.watch.report.findings}:
                self.told = True
                self.say(f"after {steps} steps {off} of {len(mine)} weights differ between rank 0 "
                         f"and rank {rank}: they were changed after the model was wrapped, or "
                         "gradients are not averaged", self.line)
                return


def store():
    return dist.distributed_c10d._get_default_store()
