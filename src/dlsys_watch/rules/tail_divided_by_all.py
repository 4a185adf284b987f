"""A last, shorter accumulation whose losses are divided as if it were complete."""

from dlsys_watch.graphs import kind, saved_number
from dlsys_watch.rule import Rule

WATCHED, FULL, SHORT = 600, 2, 2   # backward passes of the run; complete steps, then short ones


class TailDividedByAll(Rule):
    id, trap, sound = "tail-divided-by-all", "02.4", False
    reads = "how many backward passes a step has, and what divides their losses"
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.factors, self.full, self.short, self.line = [], 0, 0, None

    def on_backward(self, tensors, kept):
        if self.run.backwards < WATCHED:
            self.factors.append(divisor(tensors[0].grad_fn))
            self.line = self.here()

    def on_step(self, optimizer, closure):
        factors, self.factors = self.factors, []
        parts = round(factors[0]) if factors and factors[0] is not None else 0
        if parts < 2 or len(set(factors)) > 1 or len(factors) > parts or closure is not None or (
                abs(factors[0] - parts) > 1e-3 or len(self.run.optimizers) > 1):
            self.full = self.short = 0
        elif len(factors) == parts:
            self.full += 1
        elif self.full >= FULL:
            self.full, self.short = 0, self.short + 1
            if self.short == SHORT:
                self.say(f"a step of {len(factors)} backward passes divides each loss by {parts}, "
                         f"as the steps before it that have {parts}: its gradient is "
                         f"{len(factors)}/{parts} of a mean", self.line)


def divisor(node) -> float | None:
    """What divides a loss, by / or by *."""
    number = saved_number(node)
    if not number:
        return None
    return number if kind(node) == "Div" else 1 / number
