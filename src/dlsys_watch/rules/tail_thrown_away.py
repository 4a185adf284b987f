"""The last passes of an epoch, too few for a step, and erased."""

from dlsys_watch.rule import Rule

TIMES, STEPS = 2, 2


class TailThrownAway(Rule):
    id, trap, sound = "tail-thrown-away", "02.4", False
    reads = "backward passes before a zero_grad that comes once in several steps"

    def __init__(self, watch):
        super().__init__(watch)
        self.counted = self.cycle = self.steps = self.times = 0   # counted: passes until now
        self.line = None

    def passes(self) -> int:
        """Backward passes since the last time that this was asked."""
        new, self.counted = self.run.backwards - self.counted, self.run.backwards
        return new

    def on_step(self, optimizer, closure):
        if closure is not None or len(self.run.optimizers) > 1 or self.run.settled:
            self.cycle = self.times = self.steps = 0   # no plain accumulation, or not all is seen
        self.cycle = max(self.cycle, self.passes())
        self.steps += 1

    def on_zero(self, owner, *_):
        lost = self.passes()
        if not lost or lost >= self.cycle or self.steps < STEPS:
            self.times *= not lost
            return
        place = self.here()
        self.times = self.times + 1 if place == self.line else 1
        self.line, self.steps = place, 0
        if self.times == TIMES:
            self.say(f"the last {lost} backward passes before this zero_grad are erased without a "
                     f"step: a step takes {self.cycle}. Make one with what is left", place)
