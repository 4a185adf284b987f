"""An optimizer with a memory, created again in each epoch."""

import weakref

from dlsys_watch.rule import Rule
from dlsys_watch.run import params

TIMES, STEPS = 4, 2


class OptimizerMadeAgain(Rule):
    id, trap, sound = "optimizer-made-again", "04.8", False
    reads = "optimizers created by the same line for the same weights, and the steps between them"

    def __init__(self, watch):
        super().__init__(watch)
        self.made = {}    # (line, weights, rates) -> [how often, steps of the run at the last one]
        self.latest = {}  # ids of weights -> weak reference to their latest optimizer

    def on_optimizer(self, optimizer):
        place = self.here()
        weights = tuple(id(p) for p in params(optimizer) if p.requires_grad)
        if not has_memory(optimizer) or place is None or not weights:
            return
        before, self.latest[weights] = self.latest.get(weights), weakref.ref(optimizer)
        key = place, weights, tuple(group["lr"] for group in optimizer.param_groups)
        times, steps = self.made.get(key, (0, 0))
        if times and self.run.steps < steps + STEPS:
            times = 0
        self.made[key] = times + 1, self.run.steps
        if times + 1 == TIMES and before is not None:
            self.say(f"this line has made {TIMES} {type(optimizer).__name__} for the same weights, "
                     f"{self.run.steps - steps} steps apart: each time the averages of the "
                     "gradients are lost", place)

    def on_loaded(self, module, state, result):
        self.made.clear()    # the weights also start again

    def on_resumed(self, optimizer, state):
        self.made.clear()    # the memory was kept


def has_memory(optimizer) -> bool:
    """Whether its steps depend on earlier gradients; plain SGD's do not."""
    return any(group.get("momentum") or "betas" in group or "alpha" in group
               for group in optimizer.param_groups)
