"""Importance ratios between a policy and itself."""

from dlsys_watch.events import plain
from dlsys_watch.graphs import kind
from dlsys_watch.rule import Rule
from dlsys_watch.values import fingerprint, some

STEPS, APART = 3, 8  # steps on one draw; different advantages, by which a draw is known again


class RatioOfOne(Rule):
    id, trap = "ratio-of-one", "14.4"
    reads = "ratios, as exp() of a difference, that are multiplied by the same advantages again"

    def __init__(self, watch):
        super().__init__(watch)
        self.draw, self.steps = None, set()

    def on_arithmetic(self, sign, left, right, answer):
        if sign != "*" or not plain(left, right):
            return
        for ratio, gains in ((left, right), (right, left)):
            if is_exp(ratio) and not gains.requires_grad and gains.is_floating_point():
                self.look(ratio, gains)

    def look(self, ratio, gains):
        if len(some(gains).unique()) < APART:
            return
        if (draw := fingerprint(gains)) != self.draw:
            self.draw, self.steps = draw, set()
        if (ratio != 1).any():
            self.steps.clear()
            return
        self.steps.add(self.run.steps)
        if len(self.steps) == STEPS:
            self.say(f"at {STEPS} steps on one draw every ratio is exactly 1: the old "
                     "log-probabilities are those of now")


def is_exp(tensor) -> bool:
    """Whether a tensor comes straight from exp(), with its graph."""
    return tensor.grad_fn is not None and kind(tensor.grad_fn) == "Exp"
