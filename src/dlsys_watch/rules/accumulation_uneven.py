"""Micro-batches with few and with many labels that count alike in an accumulation."""

import torch

from dlsys_watch.graphs import kind, saved_number
from dlsys_watch.rule import Rule

WINDOWS, UNEVEN = 3, 2   # steps in a row; how much the labels of the parts differ
WATCHED = 400   # backward passes of the run


class AccumulationUneven(Rule):
    id, trap = "accumulation-uneven", "09.2"
    reads = "how many labels count in each part of an accumulation, and what divides its loss"
    rests = ("step",)

    def __init__(self, watch):
        super().__init__(watch)
        self.count, self.parts, self.windows, self.line = 0, [], [], None
        self.accumulates = False    # whether a step has had several backward passes

    def on_loss(self, loss):
        if not self.accumulates or not loss.grad or self.run.backwards > WATCHED or (
                loss.name not in ("cross_entropy", "nll_loss")):
            return
        options, self.count = loss.options, 0
        if loss.target.dtype is torch.long and options.get("weight") is None and (
                options.get("reduction", "mean") == "mean"):
            self.count = int((loss.target != options.get("ignore_index", -100)).sum())

    def on_backward(self, tensors, kept):
        if self.run.backwards <= WATCHED:
            factor = factor_of_mean(tensors[0].grad_fn) if tensors[0].numel() == 1 else None
            self.parts.append((0 if factor is None else self.count, factor))
            self.line = self.here()

    def on_step(self, optimizer, closure):
        parts, factors = [count for count, _ in self.parts], {factor for _, factor in self.parts}
        self.parts = []
        self.accumulates = self.accumulates or len(parts) > 1
        uneven = len(parts) > 1 and min(parts) > 0 and max(parts) >= UNEVEN * min(parts) and (
            len(factors) == 1)
        self.windows = [*self.windows, (min(parts), max(parts))] if uneven else []
        if len(self.windows) == WINDOWS:
            fewest, most = max(self.windows, key=lambda pair: pair[1] / pair[0])
            self.say(f"a step adds up the means of {len(parts)} parts with {fewest} to {most} "
                     f"labels that count, all divided alike: a label of the smallest part weighs "
                     f"{most / fewest:.1f} times as much. Divide the sums by all labels of the "
                     "step", self.line)


def factor_of_mean(node) -> float | None:
    """The number that the mean of a cross-entropy is multiplied or divided by."""
    if node is None or kind(node) not in ("Div", "Mul"):
        return None
    operands = [before for before, _ in node.next_functions if before is not None]
    if len(operands) != 1 or not kind(operands[0]).startswith("NllLoss"):
        return None
    return saved_number(node)
