"""A schedule counted in epochs and stepped in batches, or the other way round."""

import weakref
from dataclasses import dataclass

from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from dlsys_watch.rule import Rule


@dataclass
class Counted:
    """A schedule of `total` steps, the line that moves it, and what has happened so far."""

    total: int
    optimizer: object
    place: object = None
    calls: int = 0
    steps: int = 0


class SchedulerUnit(Rule):
    id, trap = "scheduler-unit", "04.3"
    reads = "how often the scheduler and the optimizer step, and how long the schedule is"

    def __init__(self, watch):
        super().__init__(watch)
        self.found = {}
        self.passes = weakref.WeakKeyDictionary()
        self.most_passes = 0

    def on_pass_(self, loader):
        self.passes[loader] = self.passes.get(loader, 0) + 1
        self.most_passes = max(self.most_passes, self.passes[loader])

    def on_schedule(self, scheduler, *_):
        if not isinstance(scheduler, OneCycleLR | CosineAnnealingLR) or self.run.in_step:
            return
        known = self.found.get(id(scheduler))
        if known is None or known.optimizer() is not scheduler.optimizer:
            total = (scheduler.total_steps if isinstance(scheduler, OneCycleLR)
                     else scheduler.T_max)
            self.found[id(scheduler)] = Counted(total, weakref.ref(scheduler.optimizer))
            return  # the first step, which its maker takes
        known.calls, known.place = known.calls + 1, known.place or self.here()
        known.steps = self.run.opt(scheduler.optimizer).steps

    def on_end(self):
        for known in self.found.values():
            calls, steps, total = known.calls, known.steps, known.total
            if steps >= 4 * calls and 4 * calls <= total and steps / 2 <= total <= 2 * steps:
                self.say(f"the schedule has {total} steps and was moved {calls} times, while the "
                         f"optimizer made {steps} steps: it counts batches and is stepped once an "
                         "epoch", known.place)
            elif calls > 0.9 * steps and calls >= 4 * total and total == self.most_passes:
                self.say(f"the schedule has {total} steps and was moved {calls} times: it counts "
                         f"the {total} epochs and is stepped at each batch", known.place)
