"""A learning rate that is practically zero for half of the run."""

import weakref

from dlsys_watch.rule import Rule

PART, SHARE, FEWEST = 1e-4, 0.4, 60


class RateCollapsed(Rule):
    id, trap = "rate-collapsed", "04.3"
    reads = "the learning rate of each step, compared with its peak"
    begins = ("schedule",)

    def __init__(self, watch):
        super().__init__(watch)
        self.rates = weakref.WeakKeyDictionary()   # optimizer -> [peak, low steps, schedule's line]
        self.place = None
        self.moves = 0

    def on_schedule(self, scheduler, *_):
        self.moves += 1
        self.place = self.here() if self.moves < 3 else self.place

    def on_step(self, optimizer, closure):
        known = self.run.opt(optimizer)
        rate = max(float(group["lr"]) for group in optimizer.param_groups)
        found = self.rates.setdefault(optimizer, [0.0, 0])
        found[0] = max(found[0], rate)
        found[1] += rate < PART * found[0]
        if known.steps >= FEWEST and known.steps % 20 == 0 and (
                found[1] > SHARE * known.steps and self.moves >= 0.9 * known.steps):
            self.say(f"the learning rate is {rate:.0e}, below a ten-thousandth of its peak "
                     f"{found[0]:.0e} for {found[1]} of {known.steps} steps: the scheduler is "
                     "stepped too often", self.place)
