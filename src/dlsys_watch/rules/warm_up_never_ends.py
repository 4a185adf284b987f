"""A linear warm-up that is longer than the run."""

import weakref

from dlsys_watch.rule import Rule

FEWEST, NEAR = 60, 0.02   # steps of a schedule; how far apart the rises of a line may be


class WarmUpNeverEnds(Rule):
    id, trap, sound = "warm-up-never-ends", "04.3", False
    reads = "whether the learning rate rose by the same amount at every step of a schedule"
    begins = ("schedule",)

    def __init__(self, watch):
        super().__init__(watch)
        self.known = weakref.WeakKeyDictionary()   # optimizer -> [steps, rate, rise or None, line]

    def on_schedule(self, scheduler, *_):
        rate = max(float(group["lr"]) for group in scheduler.optimizer.param_groups)
        known = self.known.setdefault(scheduler.optimizer, [-1, rate, 0.0, None])
        steps, before, rise, line = known
        if steps > 0 and rise is not None:
            same = rise == 0 or abs(rate - before - rise) <= NEAR * rise
            rise = rate - before if same and rate > before else None
        known[:] = steps + 1, rate, rise, self.here() if steps == 0 else line

    def on_end(self):
        for steps, rate, rise, line in () if self.run.cut else list(self.known.values()):
            if steps >= FEWEST and rise:
                self.say(f"the learning rate rose at each of {steps} steps, to {rate:.2g}, and the "
                         "run ends there: is the warm-up longer than the run, or are warm-up and "
                         "length swapped?", line)
