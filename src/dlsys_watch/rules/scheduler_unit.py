"""A schedule counted in epochs and stepped per batch, or the reverse."""

import weakref
from dataclasses import dataclass

from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, PolynomialLR

from dlsys_watch.rule import Rule

LENGTHS = {OneCycleLR: "total_steps", CosineAnnealingLR: "T_max", PolynomialLR: "total_iters"}


@dataclass
class Counted:
    """A schedule of `total` steps, the line that moves it, and what has happened so far."""

    total: int
    optimizer: object
    place: object = None
    calls: int = 0
    steps: int = 0
    drawn: list | None = None   # passes and batches of the loader that it was first moved with


class SchedulerUnit(Rule):
    id, trap = "scheduler-unit", "04.3"
    reads = "how often the scheduler and the optimizer step, and how long the schedule is"

    def __init__(self, watch):
        super().__init__(watch)
        self.found = {}
        self.drawn = weakref.WeakKeyDictionary()   # loader -> [passes, batches]
        self.most_passes = 0

    def on_pass_(self, loader):
        drawn = self.drawn.setdefault(loader, [0, 0])
        drawn[0] += 1
        self.most_passes = max(self.most_passes, drawn[0])

    def on_batch(self, loader, batch, number):
        if loader in self.drawn:
            self.drawn[loader][1] += 1

    def on_schedule(self, scheduler, *_):
        total = next((getattr(scheduler, name) for kind, name in LENGTHS.items()
                      if isinstance(scheduler, kind)), None)
        if total is None or self.run.in_step:
            return
        known = self.found.get(id(scheduler))
        if known is None or known.optimizer() is not scheduler.optimizer:
            self.found[id(scheduler)] = Counted(total, weakref.ref(scheduler.optimizer))
            return  # the first step, which its maker takes
        known.calls, known.place = known.calls + 1, known.place or self.here()
        known.steps = self.run.opt(scheduler.optimizer).steps
        loader = self.run.loader() if self.run.loader is not None else None
        if known.calls == 1 and loader is not None:
            known.drawn = self.drawn.get(loader)

    def on_end(self):
        for known in () if self.run.cut else self.found.values():
            calls, steps, total = known.calls, known.steps, known.total
            if steps >= 4 * calls and 4 * calls <= total and steps / 2 <= total <= 2 * steps:
                self.say(f"the schedule has {total} steps and was moved {calls} times, while the "
                         f"optimizer made {steps} steps: it counts batches and is stepped once an "
                         "epoch", known.place)
            elif calls > 0.9 * steps and calls >= 4 * total and total == self.most_passes:
                self.say(f"the schedule has {total} steps and was moved {calls} times: it counts "
                         f"the {total} epochs and is stepped at each batch", known.place)
            elif known.drawn is not None:
                self.compare(known, *known.drawn)

    def compare(self, known, passes, batches):
        """A schedule as long as a loader's passes, which is moved more seldom than batches come."""
        calls, steps, total = known.calls, known.steps, known.total
        if not passes or batches < passes or 1.8 * calls > total:
            return
        each = batches // passes
        if total == each and calls in (passes, passes - 1) and steps > 0.9 * batches > 1.8 * calls:
            self.say(f"the schedule has {total} steps, as a pass has batches, and was moved "
                     f"{calls} times, once a pass: it hardly moves", known.place)
        elif total == batches and calls > 0.9 * steps and calls > 4:
            self.say(f"the schedule has {total} steps, as there were batches, and was moved "
                     f"{calls} times, once for each step of the optimizer: its end never comes",
                     known.place)
