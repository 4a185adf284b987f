"""Several backward passes for one step, none of them divided."""

from dlsys_watch.graphs import kind
from dlsys_watch.rule import Rule

SUM = 2    # how a loss's node saves reduction="sum"


def is_divided_or_sum(node) -> bool:
    """Whether a loss ends in a division, a product or a sum, which a program divides later."""
    return (kind(node) in ("Div", "Mul", "Sum")
            or getattr(node, "_saved_reduction", None) == SUM)


class AccumulationUnscaled(Rule):
    id, trap, sound = "accumulation-unscaled", "02.4", False
    reads = "backward passes from the same line between two steps, and the loss's last operation"
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.lines, self.times, self.where = [], 0, None

    def on_backward(self, tensors, kept):
        node = tensors[0].grad_fn
        if node is not None and self.run.backwards < 200:
            self.lines.append(None if is_divided_or_sum(node) else self.here())

    def on_step(self, optimizer, closure):
        lines, self.lines = self.lines, []
        alike = len(lines) > 1 and len(set(lines)) == 1 and lines[0] is not None
        self.times = self.times + 1 if alike and closure is None else 0
        if self.times == 3:
            self.say(f"{len(lines)} backward passes for each step, and no loss is divided: the "
                     f"gradient is {len(lines)} times a batch's", lines[0])
